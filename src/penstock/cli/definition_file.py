"""Definitions of streams in files: TOML, YAML or JSON, in the spelling of Python or of the wire.

The names of fields come from the model's types: one that is added there can be used in a file.
"""

from __future__ import annotations

import difflib
import json
import sys
import tomllib
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Any

import yaml
from msgspec import inspect

from penstock.cli.main import WRONG_USAGE, Failure
from penstock.errors import StreamManagerException
from penstock.model import MessageStreamDefinition, MessageStreamInfo, from_wire

STANDARD_INPUT = "-"


def read_definition(file: str, name: str | None = None) -> MessageStreamDefinition:
    """The definition in a file, whose name may be given beside it; Failure names what is wrong."""
    source = "standard input" if file == STANDARD_INPUT else file
    try:
        plain = _spell_as_on_the_wire(_read_document(file))
        if name is not None and plain.get("name") in (None, name):
            plain["name"] = name
        definition = from_wire(plain, MessageStreamDefinition)
        definition.validate_exports()
    except OSError as error:
        raise Failure(f"{source} cannot be read: {error.strerror}", WRONG_USAGE) from None
    except RecursionError:
        raise Failure(f"{source} cannot be read: it is nested too deeply", WRONG_USAGE) from None
    except (ValueError, StreamManagerException) as error:
        raise Failure(f"{source}: {error}", WRONG_USAGE) from None
    if name not in (None, definition.name):
        raise Failure(
            f"{source} defines {definition.name!r}, and the command names {name!r}: "
            "leave one of them out",
            WRONG_USAGE,
        )
    return definition


def _read_document(file: str) -> Any:
    if file == STANDARD_INPUT:
        return _parse_json_or_yaml(sys.stdin.buffer.read().decode())
    path = Path(file)
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        raise ValueError(f"expected a file whose name ends in one of {', '.join(_PARSERS)}")
    return parse(path.read_text(encoding="utf-8"))


def _parse_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_repeated(name for name, _ in pairs)
    return dict(pairs)


def _refuse_repeated(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{name} is given twice")
        seen.add(name)


class _YamlLoader(yaml.SafeLoader):
    """Refuses keys that are given twice, as the other formats do; PyYAML takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        _refuse_repeated(str(key.value) for key, _ in node.value)
        return super().construct_mapping(node, deep)


def _parse_yaml(text: str) -> Any:
    try:
        return yaml.load(text, _YamlLoader)  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ValueError(f"{error.problem}{place}") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _parse_json_or_yaml(text: str) -> Any:
    try:
        # YAML has nearly all of JSON, but not the tabs that some programs indent it with.
        return _parse_json(text)
    except json.JSONDecodeError:
        return _parse_yaml(text)


_PARSERS: dict[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads,
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
    ".json": _parse_json,
}


def _spell_as_on_the_wire(document: Any) -> dict[str, Any]:
    """The document with the names and numbers of the wire, whichever way it spells them."""
    if not isinstance(document, dict):
        raise ValueError(  # noqa: TRY004 - the file is wrong, not the caller
            "expected the fields of a definition, such as name and max_size"
        )
    if _is_description(document):
        raise ValueError(
            "this is what `penstock streams describe --json` prints: the definition is the part "
            "of it that is called definition"
        )
    spelled: dict[str, Any] = _spell(document, inspect.type_info(MessageStreamDefinition), "")
    return spelled


def _is_description(document: dict[Any, Any]) -> bool:
    return document.keys() <= set(MessageStreamInfo.__struct_encode_fields__) and bool(document)


def _spell(value: Any, kind: inspect.Type, path: str) -> Any:
    for option in kind.types if isinstance(kind, inspect.UnionType) else (kind,):
        match option, value:
            case inspect.StructType(), dict():
                return _spell_fields(value, option, path)
            case inspect.ListType(), list():
                return [
                    _spell(item, option.item_type, f"{path}[{index}]")
                    for index, item in enumerate(value)
                ]
            case inspect.EnumType(), str():
                return _enum_value(value, option.cls, path)
    # Whether it is of the right kind is found where its limits are.
    return value


def _spell_fields(value: dict[Any, Any], kind: inspect.StructType, path: str) -> dict[str, Any]:
    fields = {name: field for field in kind.fields for name in (field.name, field.encode_name)}
    spelled: dict[str, Any] = {}
    for name, item in value.items():
        step = f"{path}.{name}" if path else str(name)
        field = fields.get(name)
        if field is None:
            raise ValueError(f"{step}: there is no such field; {_right_name(str(name), kind)}")
        if field.encode_name in spelled:
            raise ValueError(
                f"{step}: given twice, as {field.name} and as {field.encode_name}; leave one out"
            )
        spelled[field.encode_name] = _spell(item, field.type, step)
    return spelled


def _right_name(wrong: str, kind: inspect.StructType) -> str:
    """The nearest name, in the spelling that was tried; all of them if none is near."""
    is_snake = "_" in wrong or wrong.islower()
    names = {
        _folded(field.name): field.name if is_snake else field.encode_name for field in kind.fields
    }
    near = difflib.get_close_matches(_folded(wrong), names, n=1)
    return f"did you mean {names[near[0]]}?" if near else f"expected {', '.join(names.values())}"


def _folded(name: str) -> str:
    return name.replace("_", "").lower()


def _enum_value(name: str, kind: type[Enum], path: str) -> Any:
    if name in kind.__members__:
        return kind[name].value
    allowed = ", ".join(f"{member.name} ({member.value})" for member in kind)
    raise ValueError(f"{path} is {name!r}: expected one of {allowed}")
