"""Definitions of streams as people write them: in flags, with units, and in files.

The names of fields come from the model's types: one that is added there can be used in a file.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import yaml
from msgspec import inspect

from penstock.cli.main import NOT_FOUND, WRONG_USAGE, Failure
from penstock.errors import StreamManagerException
from penstock.model import (
    ExportConfig,
    ExportDefinition,
    HTTPConfig,
    IoTAnalyticsConfig,
    IoTSiteWiseConfig,
    KinesisConfig,
    MessageStreamDefinition,
    MessageStreamInfo,
    Persistence,
    S3ExportTaskExecutorConfig,
    StrategyOnFull,
    from_wire,
)
from penstock.model.validation import validate

STANDARD_INPUT = "-"

# Sizes and durations

_SIZE_UNITS = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGTPE", 1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTPE", 1)},
}
_SIZE_OF = {"": 1, **{unit.lower(): size for unit, size in _SIZE_UNITS.items()}}
_DURATION_UNITS = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1000, "ms": 1}
_MILLIS_OF = {**_DURATION_UNITS, "m": 60_000, "w": 7 * 86_400_000}
_NUMBER = r"(\d+(?:\.\d+)?)\s*"
_DURATION = rf"{_NUMBER}([a-z]+)\s*"


def parse_size(text: str) -> int:
    """Bytes, as in `1024`, `256MiB` (of 1024 x 1024 bytes) or `1GB` (of 1000 x 1000 x 1000)."""
    match = re.fullmatch(rf"{_NUMBER}([a-z]*)", text.strip().lower(), re.ASCII)
    if match is None or match[2] not in _SIZE_OF:
        raise ValueError(
            f"{text!r} is no size: expected a number and a unit, such as 1024, 64KiB, 256MiB, 1GB"
        )
    return _whole(Fraction(match[1]) * _SIZE_OF[match[2]], text, "bytes")


def format_size(size: int) -> str:
    """The size exactly, in the largest unit of which it is a multiple."""
    units = ((unit, of) for unit, of in _SIZE_UNITS.items() if size and size % of == 0)
    unit, of = max(units, key=lambda found: found[1], default=("B", 1))
    return f"{size // of} {unit}"


def parse_duration(text: str) -> int:
    """Milliseconds, from `90s`, `2h`, `7d` or `1h 30min`; a number alone could be anything."""
    lowered = text.strip().lower()
    amounts = re.findall(_DURATION, lowered, re.ASCII)
    is_all = re.fullmatch(f"(?:{_DURATION})+", lowered, re.ASCII)
    if not is_all or any(unit not in _MILLIS_OF for _, unit in amounts):
        raise ValueError(
            f"{text!r} is no duration: expected numbers and units, such as 90s, 30min, 2h, 7d"
        )
    millis = sum(Fraction(number) * _MILLIS_OF[unit] for number, unit in amounts)
    return _whole(Fraction(millis), text, "milliseconds")


def format_duration(millis: int) -> str:
    """The duration exactly, such as `1 h 30 min`."""
    parts = []
    for unit, of in _DURATION_UNITS.items():
        count, millis = divmod(millis, of)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) or "0 s"


def _whole(amount: Fraction, text: str, unit: str) -> int:
    if amount.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of {unit}")
    return int(amount)


# Files


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


# Flags

FOREVER = "none"


class ExportChanges(NamedTuple):
    """What is to happen to exports that a stream has, by their identifiers."""

    removed: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()


NO_CHANGES = ExportChanges()


class _ExportFlag(NamedTuple):
    """A flag that adds an export; more than a destination's name is for a file."""

    flag: str
    kind: str
    config: Callable[..., ExportConfig]
    metavar: str
    help: str


_EXPORT_FLAGS = (
    _ExportFlag("--kinesis", "kinesis", KinesisConfig, "ID=STREAM", "a Kinesis data stream"),
    _ExportFlag(
        "--iot-analytics",
        "iot_analytics",
        IoTAnalyticsConfig,
        "ID=CHANNEL",
        "a channel of IoT Analytics",
    ),
    _ExportFlag(
        "--sitewise", "iot_sitewise", IoTSiteWiseConfig, "ID", "IoT SiteWise, as values of assets"
    ),
    _ExportFlag("--s3", "s3_task_executor", S3ExportTaskExecutorConfig, "ID", "S3, file by file"),
    _ExportFlag("--http", "http", HTTPConfig, "ID=URI", "an HTTP server"),
)


