"""The requests of pipelines: plans, reservations of bandwidth, and reports."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, Protocol, TypeAlias

from penstock.broker.access import Access
from penstock.broker.bulk import BrokerLocation
from penstock.broker.exports.engine import Exports, Plan, WakeCondition
from penstock.broker.exports.pipelines import Pipelines
from penstock.broker.exports.progress import ProgressWriter, ReportBatch
from penstock.broker.exports.work_source import Holder
from penstock.broker.streams import Streams
from penstock.broker.waiting import Waiter, Waiters, seconds_to_wait
from penstock.errors import StreamManagerException, UnknownFailureException
from penstock.model.exporting import DeliveryReport
from penstock.model.validation import to_wire
from penstock.store.store import Store
from penstock.wire.operations import Operation
from penstock.wire.requests import (
    CommitExportsRequest,
    PlanExportsRequest,
    Request,
    ReserveBandwidthRequest,
)

logger = logging.getLogger(__name__)


# Called with the leases of accepted reports.
_Succeed: TypeAlias = Callable[[list[str]], None]
_Fail: TypeAlias = Callable[[StreamManagerException], None]


class ExportCall(Protocol):
    @property
    def access(self) -> Access: ...
    def succeed(self, **fields: Any) -> None: ...
    def fail(self, error: StreamManagerException) -> None: ...
    def allow_seconds(self, seconds: float) -> None: ...
    def work(self, steps: Iterator[None]) -> None: ...
    def on_close(self, cancel: Callable[[], object]) -> None: ...
    def on_connection_lost(self, key: Hashable, callback: Callable[[], object]) -> None: ...


class ExportHandlers:
    def __init__(
        self,
        store: Store,
        streams: Streams,
        exports: Exports,
        pipelines: Pipelines,
        location: BrokerLocation,
        executor: Executor,
        now_millis: Callable[[], int],
    ) -> None:
        self._store = store
        self._streams = streams
        self._exports = exports
        self._pipelines = pipelines
        self._location = location
        self._now_millis = now_millis
        self.progress = ProgressWriter(store.progress_log, executor, self._suspend)
        exports.bandwidth.on_change = self.recheck_plans
        # Creations of the dead-letter stream.
        self._creations: set[asyncio.Task[None]] = set()
        # The last request of each connected task.
        self._latest: dict[Holder, _PlanCall] = {}
        # Pipelines whose tasks are to end.
        self._stopping: set[str] = set()

    def table(self) -> dict[type[Request], Callable[[Any, Any], None]]:
        return {
            PlanExportsRequest: self._plan,
            CommitExportsRequest: self._commit,
            ReserveBandwidthRequest: self._reserve,
        }

    # Plans

    def _plan(self, call: ExportCall, request: PlanExportsRequest) -> None:
        """Accepts the reports of the request, and answers when work is due."""
        call.access.require(request.operation)
        self._require_access(call, request.reports)
        plan_call = _PlanCall(call, request, self._streams, self._answer)
        holder = plan_call.holder
        before = self._latest.get(holder)
        self._latest[holder] = plan_call
        if before is not None:
            plan_call.known_ending = before.known_ending
            # It may be pending on a connection that the task has lost.
            before.recheck_soon()
        if request.stops:
            self._stopping.add(request.pipeline)
            self.recheck_plans()
        if request.max_slices:
            # Deliveries whose reports the request contains are not forgotten yet.
            reported = [report.lease for report in request.reports]
            self._pipelines.note_request(holder, [*request.holding, *reported], request.about)
        call.on_connection_lost(holder, lambda: self._note_disconnect(plan_call))
        if request.reports:
            self._accept_reports(request.reports, lambda _: plan_call.start(), call.fail)
        else:
            plan_call.start()

    def _answer(self, plan_call: _PlanCall, may_be_empty: bool) -> WakeCondition | None:
        """Answers if work is due; otherwise returns when to check again."""
        request, call = plan_call.request, plan_call.call
        stops = request.pipeline in self._stopping
        plan = Plan([], 0, [])
        if self._latest.get(plan_call.holder) is plan_call:
            plan, condition = self._exports.plan(
                request, call.access.sees, self._now_millis(), leases=not stops
            )
            if plan.frees_leases:
                self.recheck_plans()
            has_paused = not set(plan.ending) <= set(plan_call.known_ending)
            if not (plan.work or plan.lost or has_paused or stops or may_be_empty):
                return condition
            plan_call.known_ending = plan.ending
            self._pipelines.note_work(plan_call.holder, plan.work)
        call.succeed(
            root=self._location.root,
            instance=self._location.instance,
            work=[to_wire(each) for each in plan.work],
            waiting=plan.waiting,
            tasks=self._pipelines.count_tasks(request.pipeline),
            lost=plan.lost,
            ending=plan.ending,
            stops=stops,
        )
        return None

    def _note_disconnect(self, plan_call: _PlanCall) -> None:
        holder = plan_call.holder
        # Unless it has reconnected already.
        if self._latest.get(holder) is plan_call:
            del self._latest[holder]
            self._exports.note_disconnect(holder)
            self._pipelines.note_disconnect(holder)
            if not any(each.pipeline == holder.pipeline for each in self._latest):
                self._stopping.discard(holder.pipeline)
            self.recheck_plans()

    def recheck_plans(self) -> None:
        """Checks pending plans again: work may have become due."""
        for plan_call in self._latest.values():
            plan_call.recheck_soon()

    def _suspend(self, error: str) -> None:
        """Suspends exports because of an error; without an error, resumes them."""
        self._exports.suspension = error
        if not error:
            self.recheck_plans()

    # Bandwidth

    def _reserve(self, call: ExportCall, request: ReserveBandwidthRequest) -> None:
        call.access.require(request.operation)
        found = self._exports.find_lease(request.lease)
        if found is None or not call.access.sees(found.stream_name):
            call.succeed(isGranted=False, isHeld=False)
            return
        if not request.size:
            call.succeed(isGranted=True, isHeld=True)
            return

        def is_held() -> bool:
            return self._exports.find_lease(request.lease) is found

        def answer(is_granted: bool) -> None:
            held = is_held()
            call.succeed(isGranted=is_granted and held, isHeld=held)

        seconds = seconds_to_wait(request.wait_millis)
        cancel = self._exports.bandwidth.reserve(
            found.priority, request.size, seconds, is_held, answer
        )
        if cancel is not None:
            call.allow_seconds(request.wait_millis / 1000)
            call.on_close(cancel)

    # Reports

    def _commit(self, call: ExportCall, request: CommitExportsRequest) -> None:
        call.access.require(request.operation)
        self._require_access(call, request.reports)
        self._accept_reports(
            request.reports, lambda leases: call.succeed(accepted=leases), call.fail
        )

    def _require_access(self, call: ExportCall, reports: Sequence[DeliveryReport]) -> None:
        for report in reports:
            call.access.require(Operation.CommitExports, report.stream)

    def _accept_reports(
        self, reports: Sequence[DeliveryReport], succeed: _Succeed, fail: _Fail
    ) -> None:
        """Calls `succeed` with the leases of the accepted reports, or `fail`."""
        if not self._exports.dead_letters.needs_stream(reports):
            self._store_reports(reports, succeed, fail)
            return

        async def create_and_accept() -> None:
            try:
                await self._exports.dead_letters.create_stream()
                self._store_reports(reports, succeed, fail)
            except Exception:
                logger.exception("cannot process export reports")
                fail(UnknownFailureException("internal error; see the log of the server"))

        task = asyncio.get_running_loop().create_task(create_and_accept())
        self._creations.add(task)
        task.add_done_callback(self._creations.discard)

    def _store_reports(
        self, reports: Sequence[DeliveryReport], succeed: _Succeed, fail: _Fail
    ) -> None:
        batch = self._exports.accept(reports, self._now_millis())
        if not batch.accepted:
            succeed(batch.accepted_leases(are_stored=not self.progress.error))
            return
        change = self._store.change_progress(batch.progress(), batch.uploads())
        syncs = [self._exports.dead_letters.sync()] if batch.has_skipped else []
        if not batch.may_be_stored_later:
            syncs.append(self._exports.statuses.sync())

        def sync() -> None:
            for each in syncs:
                each()

        def finish(error: BaseException | None) -> bool:
            # An upload has to be on the disk before it is created: such a report is not kept.
            is_kept = isinstance(error, (OSError, sqlite3.Error)) and batch.is_final
            if error is not None and not is_kept:
                self._exports.cancel(batch)
                self.recheck_plans()
                fail(_explain(error))
                return False
            change.apply()
            self._exports.apply(batch)
            for each in batch.accepted:
                self._pipelines.note_report(each.lease.holder, each.sent)
            succeed(batch.accepted_leases(are_stored=error is None))
            self._update_pending_plans(batch)
            return is_kept

        if batch.may_be_stored_later:
            self.progress.store_later(change, sync)
            finish(None)
        else:
            self.progress.store_now(change, sync, finish)

    def _update_pending_plans(self, batch: ReportBatch) -> None:
        """Makes pending plans wait for the next messages of exports whose reports are stored."""
        condition = self._exports.find_wake_condition(batch, self._now_millis())
        if condition is None:
            self.recheck_plans()
            return
        for plan_call in self._latest.values():
            plan_call.extend_wait(condition)


def _explain(error: BaseException) -> UnknownFailureException:
    if isinstance(error, (OSError, sqlite3.Error)):
        return UnknownFailureException(f"the disk of the server failed: {error}")
    return UnknownFailureException(f"the server failed: {error!r}")


class _PlanCall:
    """A request for a plan, pending until work is due."""

    def __init__(
        self,
        call: ExportCall,
        request: PlanExportsRequest,
        streams: Streams,
        answer: Callable[[_PlanCall, bool], WakeCondition | None],
    ) -> None:
        """`answer` answers the call if work is due, or in any case if the answer may be empty."""
        self.call = call
        self.request = request
        self.holder = Holder(request.pipeline, request.task)
        # Leases of paused exports that the task knows.
        self.known_ending: Sequence[str] = ()
        self._streams = streams
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + seconds_to_wait(request.wait_millis)
        self._waiters: list[Waiter] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_pending = False
        self._is_late = not request.wait_millis
        self._rechecks_soon = False

    def start(self) -> None:
        condition = self._answer(self, self._is_late)
        if condition is not None:
            self._is_pending = True
            self.call.allow_seconds(self.request.wait_millis / 1000)
            self.call.on_close(self._cancel)
            self._wait(condition)

    def _wait(self, condition: WakeCondition) -> None:
        self._add(self._streams.change_waiters, self._streams.change_count + 1)
        self.extend_wait(condition._replace(at=min(condition.at, self._deadline)))

    def extend_wait(self, condition: WakeCondition) -> None:
        """If the request is pending, checks it again also under this condition."""
        if not self._is_pending:
            return
        for stream, end in condition.needed_ends:
            self._add(stream.waiters, end)
        if self._timer is None or condition.at < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(condition.at, self.recheck_soon)

    def _add(self, waiters: Waiters, end: int) -> None:
        waiter = Waiter(end, self._wake, is_reader=False)
        self._waiters.append(waiter)
        waiters.add(waiter)

    def _wake(self, reached: bool) -> None:
        # If the end is not reached, a stream was deleted or the broker stops.
        self._is_late = self._is_late or not reached
        self.recheck_soon()

    def recheck_soon(self) -> None:
        """Checks in a later turn of the event loop, because an append may run in this one."""
        if self._is_pending and not self._rechecks_soon:
            self._rechecks_soon = True
            self.call.work(self._recheck())

    def _recheck(self) -> Iterator[None]:
        self._rechecks_soon = False
        self._stop_waiting()
        if self._is_pending:
            is_late = self._is_late or self._loop.time() >= self._deadline
            condition = self._answer(self, is_late)
            if condition is None:
                self._is_pending = False
            else:
                self._wait(condition)
        yield from ()

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiter in self._waiters:
            waiter.cancel()
        self._waiters.clear()

    def _cancel(self) -> None:
        self._is_pending = False
        self._stop_waiting()
