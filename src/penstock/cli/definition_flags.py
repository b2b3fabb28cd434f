"""Definitions of streams in flags: what each of them sets, and a definition changed by them."""

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
    HTTPConfig,
    IoTAnalyticsConfig,
    IoTSiteWiseConfig,
    KinesisConfig,
    MessageStreamDefinition,
    Persistence,
    S3ExportTaskExecutorConfig,
    StrategyOnFull,
)
from penstock.model.export_definition import S3_TASK_EXECUTOR
from penstock.model.limits import MIN_TIME_TO_LIVE_MILLIS
from penstock.model.validation import validate

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
    _ExportFlag("--s3", S3_TASK_EXECUTOR, S3ExportTaskExecutorConfig, "ID", "S3, file by file"),
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
    if text.strip().lower() == FOREVER:
        return FOREVER
    millis = parse_duration(text)
    if millis < MIN_TIME_TO_LIVE_MILLIS:
        raise ValueError(f"{text!r}: expected a minute at least")
    return millis


def _parse_export(flag: _ExportFlag) -> Callable[[str], ExportConfig]:
    parts = flag.metavar.count("=") + 1

    def parse(text: str) -> ExportConfig:
        # An identifier has no `=`, and a URI may.
        given = text.split("=", parts - 1)
        if len(given) < parts or not all(given):
            raise ValueError(f"{text!r}: expected {flag.metavar}")
        if flag.config is HTTPConfig and not re.match(r"https?://[^/]", given[1], re.IGNORECASE):
            raise ValueError(f"{given[1]!r}: expected a URI that begins with http:// or https://")
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
    """Takes the long names too, which are those of the SDKs, and shows the short ones."""

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
        help="How long messages are kept, such as 2h or 7d and a minute at least, or none (new "
        "streams: none).",
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
    seen: set[str] = set()
    for identifiers in changes:
        for identifier in dict.fromkeys(identifiers):
            find_export(definition, identifier)
            if identifier in seen:
                raise Failure(
                    f"the export {identifier!r} can be removed, paused or resumed, but only one "
                    "of them at a time",
                    WRONG_USAGE,
                )
            seen.add(identifier)


def find_export(definition: MessageStreamDefinition, identifier: str) -> ExportConfig:
    """The export of a definition; a failure that names the known ones if it has none such."""
    exports = {export.identifier: export for export in definition.exports()}
    if identifier not in exports:
        raise Failure(
            f"the stream {definition.name!r} has no export {identifier!r}; "
            f"{_right_identifier(identifier, list(exports))}",
            NOT_FOUND,
        )
    return exports[identifier]


def _right_identifier(wrong: str, known: list[str]) -> str:
    near = difflib.get_close_matches(wrong, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"it has {', '.join(map(repr, known)) or 'none'}"
