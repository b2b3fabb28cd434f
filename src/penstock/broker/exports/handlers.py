"""What pipelines ask for: what is due, and that what became of it is stored."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Executor
from typing import Any, Protocol

from penstock.broker.access import Access
from penstock.broker.bulk import Premises
from penstock.broker.exports.dead_letters import DeadLetters
from penstock.broker.exports.engine import Exports, Outlook
from penstock.broker.exports.pipelines import Pipelines, Work
from penstock.broker.exports.settlement import Settlement
from penstock.broker.exports.statuses import Statuses
from penstock.broker.exports.unstored import UnstoredProgress
from penstock.broker.streams import Streams
from penstock.broker.waiting import Waiter, seconds_to_wait
from penstock.errors import StreamManagerException, UnknownFailureException
from penstock.model.exporting import Lane
from penstock.model.validation import to_wire
from penstock.store.store import Store
from penstock.store.stream import ProgressChange
from penstock.wire.requests import CommitExportsRequest, PlanExportsRequest, Request

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
        self._pending: set[_PendingPlan] = set()
        # Creations of the dead-letter stream.
        self._creations: set[asyncio.Task[None]] = set()
        # The last plan that a pipeline asked for in a lane, as long as it is connected.
        self._latest: dict[tuple[str, Lane], PlanExportsRequest] = {}

    def table(self) -> dict[type[Request], Callable[[Any, Any], None]]:
        return {PlanExportsRequest: self._plan, CommitExportsRequest: self._commit}

    # Plans

    def _plan(self, call: PendingCall, request: PlanExportsRequest) -> None:
        call.access.require(request.operation)
        lane, key = request.lane, (request.pipeline, request.lane)
        is_repeated = key in self._latest
        self._latest[key] = request
        self._pipelines.note_asking(request.pipeline, lane, request.about)
        call.on_departure(key, lambda: self._depart(request))
        is_answered = self._answer_plan(call, request, may_be_empty=not request.wait_millis)
        if is_repeated:
            # What it gave back others may take. And if it still waits on a connection that it has
            # given up, it gets nothing there.
            self.look_again()
        if is_answered:
            return
        call.allow_seconds(request.wait_millis / 1000)
        pending = _PendingPlan(
            call,
            seconds_to_wait(request.wait_millis),
            lambda: self._exports.outlook(lane, call.access.sees, self._now_millis()),
            lambda may_be_empty: self._answer_plan(call, request, may_be_empty=may_be_empty),
            self._streams,
            self._pending.discard,
        )
        self._pending.add(pending)
        call.on_close(pending.cancel)
        pending.wait()

    def _answer_plan(
        self, call: PendingCall, request: PlanExportsRequest, *, may_be_empty: bool
    ) -> bool:
        is_latest = self._latest.get((request.pipeline, request.lane)) is request
        slices = []
        if is_latest:
            slices = self._exports.plan(request, call.access.sees, self._now_millis())
            if not slices and not may_be_empty:
                return False
            work = Work(len(slices), sum(found.end - found.first for found in slices))
            self._pipelines.note_given(request.pipeline, request.lane, work)
        call.succeed(
            root=self._premises.root,
            instance=self._premises.instance,
            slices=[to_wire(found) for found in slices],
            lanes=[lane.value for lane in self._exports.lanes(call.access.sees)],
        )
        return True

    def _depart(self, request: PlanExportsRequest) -> None:
        key = request.pipeline, request.lane
        # Unless it has come back already, on another connection.
        if self._latest.get(key) is request:
            del self._latest[key]
            self._exports.depart(*key)
            self._pipelines.note_departure(*key)
            self.look_again()

    def look_again(self) -> None:
        """Something has changed that may make something due."""
        for pending in tuple(self._pending):
            pending.look_soon()

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
        is_interim = any(report.is_interim for report in request.reports)

        def answer(accepted: list[str]) -> None:
            call.succeed(
                accepted=accepted,
                isAwaited=is_interim
                and self._exports.is_awaited(Lane.files, call.access.sees, self._now_millis()),
            )

        if not settlement:
            answer(self._unless_unstored(settlement.accepted))
            return
        change = self._store.change_progress(settlement.progress(), settlement.uploads())
        store = self._storing(settlement, change)

        def apply() -> None:
            change.apply()
            self._exports.apply(settlement)

        def keep(error: BaseException | None) -> None:
            """What arrived is not delivered again, although its progress is not stored yet."""
            self.unstored.add(store, error)
            apply()
            answer(self._unless_unstored(settlement.accepted))

        def stored(future: asyncio.Future[None]) -> None:
            error = future.exception()
            if error is None:
                apply()
                answer(settlement.accepted)
                self.look_again()
            # An upload must be on the disk before it is created: that one is not kept.
            elif isinstance(error, (OSError, sqlite3.Error)) and not is_interim:
                keep(error)
            else:
                self._exports.forget(settlement)
                self.look_again()
                call.fail(_explain(error))

        if self.unstored.error and not is_interim:
            keep(None)
            return
        # The disk may take its time, in which others are served.
        future = asyncio.get_running_loop().run_in_executor(self._executor, store)
        future.add_done_callback(stored)

    def _storing(self, settlement: Settlement, change: ProgressChange) -> Callable[[], None]:
        """What stores a settlement, in any thread."""
        sync_letters, sync_statuses = self._dead_letters.sync(), self._statuses.sync()
        has_letters = any(each.report.skipped for each in settlement.settled)

        def store() -> None:
            if has_letters:
                sync_letters()
            sync_statuses()
            change.store()

        return store

    def _unless_unstored(self, accepted: list[str]) -> list[str]:
        """A pipeline deletes files of accepted tasks: not before their progress is on the disk."""
        return [] if self.unstored.error else accepted

    def _suspend(self, error: str) -> None:
        """Without an error, exports go on."""
        self._exports.suspension = error
        if not error:
            self.look_again()


def _explain(error: BaseException) -> UnknownFailureException:
    if isinstance(error, (OSError, sqlite3.Error)):
        return UnknownFailureException(f"the disk of the server failed: {error}")
    return UnknownFailureException(f"the server failed: {error!r}")


class _PendingPlan:
    """A pipeline that waits for something to do."""

    def __init__(
        self,
        call: PendingCall,
        seconds: float,
        outlook: Callable[[], Outlook],
        # Answers the call if there is something to answer with, or in any case.
        answer: Callable[[bool], bool],
        streams: Streams,
        over: Callable[[_PendingPlan], None],
    ) -> None:
        self._call = call
        self._outlook = outlook
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

    def wait(self) -> None:
        """Until something may be due, or the time is up."""
        outlook = self._outlook()
        needed = [(stream.waiters, end) for stream, end in outlook.needed_ends]
        for waiters, end in (*needed, (self._streams.changes, self._streams.changed + 1)):
            waiter = Waiter(end, self._woken, is_reader=False)
            self._waiters.append(waiter)
            waiters.add(waiter)
        self._timer = self._loop.call_at(min(outlook.at, self._deadline), self.look_soon)

    def _woken(self, reached: bool) -> None:
        # A stream was deleted, or the broker stops: whoever asks again is told more.
        self._gives_up = self._gives_up or not reached
        self.look_soon()

    def look_soon(self) -> None:
        """In its own turn: this one belongs to whoever has just appended."""
        if not self._looks_soon and not self._is_over:
            self._looks_soon = True
            self._call.work(self._look())

    def _look(self) -> Iterator[None]:
        self._looks_soon = False
        self._stop_waiting()
        is_late = self._gives_up or self._loop.time() >= self._deadline
        if not self._is_over:
            if self._answer(is_late):
                self.cancel()
            else:
                self.wait()
        yield from ()

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for waiter in self._waiters:
            waiter.cancel()
        self._waiters.clear()

    def cancel(self) -> None:
        self._is_over = True
        self._stop_waiting()
        self._over(self)
