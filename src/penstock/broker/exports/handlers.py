"""The requests of pipelines: plans of what is due, and reports about it."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, Protocol

from penstock.broker.access import Access
from penstock.broker.bulk import Premises
from penstock.broker.exports.bandwidth import Bandwidth
from penstock.broker.exports.dead_letters import DeadLetters
from penstock.broker.exports.deliverable import Holder
from penstock.broker.exports.engine import Exports, Outlook, Plan
from penstock.broker.exports.pipelines import Pipelines
from penstock.broker.exports.progress import ProgressWriter, Settlement
from penstock.broker.exports.statuses import Statuses
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


class PendingCall(Protocol):
    @property
    def access(self) -> Access: ...
    def succeed(self, **fields: Any) -> None: ...
    def fail(self, error: StreamManagerException) -> None: ...
    def allow_seconds(self, seconds: float) -> None: ...
    def work(self, steps: Iterator[None]) -> None: ...
    def on_close(self, cancel: Callable[[], object]) -> None: ...
    def on_departure(self, key: Hashable, say_farewell: Callable[[], object]) -> None: ...


class ExportHandlers:
    def __init__(
        self,
        store: Store,
        streams: Streams,
        exports: Exports,
        bandwidth: Bandwidth,
        dead_letters: DeadLetters,
        statuses: Statuses,
        pipelines: Pipelines,
        premises: Premises,
        executor: Executor,
        now_millis: Callable[[], int],
    ) -> None:
        self._store = store
        self._streams = streams
        self._exports = exports
        self._dead_letters = dead_letters
        self._statuses = statuses
        self._pipelines = pipelines
        self._premises = premises
        self._now_millis = now_millis
        self.progress = ProgressWriter(store.progress_log, executor, self._suspend)
        self._bandwidth = bandwidth
        bandwidth.on_change = self.look_again
        self._pending: set[_PendingPlan] = set()
        # Creations of the dead-letter stream.
        self._creations: set[asyncio.Task[None]] = set()
        # The last plan that a task asked for, as long as it is connected.
        self._latest: dict[Holder, PlanExportsRequest] = {}
        # Leases of paused exports that were named in the last answer to a task.
        self._known_ending: dict[Holder, Sequence[str]] = {}
        # Pipelines whose tasks are to end.
        self._stopping: set[str] = set()

    def table(self) -> dict[type[Request], Callable[[Any, Any], None]]:
        return {
            PlanExportsRequest: self._plan,
            CommitExportsRequest: self._commit,
            ReserveBandwidthRequest: self._reserve,
        }

    # Plans

    def _plan(self, call: PendingCall, request: PlanExportsRequest) -> None:
        call.access.require(request.operation)
        if request.reports:
            self._require_access(call, request.reports)
            self._settle(request.reports, lambda _: self._plan_settled(call, request), call.fail)
        else:
            self._plan_settled(call, request)

    def _plan_settled(self, call: PendingCall, request: PlanExportsRequest) -> None:
        """Answers when something is due. The reports of the request are settled."""
        holder = Holder(request.pipeline, request.task)
        self._latest[holder] = request
        # A plan for which the task still waits on a connection that it has lost.
        for pending in [each for each in self._pending if each.holder == holder]:
            pending.look_soon()
        if request.stops:
            self._stopping.add(request.pipeline)
            self.look_again()
        if request.max_slices:
            self._pipelines.note_request(holder, request.holding, request.about)
        call.on_departure(holder, lambda: self._depart(holder, request))
        outlook = self._answer_plan(call, request, may_be_empty=not request.wait_millis)
        if outlook is None:
            return
        call.allow_seconds(request.wait_millis / 1000)
        pending = _PendingPlan(
            call,
            holder,
            seconds_to_wait(request.wait_millis),
            lambda may_be_empty: self._answer_plan(call, request, may_be_empty=may_be_empty),
            self._streams,
            self._pending.discard,
        )
        self._pending.add(pending)
        call.on_close(pending.cancel)
        pending.wait(outlook)

    def _answer_plan(
        self, call: PendingCall, request: PlanExportsRequest, *, may_be_empty: bool
    ) -> Outlook | None:
        """Answers if something is due; otherwise what to wait for."""
        holder = Holder(request.pipeline, request.task)
        stops = request.pipeline in self._stopping
        plan = Plan([], 0, [])
        if self._latest.get(holder) is request:
            plan, outlook = self._exports.plan(
                request, call.access.sees, self._now_millis(), leases=not stops
            )
            if plan.frees_leases:
                self.look_again()
            is_paused = not set(plan.ending) <= set(self._known_ending.get(holder, ()))
            if not (plan.work or plan.lost or is_paused or stops or may_be_empty):
                return outlook
            self._known_ending[holder] = plan.ending
            self._pipelines.note_work(holder, plan.work)
        call.succeed(
            root=self._premises.root,
            instance=self._premises.instance,
            work=[to_wire(each) for each in plan.work],
            waiting=plan.waiting,
            tasks=self._pipelines.count_tasks(request.pipeline),
            lost=plan.lost,
            ending=plan.ending,
            stops=stops,
        )
        return None

    def _depart(self, holder: Holder, request: PlanExportsRequest) -> None:
        # Unless it has reconnected already.
        if self._latest.get(holder) is request:
            del self._latest[holder]
            self._known_ending.pop(holder, None)
            self._exports.depart(holder)
            self._pipelines.note_departure(holder)
            if not any(each.pipeline == holder.pipeline for each in self._latest):
                self._stopping.discard(holder.pipeline)
            self.look_again()

    def look_again(self) -> None:
        """Something has changed that may make work due."""
        for pending in tuple(self._pending):
            pending.look_soon()

    def _follow(self, settlement: Settlement) -> None:
        """Pending plans wait for the next messages of exports whose reports are stored."""
        outlook = self._exports.follow(settlement, self._now_millis())
        if outlook is None:
            self.look_again()
            return
        for pending in self._pending:
            pending.wait_also(outlook)

    # Bandwidth

    def _reserve(self, call: PendingCall, request: ReserveBandwidthRequest) -> None:
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
        cancel = self._bandwidth.reserve(found.priority, request.size, seconds, is_held, answer)
        if cancel is not None:
            call.allow_seconds(request.wait_millis / 1000)
            call.on_close(cancel)

    # Reports

    def _commit(self, call: PendingCall, request: CommitExportsRequest) -> None:
        call.access.require(request.operation)
        self._require_access(call, request.reports)
        self._settle(request.reports, lambda leases: call.succeed(accepted=leases), call.fail)

    def _require_access(self, call: PendingCall, reports: Sequence[DeliveryReport]) -> None:
        for report in reports:
            call.access.require(Operation.CommitExports, report.stream)

    def _settle(
        self,
        reports: Sequence[DeliveryReport],
        succeed: Callable[[list[str]], None],
        fail: Callable[[StreamManagerException], None],
    ) -> None:
        """Calls `succeed` with the leases of the accepted reports, or `fail`."""
        if not self._dead_letters.needs_stream(reports):
            self._settle_now(reports, succeed, fail)
            return

        async def create_and_settle() -> None:
            try:
                await self._dead_letters.create_stream()
                self._settle_now(reports, succeed, fail)
            except Exception:
                logger.exception("a report of exports failed")
                fail(UnknownFailureException("the server failed; its log says how"))

        task = asyncio.get_running_loop().create_task(create_and_settle())
        self._creations.add(task)
        task.add_done_callback(self._creations.discard)

    def _settle_now(
        self,
        reports: Sequence[DeliveryReport],
        succeed: Callable[[list[str]], None],
        fail: Callable[[StreamManagerException], None],
    ) -> None:
        settlement = self._exports.settle(reports, self._now_millis())
        if not settlement.settled:
            succeed(settlement.accepted(are_stored=not self.progress.error))
            return
        change = self._store.change_progress(settlement.progress(), settlement.uploads())
        sync_letters, sync_statuses = self._dead_letters.sync(), self._statuses.sync()

        def sync() -> None:
            if settlement.has_skipped:
                sync_letters()
            if not settlement.may_be_stored_later:
                sync_statuses()

        def apply() -> None:
            change.apply()
            self._exports.apply(settlement)
            for each in settlement.settled:
                self._pipelines.note_report(each.lease.holder, each.given)

        def finish(error: BaseException | None) -> bool:
            is_disk_error = isinstance(error, (OSError, sqlite3.Error))
            # An upload has to be on the disk before it is created: such a report is not kept.
            is_kept = is_disk_error and settlement.is_final
            if error is not None and not is_kept:
                self._exports.cancel(settlement)
                self.look_again()
                fail(_explain(error))
                return False
            apply()
            succeed(settlement.accepted(are_stored=error is None))
            self._follow(settlement)
            return is_kept

        if settlement.may_be_stored_later:
            apply()
            self.progress.store_later(change, sync)
            succeed(settlement.accepted())
            self._follow(settlement)
        else:
            self.progress.store_now(change, sync, finish)

    def _suspend(self, error: str) -> None:
        """Without an error, exports continue."""
        self._exports.suspension = error
        if not error:
            self.look_again()


def _explain(error: BaseException) -> UnknownFailureException:
    if isinstance(error, (OSError, sqlite3.Error)):
        return UnknownFailureException(f"the disk of the server failed: {error}")
    return UnknownFailureException(f"the server failed: {error!r}")


class _PendingPlan:
    """A request for a plan that waits until something is due."""

    def __init__(
        self,
        call: PendingCall,
        holder: Holder,
        seconds: float,
        # Answers the call if something is due, or in any case if it may be empty.
        answer: Callable[[bool], Outlook | None],
        streams: Streams,
        over: Callable[[_PendingPlan], None],
    ) -> None:
        self.holder = holder
        self._call = call
        self._answer = answer
        self._streams = streams
        self._over = over
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + seconds
        self._waiters: list[Waiter] = []
        self._timer: asyncio.TimerHandle | None = None
        self._gives_up = False
        self._is_over = False
        self._looks_soon = False

    def wait(self, outlook: Outlook) -> None:
        """Look again when something may be due, or when the time is up."""
        self._add(self._streams.changes, self._streams.changed + 1)
        self.wait_also(outlook._replace(at=min(outlook.at, self._deadline)))

    def wait_also(self, outlook: Outlook) -> None:
        for stream, end in outlook.needed_ends:
            self._add(stream.waiters, end)
        if self._timer is None or outlook.at < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(outlook.at, self.look_soon)

    def _add(self, waiters: Waiters, end: int) -> None:
        waiter = Waiter(end, self._woken, is_reader=False)
        self._waiters.append(waiter)
        waiters.add(waiter)

    def _woken(self, reached: bool) -> None:
        # A stream was deleted, or the broker stops.
        self._gives_up = self._gives_up or not reached
        self.look_soon()

    def look_soon(self) -> None:
        """In a later turn of the loop: this one belongs to an append."""
        if not self._looks_soon and not self._is_over:
            self._looks_soon = True
            self._call.work(self._look())

    def _look(self) -> Iterator[None]:
        self._looks_soon = False
        self._stop_waiting()
        is_late = self._gives_up or self._loop.time() >= self._deadline
        if not self._is_over:
            outlook = self._answer(is_late)
            if outlook is None:
                self.cancel()
            else:
                self.wait(outlook)
        yield from ()

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiter in self._waiters:
            waiter.cancel()
        self._waiters.clear()

    def cancel(self) -> None:
        self._is_over = True
        self._stop_waiting()
        self._over(self)