def _parsed(parse: Callable[[str], Any]) -> Callable[..., Any]:
    """A callback for an option whose values are texts."""

    def callback(_context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
        if value is None:
            return None
        try:
            return tuple(map(parse, value)) if isinstance(value, tuple) else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return callback


def _parse_time_to_live(text: str) -> int | str:
    return FOREVER if text.strip().lower() == FOREVER else parse_duration(text)


def _parse_export(flag: _ExportFlag) -> Callable[[str], ExportConfig]:
    parts = flag.metavar.count("=") + 1

    def parse(text: str) -> ExportConfig:
        # An identifier has no `=`, and a URI may.
        given = text.split("=", parts - 1)
        if len(given) < parts or not all(given):
            raise ValueError(f"{text!r}: expected {flag.metavar}")
        return flag.config(*given)

    return parse


def _export_option(flag: _ExportFlag) -> Callable[..., Any]:
    return click.option(
        flag.flag,
        flag.kind,
        multiple=True,
        metavar=flag.metavar,
        callback=_parsed(_parse_export(flag)),
        help=f"Export to {flag.help}. May be repeated.",
    )


def short_name(choice: StrategyOnFull | Persistence) -> str:
    """Its first word: what the flags call it."""
    return re.sub(r"(?<=[a-z])[A-Z].*", "", choice.name).lower()


def _choice_option(flag: str, field: str, kind: Any, text: str) -> Callable[..., Any]:
    members = {name(choice): choice for name in (short_name, _name) for choice in kind}
    return click.option(
        flag,
        field,
        type=click.Choice(list(members), case_sensitive=False),
        metavar=f"[{'|'.join(short_name(choice) for choice in kind)}]",
        callback=_parsed(members.__getitem__),
        help=text,
    )


def _name(choice: Enum) -> str:
    return choice.name


_OPTIONS = (
    click.option(
        "--max-size",
        metavar="SIZE",
        callback=_parsed(parse_size),
        help="How much it may hold, such as 64MiB or 1GB (new streams: 256 MiB).",
    ),
    click.option(
        "--segment-size",
        "stream_segment_size",
        metavar="SIZE",
        callback=_parsed(parse_size),
        help="How large a file of it gets before it begins another (new streams: 16 MiB).",
    ),
    click.option(
        "--ttl",
        "time_to_live_millis",
        metavar="DURATION",
        callback=_parsed(_parse_time_to_live),
        help="How long messages are kept, such as 90s, 2h or 7d, or none (new streams: none).",
    ),
    _choice_option(
        "--on-full",
        "strategy_on_full",
        StrategyOnFull,
        "What a full stream does: refuse new messages, or drop its oldest (new streams: "
        "overwrite, so that those who append can go on).",
    ),
    _choice_option(
        "--persistence",
        "persistence",
        Persistence,
        "Where messages are kept; it cannot be changed later (new streams: file).",
    ),
    click.option(
        "--flush-on-write/--no-flush-on-write",
        default=None,
        help="Whether an append is answered only once it is on the disk (new streams: no).",
    ),
    *map(_export_option, _EXPORT_FLAGS),
)


def definition_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The flags for all that a definition holds, under the names of its fields and exports."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def change_definition(
    definition: MessageStreamDefinition,
    flags: Mapping[str, Any],
    changes: ExportChanges = NO_CHANGES,
) -> MessageStreamDefinition:
    """The definition with just what the flags name changed; Failure if that is not one."""
    _check_identifiers(definition, changes)
    kinds = ExportDefinition.__struct_fields__
    exports = {
        kind: [
            *_changed_exports(getattr(definition.export_definition, kind) or (), changes),
            *flags.get(kind, ()),
        ]
        for kind in kinds
    }
    fields = {name: value for name, value in flags.items() if name not in kinds}
    if fields.get("time_to_live_millis") == FOREVER:
        fields["time_to_live_millis"] = None
    changed = msgspec.structs.replace(
        definition,
        **fields,
        export_definition=ExportDefinition(
            **{kind: configs for kind, configs in exports.items() if configs}
        ),
    )
    try:
        validate(changed)
        changed.validate_exports()
    except StreamManagerException as error:
        raise Failure(error.message, WRONG_USAGE) from None
    return changed


def _changed_exports(
    configs: Iterable[ExportConfig], changes: ExportChanges
) -> Iterable[ExportConfig]:
    states = dict.fromkeys(changes.paused, True) | dict.fromkeys(changes.resumed, False)
    for config in configs:
        if config.identifier in changes.removed:
            continue
        if config.identifier in states:
            yield msgspec.structs.replace(config, disabled=states[config.identifier])
        else:
            yield config


def _check_identifiers(definition: MessageStreamDefinition, changes: ExportChanges) -> None:
    known = [export.identifier for export in definition.exports()]
    seen: set[str] = set()
    for identifiers in changes:
        for identifier in dict.fromkeys(identifiers):
            if identifier not in known:
                raise Failure(
                    f"the stream {definition.name!r} has no export {identifier!r}; "
                    f"{_right_identifier(identifier, known)}",
                    NOT_FOUND,
                )
            if identifier in seen:
                raise Failure(
                    f"the export {identifier!r} can be removed, paused or resumed, but only one "
                    "of them at a time",
                    WRONG_USAGE,
                )
            seen.add(identifier)


def _right_identifier(wrong: str, known: list[str]) -> str:
    near = difflib.get_close_matches(wrong, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"it has {', '.join(map(repr, known)) or 'none'}"
