"""The requests of pipelines: plans of what is due, and reports about it."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Executor
from typing import Any, Protocol

from penstock.broker.access import Access
from penstock.broker.bulk import Premises
from penstock.broker.exports.bandwidth import Bandwidth
from penstock.broker.exports.dead_letters import DeadLetters
from penstock.broker.exports.engine import Exports, Outlook, Plan
from penstock.broker.exports.lease import Holder
from penstock.broker.exports.pipelines import Pipelines
from penstock.broker.exports.reservations import Reservations
from penstock.broker.exports.settlement import Settlement
from penstock.broker.exports.statuses import Statuses
from penstock.broker.exports.unstored import UnstoredProgress
from penstock.broker.streams import Streams
from penstock.broker.waiting import Waiter, Waiters, seconds_to_wait
from penstock.errors import StreamManagerException, UnknownFailureException
from penstock.model.validation import to_wire
from penstock.store.store import Store
from penstock.store.stream import ProgressChange
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
        self._executor = executor
        self._now_millis = now_millis
        self.unstored = UnstoredProgress(executor, self._suspend)
        call_later = asyncio.get_running_loop().call_later
        self._reservations = Reservations(bandwidth, call_later, self.look_again)
        exports.min_reserved_priority = lambda: self._reservations.min_priority
        self._pending: set[_PendingPlan] = set()
        # Creations of the dead-letter stream.
        self._creations: set[asyncio.Task[None]] = set()
        # The last plan that a task asked for, as long as it is connected.
        self._latest: dict[Holder, PlanExportsRequest] = {}
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
        holder = Holder(request.pipeline, request.task)
        is_repeated = holder in self._latest
        self._latest[holder] = request
        if request.stops:
            self._stopping.add(request.pipeline)
        if request.max_slices:
            self._pipelines.note_request(holder, request.holding, request.about)
        call.on_departure(holder, lambda: self._depart(holder, request))
        outlook = self._answer_plan(call, request, may_be_empty=not request.wait_millis)
        if is_repeated or request.stops:
            # Leases that it gave up are free for others. A plan for which it still waits on a
            # connection that it has lost is answered.
            self.look_again()
        if outlook is None:
            return
        call.allow_seconds(request.wait_millis / 1000)
        pending = _PendingPlan(
            call,
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
            if not (plan.work or plan.lost or stops or may_be_empty):
                return outlook
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
        timer: asyncio.TimerHandle | None = None

        def is_held() -> bool:
            return self._exports.find_lease(request.lease) is found

        def answer() -> None:
            if timer is not None:
                timer.cancel()
            call.succeed(isGranted=is_held(), isHeld=is_held())

        def give_up() -> None:
            self._reservations.cancel(reservation)
            call.succeed(isGranted=False, isHeld=is_held())

        reservation = self._reservations.request(found.priority, request.size, answer, is_held)
        if self._reservations.has(reservation):
            call.allow_seconds(request.wait_millis / 1000)
            seconds = seconds_to_wait(request.wait_millis)
            timer = asyncio.get_running_loop().call_later(seconds, give_up)

            def cancel() -> None:
                timer.cancel()
                self._reservations.cancel(reservation)

            call.on_close(cancel)

    # Commits

    def _commit(self, call: PendingCall, request: CommitExportsRequest) -> None:
        call.access.require(request.operation)
        for report in request.reports:
            call.access.require(request.operation, report.stream)
        if not self._dead_letters.needs_stream(request.reports):
            self._settle(call, request)
            return
        task = asyncio.get_running_loop().create_task(self._create_and_settle(call, request))
        self._creations.add(task)
        task.add_done_callback(self._creations.discard)

    async def _create_and_settle(self, call: PendingCall, request: CommitExportsRequest) -> None:
        try:
            await self._dead_letters.create_stream()
            self._settle(call, request)
        except Exception:
            logger.exception("a report of exports failed")
            call.fail(UnknownFailureException("the server failed; its log says how"))

    def _settle(self, call: PendingCall, request: CommitExportsRequest) -> None:
        settlement = self._exports.settle(request.reports, self._now_millis())
        if not settlement.settled:
            call.succeed(accepted=self._unless_unstored(settlement.accepted))
            return
        change = self._store.change_progress(settlement.progress(), settlement.uploads())
        store = self._storing(settlement, change)

        def apply() -> None:
            change.apply()
            self._exports.apply(settlement)
            for each in settlement.settled:
                self._pipelines.note_report(each.lease.holder, each.report)

        def keep(error: BaseException | None) -> None:
            """Messages that arrived are not sent again, although progress is not stored yet."""
            self.unstored.add(store, error)
            apply()
            call.succeed(accepted=self._unless_unstored(settlement.accepted))

        def stored(future: asyncio.Future[None]) -> None:
            error = future.exception()
            if error is None:
                apply()
                call.succeed(accepted=settlement.accepted)
                self._follow(settlement)
            # An upload has to be on the disk before it is created: such a report is not kept.
            elif isinstance(error, (OSError, sqlite3.Error)) and settlement.is_final:
                keep(error)
            else:
                self._exports.cancel(settlement)
                self.look_again()
                call.fail(_explain(error))

        if self.unstored.error and settlement.is_final:
            keep(None)
            return
        # The disk may be slow: other requests are served meanwhile.
        future = asyncio.get_running_loop().run_in_executor(self._executor, store)
        future.add_done_callback(stored)

    def _storing(self, settlement: Settlement, change: ProgressChange) -> Callable[[], None]:
        """Stores a settlement, in any thread."""
        sync_letters, sync_statuses = self._dead_letters.sync(), self._statuses.sync()
        has_letters = settlement.has_skipped

        def store() -> None:
            if has_letters:
                sync_letters()
            sync_statuses()
            change.store()

        return store

    def _unless_unstored(self, accepted: list[str]) -> list[str]:
        """A task deletes files whose reports are accepted: only when progress is on the disk."""
        return [] if self.unstored.error else accepted

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
        seconds: float,
        # Answers the call if something is due, or in any case if it may be empty.
        answer: Callable[[bool], Outlook | None],
        streams: Streams,
        over: Callable[[_PendingPlan], None],
    ) -> None:
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
