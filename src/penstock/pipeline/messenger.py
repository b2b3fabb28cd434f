"""What a task has to tell the broker at once, and cannot leave to the end of its batch."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import NamedTuple, Self

from penstock.client.blocking import StreamManagerClient
from penstock.model.exporting import ExportReport, SliceHeader
from penstock.spark.mapped import is_here
from penstock.spark.place import Place


class Echo(NamedTuple):
    """What the broker says to a report."""

    # If it was not taken, the slice is not this task's any more.
    is_taken: bool
    # Others wait for the end of the batch.
    is_awaited: bool


class Messenger:
    """Connects when there is something to tell. For all threads of a task."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._client: StreamManagerClient | None = None

    def tell(self, report: ExportReport) -> Echo:
        answer = self._connected().commit_exports([report])
        return Echo(report.lease in answer.accepted, answer.is_awaited)

    def find_root(self, header: SliceHeader) -> str | None:
        """The broker's directory; None if the broker runs on another machine.

        A broker that was restarted since it planned the slice has another instance.
        """
        if is_here(header.root, header.instance):
            return header.root
        found = header.slice
        located = self._connected().locate_messages(
            found.stream, found.stream_id, found.first, found.first
        )
        return located.root if is_here(located.root, located.instance) else None

    def _connected(self) -> StreamManagerClient:
        with self._lock:
            if self._client is None:
                self._client = self._place.connect(patient=True)
            return self._client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
