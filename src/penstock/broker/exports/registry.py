"""Which exports there are: those of the streams as they are defined now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.broker.exports.export import Export
from penstock.broker.streams import Stream, Streams
from penstock.model import MessageStreamDefinition
from penstock.model.exporting import Upload
from penstock.store.rows import UploadProgress


class _Known(NamedTuple):
    """The exports of a stream, under one definition."""

    definition: MessageStreamDefinition
    exports: list[Export]


class Registry:
    """What is known of each export. It is kept from one definition to the next."""

    def __init__(self, streams: Streams, begun: Iterable[UploadProgress]) -> None:
        """`begun`: the uploads that were going on when the broker was stopped."""
        self._streams = streams
        self._known: dict[str, _Known] = {}
        self._begun: dict[str, list[Upload]] = {}
        for tracked in begun:
            self._begun.setdefault(tracked.export_id, []).append(tracked.upload)

    def __iter__(self) -> Iterator[Export]:
        streams = {stream.stored.id: stream for stream in self._streams}
        for stream_id in self._known.keys() - streams.keys():
            del self._known[stream_id]
        for stream in streams.values():
            yield from self._of(stream)

    def known(self) -> Iterator[Export]:
        """Those of which anything is known, also if they are gone by now."""
        return (export for known in self._known.values() for export in known.exports)

    def of(self, stream: Stream) -> dict[str, Export]:
        """Those of one stream, by identifier."""
        return {export.identifier: export for export in self._of(stream)}

    def has(self, export: Export) -> bool:
        """Whether it is still this one: not removed, nor another one in its place."""
        stream = export.stream
        return self._streams.is_served(stream) and export in self._of(stream)

    def _of(self, stream: Stream) -> list[Export]:
        known = self._known.get(stream.stored.id)
        if known is None or known.definition is not stream.definition:
            known = self._known[stream.stored.id] = self._learn(stream, known)
        return known.exports

    def _learn(self, stream: Stream, known: _Known | None) -> _Known:
        """The exports of a definition; those that were there before go on."""
        before = {export.identifier: export for export in known.exports} if known else {}
        exports = []
        for kind, config in stream.definition.export_definition.configs_by_kind():
            export = before.get(config.identifier)
            export_id = stream.stored.progress[config.identifier].export_id
            if export is None or (export.id, export.kind) != (export_id, kind):
                export = Export(stream, kind, config, self._begun.pop(export_id, ()))
            export.change(config)
            exports.append(export)
        return _Known(stream.definition, exports)
