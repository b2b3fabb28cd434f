"""The dead-letter stream: messages that a destination never takes, with the reason.

Each is JSON: `streamName`, `sequenceNumber`, `ingestTime` and `payload` (base64) of the message,
`exportIdentifier`, `reason`, and `time`, when it was skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from penstock.broker.streams import Stream, Streams
from penstock.errors import (
    MessageStoreReadErrorException,
    ResourceNotFoundException,
    StreamManagerException,
)
from penstock.model import MessageStreamDefinition, StrategyOnFull
from penstock.model.exporting import DeliveryReport, SkippedMessage

logger = logging.getLogger(__name__)

# As many as a slice is told of; others arrive again.
_MOST_ARRIVED = 1024


class _DeadLetter(msgspec.Struct, rename="camel"):
    stream_name: str
    sequence_number: int
    ingest_time: int
    payload: bytes
    export_identifier: str
    reason: str
    time: int


class DeadLetters:
    def __init__(self, streams: Streams, name: str) -> None:
        self._streams = streams
        # Empty if there is none.
        self._name = name
        # Why the stream could not be created.
        self._problem: StreamManagerException | None = None

    def keep(self, stream: Stream, report: DeliveryReport, now: int) -> DeliveryReport:
        """Stores what was skipped; the report as far as that worked.

        What cannot be kept is not skipped: the export stays before it, and says why.
        """
        # One that cannot be exported from the dead-letter stream itself would come back for ever.
        if not self._name or not report.skipped or stream.name == self._name:
            return report
        for place, skipped in enumerate(report.skipped):
            try:
                self._keep_one(stream, report.identifier, skipped, now)
            except StreamManagerException as error:
                # They come as they were found, which need not be in order.
                left = {unkept.sequence_number for unkept in report.skipped[place:]}
                end = min(report.settled_end, *left)
                # Those behind it have arrived all the same, and need not arrive twice.
                behind = {*range(end, report.settled_end), *report.arrived} - left
                return msgspec.structs.replace(
                    report,
                    settled_end=end,
                    arrived=sorted(behind)[:_MOST_ARRIVED],
                    skipped=report.skipped[:place],
                    # They are tried again, and then it happens again.
                    events=[each for each in report.events if each.sequence_number not in left],
                    error=f"the dead-letter stream {self._name!r} takes nothing: {error.message}",
                )
        return report

    def _keep_one(self, stream: Stream, identifier: str, skipped: SkippedMessage, now: int) -> None:
        number = skipped.sequence_number
        if not stream.log.oldest <= number < stream.log.end:
            return  # dropped meanwhile: there is nothing left to keep
        try:
            run = stream.read(number, number + 1, 1)
        except MessageStoreReadErrorException as error:
            # Nor is there of one that is damaged, and waiting would not mend it.
            logger.warning("no dead letter can be kept: %s", error.message)
            return
        letter = _DeadLetter(
            stream.name,
            number,
            run.ingest_times[0],
            run.payloads[0],
            identifier,
            skipped.reason,
            now,
        )
        self._find().append([msgspec.json.encode(letter)], now, keeps_min_free=False)

    def _find(self) -> Stream:
        try:
            return self._streams.find(self._name)
        except ResourceNotFoundException:
            if self._problem is not None:
                raise self._problem from None
            raise

    def needs_stream(self, reports: Sequence[DeliveryReport]) -> bool:
        """Whether messages are to be kept while there is no stream to keep them in."""
        if not self._name or not any(report.skipped for report in reports):
            return False
        if self._name in self._streams.names():
            return False
        return any(self._has_any(report) for report in reports)

    def _has_any(self, report: DeliveryReport) -> bool:
        """Whether any of the messages that were skipped is still there."""
        try:
            log = self._streams.find(report.stream).log
        except StreamManagerException:
            return False
        return any(log.oldest <= each.sequence_number < log.end for each in report.skipped)

    async def create_stream(self) -> None:
        """Create the stream, before `keep`, which says why if that fails."""
        self._problem = None
        definition = MessageStreamDefinition(
            name=self._name, strategy_on_full=StrategyOnFull.OverwriteOldestData
        )
        try:
            await self._streams.create(definition)
        except StreamManagerException as error:
            self._problem = error

    def sync(self) -> Callable[[], None]:
        """What brings the letters to the disk; it may be called from a thread."""
        try:
            return self._streams.find(self._name).log.sync if self._name else lambda: None
        except StreamManagerException:
            return lambda: None
