"""Batches of accepted reports, and the writer that stores their progress."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.exports import progress
from penstock.broker.exports.progress import ProgressWriter, ReportBatch
from penstock.store.files import Disk as RealDisk
from penstock.store.progress_log import ProgressLog, read_progress
from penstock.store.rows import ExportProgress, UploadChange
from penstock.store.stored_stream import ProgressChange
from tests.broker.exports.workbench import (
    Workbench,
    event,
    failure,
    interim,
    report,
    skip,
    to_http,
    upload,
)
from tests.faulty_disk import FaultyDisk
from tests.support import TIMEOUT_S


def test_empty_batch_changes_nothing() -> None:
    batch = ReportBatch()
    assert (batch.accepted_leases(), batch.progress()) == ([], {})
    assert batch.uploads() == ([], [])
    assert batch.is_final
    assert not batch.has_skipped


def test_leases_of_accepted_reports_are_answered(bench: Workbench) -> None:
    bench.create_tasks("a", 1)
    bench.create_tasks("b", 1)
    first, second = bench.plan()
    bench.delete("b")
    assert bench.accepted(report(first, abandoned=[upload(0)]), report(second)) == [first.lease]
    abort = bench.plan_abort()
    assert bench.accepted(report(abort)) == [abort.lease]


def test_repeated_reports_are_answered_with_the_others(bench: Workbench) -> None:
    for name in "ab":
        bench.create(name, to_http(), 1)
    first, second = bench.plan()
    bench.commit(report(first))
    batch = bench.begin_commit(report(first), report(second)).batch
    assert [each.lease.id for each in batch.accepted] == [second.lease]
    assert [each.lease for _, each in batch.repeated] == [first.lease]
    assert batch.accepted_leases() == [second.lease, first.lease]


def test_progress_of_all_reports_is_stored_together(bench: Workbench) -> None:
    exports = {"http": [{"identifier": name, "uri": "http://127.0.0.1/"} for name in "ab"]}
    bench.create("s", exports, 4)
    bench.create("t", to_http(), 4)
    batch = bench.begin_commit(*map(report, bench.plan())).batch
    stored = {name: len(progress) for name, progress in batch.progress().items()}
    assert stored == {"s": 2, "t": 1}


def test_uploads_of_all_reports_are_stored_together(bench: Workbench) -> None:
    for name in "ab":
        bench.create_tasks(name, 2)
    first, second = bench.plan()
    bench.commit(interim(first, uploads=[upload(0, "ends")]))
    begun = [upload(1, "begins")]
    given = report(first, settled_end=1, uploads=begun), failure(second, abandoned=[upload(0, "x")])
    change = bench.begin_commit(*given).batch.uploads()
    assert [(each.upload.upload_id, each.is_abandoned) for each in change.stored] == [
        ("begins", False),
        ("x", True),
    ]
    assert len(change.removed) == 1


def test_batch_with_an_interim_report_is_not_final(bench: Workbench) -> None:
    for name in "ab":
        bench.create(name, to_http(), 1)
    first, second = bench.plan()
    assert not bench.begin_commit(report(first), interim(second)).batch.is_final


def test_interim_report_whose_letters_cannot_be_stored_loses_its_lease(bench: Workbench) -> None:
    """The task stops, and the messages are delivered again."""
    bench._dead_letter_stream = "letters"
    bench.restart()
    bench.create("letters", {}, maxSize=1024, strategyOnFull=0)
    bench.append("letters", 1, size=1000)
    bench.create_tasks("s", 5)
    found = bench.plan_file(task="a")
    given = interim(found, settled_end=3, skipped=[skip(1)], events=[event(0), event(2)])
    assert bench.accepted(given) == bench.accepted(given) == []
    assert bench.progress("s").last_exported == 0
    assert bench.export("s").failures == 1
    assert bench.request_plan(task="a", holding=[found.lease], max_slices=0).lost == [found.lease]
    bench.wait(1)
    again = bench.plan_file(task="b")
    assert (again.first, again.arrived) == (1, [2])


def test_final_report_whose_letters_cannot_be_stored_is_accepted(bench: Workbench) -> None:
    bench._dead_letter_stream = "letters"
    bench.restart()
    bench.create("letters", {}, maxSize=1024, strategyOnFull=0)
    bench.append("letters", 1, size=1000)
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    commit = bench.begin_commit(report(found, skipped=[skip(1)]))
    assert not commit.batch.has_skipped
    assert commit.batch.accepted_leases() == [found.lease]


def test_reports_of_files_are_accepted_only_when_they_are_stored(bench: Workbench) -> None:
    bench.create_tasks("files", 1)
    bench.create("messages", to_http(), 1)
    found = {each.stream: each for each in bench.plan()}
    reports = [report(each) for each in found.values()]
    batch = bench.begin_commit(*reports).batch
    assert not batch.may_be_stored_later
    assert batch.accepted_leases(are_stored=False) == [found["messages"].lease]
    assert set(batch.accepted_leases()) == {each.lease for each in found.values()}


# The writer


class Disk:
    """Changes that were stored, on a disk that fails while `error` is set."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        # For each attempted transaction: whether it was stored, and its positions.
        self.attempts: list[tuple[bool, list[int]]] = []
        self.may_store = threading.Event()
        self.may_store.set()
        self.begun = threading.Event()

    def commit_progress(
        self, rows: list[tuple[str, ExportProgress]], *_uploads: UploadChange
    ) -> None:
        self.begun.set()
        self.may_store.wait()
        self.attempts.append((self.error is None, [export.last_exported for _, export in rows]))
        if self.error is not None:
            raise self.error

    @property
    def stored(self) -> list[list[int]]:
        return [positions for is_stored, positions in self.attempts if is_stored]


