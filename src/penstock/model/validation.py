"""Converts decoded maps to model objects and back, with errors that name the field.

The limits are annotations of the fields. This module rewrites errors of msgspec, and omits
unset fields when it encodes.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from penstock.errors import (
    InvalidRequestException,
    StreamManagerException,
    ValidationException,
)
from penstock.model.limits import NAME_PATTERN

T = TypeVar("T")

_PATH = re.compile(r"^(?P<problem>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.(?P<key>[^.\[]+)|\[(?P<index>\d+|\.\.\.)\]")
_SHOWN_CHARACTERS = 80


_prepared: set[Any] = set()
_preparing = threading.Lock()


def prepare(kind: Any) -> None:
    """Builds msgspec's description of a type, in one thread at a time.

    msgspec publishes the description of a struct before it is complete. Two threads that convert
    to the same type for the first time would crash the process.
    """
    if kind not in _prepared:
        with _preparing:
            msgspec.msgpack.Decoder(kind)
            _prepared.add(kind)


def convert(value: Any, kind: type[T], builtin_types: Iterable[type] = ()) -> T:
    """A thread-safe `msgspec.convert`."""
    prepare(kind)
    return msgspec.convert(value, kind, builtin_types=builtin_types)


def from_wire(
    value: Any, kind: type[T], error: type[StreamManagerException] = InvalidRequestException
) -> T:
    """Converts a decoded map to a model object; the error names the field."""
    value = _normalize(value)
    try:
        # Without this option msgspec would decode text as base64 into bytes.
        converted = convert(value, kind, builtin_types=(bytes,))
    except msgspec.ValidationError as problem:
        raise error(str(find_problem(problem, value, kind))) from None
    missing = _find_missing(converted)
    if missing:
        raise error(str(missing))
    return converted


def from_server(plain: Any, kind: type[T]) -> T:
    """Converts a map from a server to a model object without checking its values.

    Raises ValueError if it is not a map, or for an unknown value of an enum.
    """
    if not isinstance(plain, dict):
        raise ValueError(f"{kind.__name__} is {_show(plain)}: expected a map")  # noqa: TRY004
    made: T = _construct(plain, inspect.type_info(kind))
    return made


def _construct(plain: Any, kind: inspect.Type) -> Any:
    for option in _options(kind):
        match option, plain:
            case inspect.StructType(), dict():
                return option.cls(
                    **{
                        field.name: _construct(plain[field.encode_name], field.type)
                        for field in option.fields
                        if plain.get(field.encode_name) is not None
                    }
                )
            case inspect.ListType(), list():
                return [_construct(item, option.item_type) for item in plain]
            case inspect.EnumType(), _:
                return option.cls(plain)
    return plain


def validate(value: T) -> T:
    """Checks an object as the server does; raises ValidationException."""
    try:
        plain = to_wire(value)
    except TypeError as error:
        raise ValidationException(f"{type(value).__name__}: {error}") from None
    return from_wire(plain, type(value), ValidationException)


def to_wire(value: Any) -> Any:
    """Converts to maps, lists and scalars, without unset fields: a null crashes some clients."""
    return _without_unset(msgspec.to_builtins(value, builtin_types=(bytes,)))


def _normalize(value: Any) -> Any:
    """Converts integral floats to integers (JavaScript sends large ones as floats); omits nulls."""
    if isinstance(value, dict):
        return {key: _normalize(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_normalize(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _without_unset(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_unset(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_unset(item) for item in value]
    return value


class InvalidField(NamedTuple):
    """An invalid value: its path, its text, and the allowed values."""

    path: str
    shown: str | None
    expected: str

    def __str__(self) -> str:
        if self.shown is None:
            return f"{self.path}: {self.expected}" if self.path else self.expected
        return f"{self.path} is {self.shown}: {self.expected}"


@cache
def _required_fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """The names of required fields, in Python and on the wire."""
    return tuple(
        (field.name, field.encode_name)
        for field in inspect.type_info(kind).fields  # type: ignore[attr-defined] # a struct's
        if field.default is None
        and not any(isinstance(option, inspect.NoneType) for option in _options(field.type))
    )


@cache
def _object_fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """The names of fields with objects or lists of objects, in Python and on the wire."""
    return tuple(
        (field.name, field.encode_name)
        for field in inspect.type_info(kind).fields  # type: ignore[attr-defined] # a struct's
        if _holds_objects(field.type)
    )


def _holds_objects(kind: inspect.Type) -> bool:
    return any(
        isinstance(option, inspect.StructType)
        or (isinstance(option, inspect.ListType) and _holds_objects(option.item_type))
        for option in _options(kind)
    )


def _find_missing(value: Any, path: str = "") -> InvalidField | None:
    """The first unset required field, in this object or in nested objects."""
    if isinstance(value, list):
        steps = ((f"{path}[{index}]", item) for index, item in enumerate(value))
        return next(filter(None, (_find_missing(item, step) for step, item in steps)), None)
    if not isinstance(value, msgspec.Struct):
        return None
    for name, encoded in _required_fields(type(value)):
        if getattr(value, name) is None:
            return InvalidField(path, None, f"object missing required field {encoded}")
    for name, encoded in _object_fields(type(value)):
        step = f"{path}.{encoded}" if path else encoded
        if missing := _find_missing(getattr(value, name), step):
            return missing
    return None


def find_problem(error: msgspec.ValidationError, value: Any, kind: type) -> InvalidField:
    match = _PATH.match(str(error))
    assert match is not None
    path = match["path"] or ""
    expected = match["problem"].replace("`", "")
    expected = expected[0].lower() + expected[1:]
    if expected.startswith("invalid enum value"):
        expected = f"expected one of {_allowed_at(path, kind)}"
    if repr(NAME_PATTERN) in expected:
        expected = "expected letters, digits, spaces or any of _ , . -"
    if match["key"]:
        return InvalidField(path.lstrip("."), None, "expected str for each key")
    if expected.startswith("object missing"):
        return InvalidField(path.lstrip("."), None, expected)
    return InvalidField(path.lstrip("."), _show(_follow(path, value)), expected)


def _allowed_at(path: str, kind: type) -> str:
    """The values of the enum or literal at a path."""
    found: inspect.Type = inspect.type_info(kind)
    for step in _STEP.finditer(path):
        for option in _options(found):
            if isinstance(option, inspect.StructType):
                found = next(
                    field.type for field in option.fields if field.encode_name == step["key"]
                )
            elif isinstance(option, inspect.ListType):
                found = option.item_type
    literals = [
        str(value)
        for option in _options(found)
        if isinstance(option, inspect.LiteralType)
        for value in option.values
    ]
    members = [
        member
        for option in _options(found)
        if isinstance(option, inspect.EnumType)
        for member in option.cls
    ]
    return ", ".join(
        literals
        + [
            member.value if isinstance(member.value, str) else f"{member.value} ({member.name})"
            for member in members
        ]
    )


def _options(found: inspect.Type) -> tuple[inspect.Type, ...]:
    if isinstance(found, inspect.Metadata):
        return _options(found.type)
    return found.types if isinstance(found, inspect.UnionType) else (found,)


def _follow(path: str, value: Any) -> Any:
    for step in _STEP.finditer(path):
        try:
            value = value[step["key"]] if step["key"] else value[int(step["index"])]
        except (KeyError, IndexError, TypeError, ValueError):
            return "…"
    return value


def _show(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "a map" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
