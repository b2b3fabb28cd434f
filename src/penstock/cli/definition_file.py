"""Reads stream definitions from TOML, YAML or JSON files.

Fields have the names of the Python SDK or of the wire. The names come from the model's types, so
that a new field of the model works in files too.
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
    """Reads a definition; Failure if it is invalid. `name` is for files without a name."""
    source = "standard input" if file == STANDARD_INPUT else file
    try:
        plain = _to_wire_names(_read_document(file))
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
            f"{source} defines the stream {definition.name!r}, but the command names {name!r}: "
            "use the same name, or leave one out",
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
    return json.loads(text, object_pairs_hook=_unique_keys)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _reject_duplicates(name for name, _ in pairs)
    return dict(pairs)


def _reject_duplicates(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{name} is given twice")
        seen.add(name)


class _YamlLoader(yaml.SafeLoader):
    """Rejects duplicate keys, as the other formats do. PyYAML would take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        _reject_duplicates(str(key.value) for key, _ in node.value)
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
        # Nearly all JSON is YAML, but YAML does not allow tabs as indentation.
        return _parse_json(text)
    except json.JSONDecodeError:
        return _parse_yaml(text)


_PARSERS: dict[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads,
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
    ".json": _parse_json,
}


def _to_wire_names(document: Any) -> dict[str, Any]:
    """Converts names of fields and enum members to names of the wire."""
    if not isinstance(document, dict):
        raise ValueError(  # noqa: TRY004 - the file is wrong, not the caller
            "expected the fields of a definition, such as name and max_size"
        )
    if _is_description(document):
        raise ValueError(
            "this is the output of `penstock streams describe --json`: use only its member "
            "definition"
        )
    converted: dict[str, Any] = _convert(document, inspect.type_info(MessageStreamDefinition), "")
    return converted


def _is_description(document: dict[Any, Any]) -> bool:
    return document.keys() <= set(MessageStreamInfo.__struct_encode_fields__) and bool(document)


def _convert(value: Any, kind: inspect.Type, path: str) -> Any:
    for option in kind.types if isinstance(kind, inspect.UnionType) else (kind,):
        match option, value:
            case inspect.StructType(), dict():
                return _convert_fields(value, option, path)
            case inspect.ListType(), list():
                return [
                    _convert(item, option.item_type, f"{path}[{index}]")
                    for index, item in enumerate(value)
                ]
            case inspect.EnumType(), str():
                return _enum_value(value, option.cls, path)
    # The model checks types and limits.
    return value


def _convert_fields(value: dict[Any, Any], kind: inspect.StructType, path: str) -> dict[str, Any]:
    fields = {name: field for field in kind.fields for name in (field.name, field.encode_name)}
    converted: dict[str, Any] = {}
    for name, item in value.items():
        step = f"{path}.{name}" if path else str(name)
        field = fields.get(name)
        if field is None:
            raise ValueError(f"{step}: there is no such field; {_suggest_name(str(name), kind)}")
        if field.encode_name in converted:
            raise ValueError(
                f"{step}: given twice, as {field.name} and as {field.encode_name}; leave one out"
            )
        converted[field.encode_name] = _convert(item, field.type, step)
    return converted


def _suggest_name(wrong: str, kind: inspect.StructType) -> str:
    """A hint with the closest name in the same naming style, or with all names."""
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
