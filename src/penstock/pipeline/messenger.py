"""What a task has to tell the broker at once, and cannot leave to the end of its batch."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import NamedTuple, Self

from penstock.client.blocking import StreamManagerClient
from penstock.model.exporting import ExportReport
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
        with self._lock:
            if self._client is None:
                self._client = self._place.connect(patient=True)
        answer = self._client.commit_exports([report])
        return Echo(report.lease in answer.accepted, answer.is_awaited)

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
