"""The dead-letter stream: messages that a destination never accepts, with the reason.

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
from penstock.model.exporting import MAX_ARRIVED, DeliveryReport, SkippedMessage

logger = logging.getLogger(__name__)


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
        """With an empty name there is no dead-letter stream."""
        self._streams = streams
        self._name = name
        # Why the stream could not be created.
        self._problem: StreamManagerException | None = None

    def keep(self, stream: Stream, report: DeliveryReport, now: int) -> DeliveryReport:
        """Stores skipped messages.

        A message that cannot be stored is not skipped: the returned report ends before it, with an
        error.
        """
        # A skipped message of the dead-letter stream itself would be skipped again and again.
        if not self._name or not report.skipped or stream.name == self._name:
            return report
        for place, skipped in enumerate(report.skipped):
            try:
                self._keep_one(stream, report.identifier, skipped, now)
            except StreamManagerException as error:
                # Skipped messages need not be in order.
                unstored = {each.sequence_number for each in report.skipped[place:]}
                end = min(report.settled_end, *unstored)
                # Later messages have arrived, and are not sent again.
                later = {*range(end, report.settled_end), *report.arrived} - unstored
                return msgspec.structs.replace(
                    report,
                    settled_end=end,
                    arrived=sorted(later)[:MAX_ARRIVED],
                    skipped=report.skipped[:place],
                    # Tasks that are not skipped are retried, and end later.
                    events=[each for each in report.events if each.sequence_number not in unstored],
                    error=f"cannot append to dead-letter stream {self._name!r}: {error.message}",
                )
        return report

    def _keep_one(self, stream: Stream, identifier: str, skipped: SkippedMessage, now: int) -> None:
        number = skipped.sequence_number
        if not _has(stream, skipped):
            return
        try:
            run = stream.read(number, number + 1, 1)
        except MessageStoreReadErrorException as error:
            # A retry would not repair a damaged message.
            logger.warning("cannot store a dead letter: %s", error.message)
            return
        time, payload = run.ingest_times[0], run.payloads[0]
        letter = _DeadLetter(stream.name, number, time, payload, identifier, skipped.reason, now)
        self._find().append([msgspec.json.encode(letter)], now, keeps_min_free=False)

    def _find(self) -> Stream:
        try:
            return self._streams.find(self._name)
        except ResourceNotFoundException as error:
            raise self._problem or error from None

    def needs_stream(self, reports: Sequence[DeliveryReport]) -> bool:
        """Whether messages are to be stored and the stream does not exist."""
        skips = [report for report in reports if report.skipped]
        if not self._name or not skips or self._name in self._streams.names():
            return False
        return any(self._has_skipped(report) for report in skips)

    def _has_skipped(self, report: DeliveryReport) -> bool:
        """Whether the stream has any of the skipped messages."""
        try:
            stream = self._streams.find(report.stream)
        except StreamManagerException:
            return False
        return any(_has(stream, each) for each in report.skipped)

    async def create_stream(self) -> None:
        """Creates the stream. If that fails, `keep` reports the error."""
        self._problem = None
        definition = MessageStreamDefinition(
            name=self._name, strategy_on_full=StrategyOnFull.OverwriteOldestData
        )
        try:
            await self._streams.create(definition)
        except StreamManagerException as error:
            self._problem = error

    def sync(self) -> Callable[[], None]:
        """Returns a function that syncs the letters; it may run in any thread."""
        try:
            return self._streams.find(self._name).log.sync if self._name else lambda: None
        except StreamManagerException:
            return lambda: None


def _has(stream: Stream, skipped: SkippedMessage) -> bool:
    """False if the message was dropped."""
    return stream.log.oldest <= skipped.sequence_number < stream.log.end
