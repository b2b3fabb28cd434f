"""Client operations for Penstock's own Spark connector and export pipeline. Not a public API.

These operations may change with any version, together with the broker. They need a server with
Penstock's extensions; any other server answers with UnknownOperationException.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.client import calls
from penstock.client.blocking import StreamManagerClient
from penstock.model.exporting import (
    CommittedReports,
    DeliveryReport,
    ExportPlan,
    PipelineDescription,
    ReservedBandwidth,
)
from penstock.model.storage import Location, StoredRun, StreamPosition


class InternalClient(StreamManagerClient):
    """The blocking client with the operations of the Spark connector and the export pipeline."""

    # Streams as DataFrames

    def watch_streams(
        self,
        patterns: Sequence[str],
        next_numbers: Mapping[str, int] | None = None,
        wait_millis: int = 0,
    ) -> list[StreamPosition]:
        """Returns the position of each stream whose name matches a pattern (`*`, `?`, `[…]`).

        Waits until a stream has a message at its next number or above, until a stream without a
        next number matches, or until the timeout.
        """
        return self._call(
            calls.watch_streams(patterns, next_numbers or {}, wait_millis, self.request_timeout)
        )

    def locate_messages(
        self, stream_name: str, stream_id: str, start: int, end: int, max_bytes: int | None = None
    ) -> Location:
        """Returns the segments that hold [start, end), and the end of max_bytes."""
        return self._call(calls.locate_messages(stream_name, stream_id, start, end, max_bytes))

    def read_stored(
        self, stream_name: str, stream_id: str, start: int, end: int, max_bytes: int
    ) -> StoredRun:
        """Reads messages in the format of the files, unchecked; as many as fit one response."""
        return self._call(calls.read_stored(stream_name, stream_id, start, end, max_bytes))

    # Exports

    def plan_exports(
        self,
        pipeline: str,
        task: str,
        *,
        lease_millis: int,
        holding: Sequence[str] = (),
        reports: Sequence[DeliveryReport] = (),
        max_slices: int = 256,
        max_bytes: int = 64 * 1024 * 1024,
        max_priority: int | None = None,
        wait_millis: int = 0,
        about: PipelineDescription | None = None,
        stops: bool = False,
    ) -> ExportPlan:
        """Leases due work to a task of a pipeline; waits for work until the timeout."""
        return self._call(
            calls.plan_exports(
                pipeline,
                task,
                lease_millis=lease_millis,
                holding=holding,
                reports=reports,
                max_slices=max_slices,
                max_bytes=max_bytes,
                max_priority=max_priority,
                wait_millis=wait_millis,
                about=about,
                stops=stops,
                request_timeout=self.request_timeout,
            )
        )

    def commit_exports(self, reports: Sequence[DeliveryReport]) -> CommittedReports:
        """Reports deliveries; the response names the leases whose reports were accepted."""
        return self._call(calls.commit_exports(reports))

    def reserve_bandwidth(
        self, lease: str, size: int, *, wait_millis: int = 0
    ) -> ReservedBandwidth:
        """Reserves bandwidth for bytes of a file; waits until it is available."""
        call = calls.reserve_bandwidth(
            lease, size, wait_millis=wait_millis, request_timeout=self.request_timeout
        )
        return self._call(call)
