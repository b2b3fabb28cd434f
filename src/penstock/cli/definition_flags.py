"""The options of `penstock streams` that set fields of a definition, and how they apply."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple

import click
import msgspec

from penstock.cli.main import NOT_FOUND, WRONG_USAGE, Failure
from penstock.cli.units import parse_duration, parse_size
from penstock.errors import StreamManagerException
from penstock.model import (
    ExportConfig,
    ExportDefinition,
    MessageStreamDefinition,
    Persistence,
    StrategyOnFull,
)
from penstock.model.export_definition import CONFIG_OF_KIND, S3_TASK_EXECUTOR
from penstock.model.limits import MIN_TIME_TO_LIVE_MILLIS
from penstock.model.validation import validate

FOREVER = "none"


class ExportChanges(NamedTuple):
    """Identifiers of existing exports to remove, pause or resume."""

    removed: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()


NO_CHANGES = ExportChanges()


class _ExportFlag(NamedTuple):
    """An option that adds an export. Other fields of an export need a definition file."""

    flag: str
    kind: str
    # The first fields of the configuration.
    metavar: str
    help: str
    # Raises ValueError if the value after the identifier is not valid.
    check: Callable[[str], None] | None = None


def _check_uri(uri: str) -> None:
    if not re.match(r"https?://[^/]", uri, re.IGNORECASE):
        raise ValueError(f"{uri!r}: expected a URI that begins with http:// or https://")


# One for each kind of export, in the order of the help.
EXPORT_FLAGS = (
    _ExportFlag("--kinesis", "kinesis", "ID=STREAM", "a Kinesis data stream"),
    _ExportFlag("--iot-analytics", "iot_analytics", "ID=CHANNEL", "an IoT Analytics channel"),
    _ExportFlag("--sitewise", "iot_sitewise", "ID", "IoT SiteWise asset properties"),
    _ExportFlag("--s3", S3_TASK_EXECUTOR, "ID", "S3; messages are upload tasks"),
    _ExportFlag("--http", "http", "ID=URI", "an HTTP server", _check_uri),
)


def _parsed(parse: Callable[[str], Any]) -> Callable[..., Any]:
    """A callback that parses the values of an option."""

    def callback(_context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
        if value is None:
            return None
        try:
            return tuple(map(parse, value)) if isinstance(value, tuple) else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return callback


def _parse_time_to_live(text: str) -> int | str:
    if text.strip().lower() == FOREVER:
        return FOREVER
    millis = parse_duration(text)
    if millis < MIN_TIME_TO_LIVE_MILLIS:
        raise ValueError(f"{text!r}: expected at least 1min")
    return millis


def _parse_export(flag: _ExportFlag) -> Callable[[str], ExportConfig]:
    parts = flag.metavar.count("=") + 1
    make: Callable[..., ExportConfig] = CONFIG_OF_KIND[flag.kind]

    def parse(text: str) -> ExportConfig:
        # An identifier contains no `=`, but a URI may.
        given = text.split("=", parts - 1)
        if len(given) < parts or not all(given):
            raise ValueError(f"{text!r}: expected {flag.metavar}")
        if flag.check is not None:
            flag.check(given[1])
        return make(*given)

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
    """The value of the option: the first word of the enum member's name, in lower case."""
    return re.sub(r"(?<=[a-z])[A-Z].*", "", choice.name).lower()


def _choice_option(flag: str, field: str, kind: Any, text: str) -> Callable[..., Any]:
    members = {short_name(choice): choice for choice in kind}
    return click.option(
        flag,
        field,
        type=_ShortName(members),
        metavar=f"[{'|'.join(members)}]",
        callback=_parsed(members.__getitem__),
        help=text,
    )


class _ShortName(click.Choice[str]):
    """Accepts the names of the SDKs too, but shows only the short names."""

    def __init__(self, members: Mapping[str, Enum]) -> None:
        super().__init__(list(members), case_sensitive=False)
        self._short_names = {member.name.lower(): name for name, member in members.items()}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(self._short_names.get(value.lower(), value), param, ctx)


_OPTIONS = (
    click.option(
        "--max-size",
        metavar="SIZE",
        callback=_parsed(parse_size),
        help="Maximum size of the stream, such as 64MiB or 1GB (new streams: 256MiB).",
    ),
    click.option(
        "--segment-size",
        "stream_segment_size",
        metavar="SIZE",
        callback=_parsed(parse_size),
        help="Size of a segment, the unit in which messages are evicted (new streams: 16MiB).",
    ),
    click.option(
        "--ttl",
        "time_to_live_millis",
        metavar="DURATION",
        callback=_parsed(_parse_time_to_live),
        help="Time to live of messages, such as 2h or 7d, at least 1min; none keeps them (new "
        "streams: none).",
    ),
    _choice_option(
        "--on-full",
        "strategy_on_full",
        StrategyOnFull,
        "When the stream is full: reject new messages, or overwrite the oldest (new streams: "
        "overwrite).",
    ),
    _choice_option(
        "--persistence",
        "persistence",
        Persistence,
        "Where messages are stored; cannot be changed later (new streams: file).",
    ),
    click.option(
        "--flush-on-write/--no-flush-on-write",
        default=None,
        help="Acknowledge an append only once it is on the disk (new streams: no).",
    ),
    *map(_export_option, EXPORT_FLAGS),
)


def definition_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options for a definition. The command gets them by field names and export kinds."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def change_definition(
    definition: MessageStreamDefinition,
    flags: Mapping[str, Any],
    changes: ExportChanges = NO_CHANGES,
) -> MessageStreamDefinition:
    """Applies flags and changes to a definition; Failure if the result is not valid."""
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
    seen: set[str] = set()
    for identifiers in changes:
        for identifier in dict.fromkeys(identifiers):
            find_export(definition, identifier)
            if identifier in seen:
                raise Failure(
                    f"the export {identifier!r} is given to more than one of --remove-export, "
                    "--pause and --resume: choose one",
                    WRONG_USAGE,
                )
            seen.add(identifier)


def find_export(definition: MessageStreamDefinition, identifier: str) -> ExportConfig:
    """Finds an export of a definition; Failure with the known identifiers if there is none."""
    exports = {export.identifier: export for export in definition.exports()}
    if identifier not in exports:
        raise Failure(
            f"the stream {definition.name!r} has no export {identifier!r}; "
            f"{_suggest_identifier(identifier, list(exports))}",
            NOT_FOUND,
        )
    return exports[identifier]


def _suggest_identifier(wrong: str, known: list[str]) -> str:
    near = difflib.get_close_matches(wrong, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"it has {', '.join(map(repr, known)) or 'no exports'}"
