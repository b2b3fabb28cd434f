"""Moves exports to other sequence numbers, by updates and rewinds: pure functions."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.errors import InvalidRequestException, ResourceNotFoundException
from penstock.model import ExportConfig, MessageStreamDefinition


def start_of(export: ExportConfig) -> int | None:
    """The startSequenceNumber of an export; None for kinds without this field."""
    if not hasattr(export, "start_sequence_number"):
        return None
    return export.start_sequence_number or 0


def find_moves(current: MessageStreamDefinition, wanted: MessageStreamDefinition) -> dict[str, int]:
    """The exports that an update moves, because their startSequenceNumber changes."""
    before = {export.identifier: start_of(export) or 0 for export in current.exports()}
    return {
        export.identifier: start
        for export in wanted.exports()
        if (start := start_of(export)) is not None and before.get(export.identifier, start) != start
    }


def rewound(
    definition: MessageStreamDefinition, identifier: str, number: int, end: int
) -> MessageStreamDefinition:
    """The definition of a stream after one of its exports moves to `number`.

    An export never starts before its startSequenceNumber, so a higher one is lowered to `number`. A
    lower one stays: a program that repeats its definition must not move the export.
    """

    def lower_start(export: ExportConfig) -> ExportConfig:
        if (start_of(export) or 0) <= number:
            return export
        return msgspec.structs.replace(export, start_sequence_number=number)

    changed = change_export(definition, identifier, lower_start)
    if not 0 <= number <= end:
        raise InvalidRequestException(
            f"sequenceNumber is {number}: expected 0 to {end}, the next sequence number of the "
            f"stream {definition.name!r}"
        )
    return changed


def change_export(
    definition: MessageStreamDefinition,
    identifier: str,
    change: Callable[[ExportConfig], ExportConfig],
) -> MessageStreamDefinition:
    """Returns a new definition with one export changed."""
    exports = definition.export_definition
    for kind, config in exports.configs_by_kind():
        if config.identifier == identifier:
            changed = [change(each) if each is config else each for each in getattr(exports, kind)]
            return msgspec.structs.replace(
                definition, export_definition=msgspec.structs.replace(exports, **{kind: changed})
            )
    known = ", ".join(repr(each.identifier) for each in definition.exports()) or "none"
    raise ResourceNotFoundException(
        f"the stream {definition.name!r} has no export {identifier!r}: it has {known}"
    )