class StreamStub:
    def __init__(self, name: str) -> None:
        self.id = name


class Writing:
    """A writer, its disk, and the errors that it reports."""

    def __init__(self, executor: ThreadPoolExecutor, root: Path) -> None:
        self.disk = Disk()
        self.root = root
        self.files = FaultyDisk()
        self.errors: list[str] = []
        self.changed = asyncio.Event()
        self.writer = ProgressWriter(ProgressLog(self.files, root), executor, self._note)

    @property
    def logged(self) -> list[int]:
        """The positions that a broker would read from the log at its start."""
        return [export.last_exported for _, export in read_progress(RealDisk(), self.root)]

    def _note(self, error: str) -> None:
        self.errors.append(error)
        self.changed.set()

    def change(self, stream: str, position: int) -> ProgressChange:
        found: Any = (StreamStub(stream), ExportProgress("export", position))
        catalog: Any = self.disk
        return ProgressChange(catalog, [found])

    def later(self, stream: str, position: int) -> None:
        self.writer.store_later(self.change(stream, position), lambda: None)

    async def now(self, stream: str, position: int, *, keeps: bool = False) -> BaseException | None:
        result: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

        def note(error: BaseException | None) -> bool:
            result.set_result(error)
            return keeps

        self.writer.store_now(self.change(stream, position), lambda: None, note)
        return await result

    async def until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():
            await asyncio.sleep(0.001)


def run(test: Callable[[Writing], Coroutine[Any, Any, None]]) -> None:
    async def write() -> None:
        with ThreadPoolExecutor(1) as executor, tempfile.TemporaryDirectory() as root:
            await test(Writing(executor, Path(root)))

    asyncio.run(write())


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_STORE_SECONDS", 0.001)
    monkeypatch.setattr(progress, "_RETRY_SECONDS", 0.001)


def test_deferred_changes_share_a_transaction(hurried: None) -> None:
    async def test(writing: Writing) -> None:
        for position in range(3):
            writing.later("a", position)
        writing.later("b", 7)
        assert writing.logged == [0, 1, 2, 7]
        await writing.until(lambda: bool(writing.disk.stored))
        assert writing.disk.stored == [[2, 7]]
        await writing.until(lambda: not writing.logged)

    run(test)


def test_urgent_change_is_stored_at_once_with_deferred_changes() -> None:
    async def test(writing: Writing) -> None:
        writing.later("a", 1)
        assert await writing.now("b", 2) is None
        assert writing.disk.stored == [[1, 2]]

    run(test)


def test_change_that_arrives_during_a_transaction_follows_it() -> None:
    async def test(writing: Writing) -> None:
        writing.disk.may_store.clear()
        first = asyncio.ensure_future(writing.now("a", 1))
        await writing.until(writing.disk.begun.is_set)
        second = asyncio.ensure_future(writing.now("a", 2))
        await asyncio.sleep(0)
        writing.disk.may_store.set()
        assert await first is await second is None
        assert writing.disk.stored == [[1], [2]]

    run(test)


def test_urgent_change_does_not_wait_for_deferred_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "_STORE_SECONDS", 3600.0)

    async def test(writing: Writing) -> None:
        writing.disk.may_store.clear()
        first = asyncio.ensure_future(writing.now("a", 1))
        await writing.until(writing.disk.begun.is_set)
        writing.later("a", 2)
        second = asyncio.ensure_future(writing.now("b", 3))
        await asyncio.sleep(0)
        writing.disk.may_store.set()
        await asyncio.wait_for(asyncio.gather(first, second), TIMEOUT_S)
        assert writing.disk.stored == [[1], [2, 3]]

    run(test)


