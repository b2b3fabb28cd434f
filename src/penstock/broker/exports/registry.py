"""The exports of all streams, as their definitions are now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.broker.exports.export import Export
from penstock.broker.exports.task_export import TaskExport
from penstock.broker.streams import Stream, Streams
from penstock.model import ExportConfig, MessageStreamDefinition

# Makes an export of a stream from its kind and its configuration.
MakeExport = Callable[[Stream, str, ExportConfig], Export]


class _Known(NamedTuple):
    """The exports of a stream, under one definition."""

    definition: MessageStreamDefinition
    exports: list[Export]


class Registry:
    """An export is kept from one definition to the next. Called from the event loop only."""

    def __init__(self, streams: Streams, make: MakeExport) -> None:
        self._streams = streams
        self._make = make
        # By the id of the stream.
        self._known: dict[str, _Known] = {}
        # The exports of all streams, after so many changes of streams.
        self._all: list[Export] = []
        self._changes = -1

    def __iter__(self) -> Iterator[Export]:
        return iter(self._find_all())

    @property
    def task_exports(self) -> list[TaskExport]:
        return [export for export in self._find_all() if isinstance(export, TaskExport)]

    def _find_all(self) -> list[Export]:
        if self._changes != self._streams.changed:
            changes = self._streams.changed
            streams = {stream.stored.id: stream for stream in self._streams}
            for stream_id in self._known.keys() - streams.keys():
                del self._known[stream_id]
            self._all = [export for stream in streams.values() for export in self._of(stream)]
            self._changes = changes
        return self._all

    def of(self, stream: Stream) -> dict[str, Export]:
        """The exports of one stream, by identifier."""
        return {export.identifier: export for export in self._of(stream)}

    def has(self, export: Export) -> bool:
        """False if it was removed, also if another one has its identifier."""
        stream = export.stream
        return self._streams.is_served(stream) and export in self._of(stream)

    def _of(self, stream: Stream) -> list[Export]:
        known = self._known.get(stream.stored.id)
        if known is None or known.definition is not stream.definition:
            known = self._known[stream.stored.id] = self._learn(stream, known)
        return known.exports

    def _learn(self, stream: Stream, known: _Known | None) -> _Known:
        before = {export.identifier: export for export in known.exports} if known else {}
        exports = []
        for kind, config in stream.definition.export_definition.configs_by_kind():
            known_export = export = before.get(config.identifier)
            export_id = stream.stored.progress[config.identifier].export_id
            if export is None or (export.id, export.kind) != (export_id, kind):
                export = self._make(stream, kind, config)
                if known_export is not None:
                    export.replace(known_export)
            export.change_config(config)
            exports.append(export)
        return _Known(stream.definition, exports)
