"""Reports of all jobs of a task: those that end at about the same time share a request."""

from __future__ import annotations

import threading

from penstock.client.blocking import StreamManagerClient
from penstock.model.exporting import DeliveryReport


class _Pending:
    """A report that is not answered yet."""

    def __init__(self, report: DeliveryReport) -> None:
        self.report = report
        self.is_accepted: bool | None = None
        self.error: Exception | None = None

    @property
    def is_answered(self) -> bool:
        return self.is_accepted is not None or self.error is not None


class Reporter:
    """One thread sends the reports of all that wait; the next request takes what came meanwhile."""

    def __init__(self, client: StreamManagerClient) -> None:
        self._client = client
        self._condition = threading.Condition()
        self._waiting: list[_Pending] = []
        self._is_sending = False

    def commit(self, report: DeliveryReport) -> bool:
        """Whether the broker accepts it. It raises an error if the broker does not answer."""
        # The broker keeps final reports in memory while its disk fails, and no others: one request
        # with both would fail as a whole. So would one that is too large.
        if not report.is_final or report.events or report.skipped:
            return report.lease in self._client.commit_exports([report]).accepted
        pending = _Pending(report)
        with self._condition:
            self._waiting.append(pending)
            self._condition.wait_for(lambda: pending.is_answered or not self._is_sending)
            group = []
            if not pending.is_answered:
                group, self._waiting = self._waiting, []
                self._is_sending = True
        if group:
            self._send(group)
        if pending.error is not None:
            raise pending.error
        return bool(pending.is_accepted)

    def _send(self, group: list[_Pending]) -> None:
        accepted: frozenset[str] = frozenset()
        error: Exception | None = None
        try:
            accepted = self._client.commit_exports([each.report for each in group]).accepted
        except Exception as failure:  # noqa: BLE001 - each of those that wait raises it
            error = failure
        with self._condition:
            for each in group:
                each.is_accepted, each.error = each.report.lease in accepted, error
            self._is_sending = False
            self._condition.notify_all()