def test_callback_that_fails_blocks_no_other(
    hurried: None, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: BaseException | None) -> bool:
        raise RuntimeError("a defect")

    async def test(writing: Writing) -> None:
        writing.disk.may_store.clear()
        first = asyncio.ensure_future(writing.now("a", 1))
        await writing.until(writing.disk.begun.is_set)
        writing.writer.store_now(writing.change("b", 2), lambda: None, fail)
        second = asyncio.ensure_future(writing.now("c", 3))
        await asyncio.sleep(0)
        writing.disk.may_store.set()
        assert await first is await second is None
        assert await writing.now("a", 4) is None
        assert writing.disk.stored == [[1], [2, 3], [4]]

    run(test)
    assert [record.message for record in caplog.records] == ["cannot apply a stored export report"]


def test_changes_are_kept_until_the_disk_works(
    hurried: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def test(writing: Writing) -> None:
        writing.disk.error = sqlite3.OperationalError("disk is full")
        writing.later("a", 1)
        await writing.until(lambda: writing.writer.error == "disk is full")
        writing.disk.error = sqlite3.OperationalError("still full")
        await writing.until(lambda: writing.writer.error == "still full")
        writing.later("b", 2)
        writing.disk.error = None
        await writing.until(lambda: writing.disk.stored in ([[1, 2]], [[1], [2]]))
        await writing.until(lambda: not writing.writer.error)
        assert writing.errors == ["disk is full", "still full", ""]

    run(test)
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


@pytest.mark.parametrize("keeps", [False, True])
def test_callback_decides_whether_a_failed_change_is_kept(hurried: None, keeps: bool) -> None:
    async def test(writing: Writing) -> None:
        error = writing.disk.error = sqlite3.OperationalError("disk is full")
        assert await writing.now("a", 1, keeps=keeps) is error
        await asyncio.sleep(0)
        assert bool(writing.writer.error) == keeps
        writing.disk.error = None
        await writing.now("b", 2)
        assert writing.disk.stored == [[1, 2] if keeps else [2]]

    run(test)


def test_changes_are_stored_when_the_broker_stops(caplog: pytest.LogCaptureFixture) -> None:
    async def test(writing: Writing) -> None:
        writing.later("a", 1)
        writing.writer.stop()
        writing.later("b", 2)
        writing.disk.error = sqlite3.OperationalError("disk is full")
        writing.writer.finish()
        assert "may be exported again" in caplog.records[-1].message
        # The next broker finds it in the log.
        assert writing.logged == [1, 2]

    run(test)


def test_log_is_removed_when_the_broker_stops() -> None:
    async def test(writing: Writing) -> None:
        writing.later("a", 1)
        writing.writer.stop()
        writing.writer.finish()
        assert writing.disk.stored == [[1]]
        assert list(writing.root.iterdir()) == []

    run(test)


def test_progress_that_cannot_be_logged_is_stored_at_once() -> None:
    async def test(writing: Writing) -> None:
        writing.files.fill(0)
        writing.later("a", 1)
        await writing.until(lambda: bool(writing.disk.stored))
        assert (writing.disk.stored, writing.logged) == ([[1]], [])
        assert writing.writer.error == ""

    run(test)


def test_log_keeps_reports_during_a_transaction() -> None:
    async def test(writing: Writing) -> None:
        writing.later("a", 1)
        writing.disk.may_store.clear()
        storing = asyncio.ensure_future(writing.now("b", 2))
        await writing.until(writing.disk.begun.is_set)
        writing.later("a", 3)
        assert sorted(writing.logged) == [1, 3]
        writing.disk.may_store.set()
        await storing
        assert writing.logged == [3]

    run(test)


def test_attempt_that_fails_after_the_stop_is_the_last(hurried: None) -> None:
    async def test(writing: Writing) -> None:
        writing.disk.error = sqlite3.OperationalError("disk is full")
        writing.disk.may_store.clear()
        writing.later("a", 1)
        await writing.until(writing.disk.begun.is_set)
        writing.writer.stop()
        writing.disk.may_store.set()
        await writing.until(lambda: bool(writing.writer.error))
        assert len(writing.disk.attempts) == 1
        writing.disk.error = None
        writing.writer.finish()
        assert writing.disk.stored == [[1]]

    run(test)
