from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.store.catalog import Catalog
from penstock.store.journal import Journal
from penstock.store.known_damage import KnownDamage
from penstock.store.log import (
    FileLog,
    Log,
    LogContext,
    MemoryLog,
    MessageTooLargeError,
    StreamFullError,
    create_file_log,
)
from penstock.store.record import ENTRY, crc32, data_path, index_path
from penstock.store.recovery import open_file_log
from penstock.store.retention import Limits
from penstock.store.rows import StreamRow
from penstock.store.segment import DamagedError
from penstock.store.space import Space
from tests.faulty_disk import FaultyDisk
from tests.support import MEMORY

LIMITS = Limits(10_000, 1024, overwrites=True, time_to_live_millis=None)
REJECTS = LIMITS._replace(overwrites=False)


class LogFiles:
    """A file log that can be abandoned and opened again."""

    def __init__(self, catalog: Catalog, directory: Path) -> None:
        catalog.add_stream(StreamRow("id", "s", b"{}", 0, 0))
        self.catalog = catalog
        self.directory = directory
        self.disk = FaultyDisk()

    def create(self, limits: Limits = LIMITS) -> FileLog:
        return create_file_log(self._context(), limits)

    def open(self, limits: Limits = LIMITS, lowest_end: int = 0) -> FileLog:
        oldest = self.catalog.streams()[0].oldest
        return open_file_log(
            self._context(), limits, name="s", oldest=oldest, lowest_end=lowest_end
        )

    def _context(self) -> LogContext:
        journal = Journal(self.disk, self.directory.parent)
        space = Space(self.disk, self.directory, 0)
        return LogContext(
            self.disk,
            self.directory,
            self.catalog,
            "id",
            journal,
            space,
            lambda: None,
            KnownDamage("s"),
        )


def memory_log(catalog: Catalog, limits: Limits = LIMITS, **fields: int) -> MemoryLog:
    return MemoryLog(limits, catalog, "id", lambda: None, **fields)


@pytest.fixture
def files(catalog: Catalog, tmp_path: Path) -> LogFiles:
    return LogFiles(catalog, tmp_path / "stream")


@pytest.fixture(params=["file", "memory"])
def make_log(request: pytest.FixtureRequest, files: LogFiles) -> Callable[[Limits], Log]:
    def make(limits: Limits) -> Log:
        if request.param == "memory":
            return memory_log(files.catalog, limits)
        return files.create(limits)

    return make


def read_all(log: Log) -> list[bytes]:
    payloads: list[bytes] = []
    while log.oldest + len(payloads) < log.end:
        payloads += log.read(log.oldest + len(payloads), log.end, 1 << 20).payloads
    return payloads


def test_an_empty_log_counts_no_messages(make_log: Callable[[Limits], Log]) -> None:
    log = make_log(LIMITS)
    assert (log.oldest, log.end, log.total_bytes) == (0, 0, 0)


def test_numbers_start_at_zero_and_increase_by_one(make_log: Callable[[Limits], Log]) -> None:
    log = make_log(LIMITS)
    assert [log.append([b"x"], 1), log.append([b"y", b"z"], 1), log.append([b"w"], 1)] == [0, 1, 3]
    assert read_all(log) == [b"x", b"y", b"z", b"w"]


def test_segments_end_before_they_exceed_their_size(make_log: Callable[[Limits], Log]) -> None:
    log = make_log(LIMITS)
    for _ in range(9):
        log.append([bytes(300)], 1)
    assert [segment.size for segment in log.segments()] == [900, 900, 900]


def test_message_larger_than_a_segment_gets_its_own_segment(
    make_log: Callable[[Limits], Log],
) -> None:
    log = make_log(LIMITS)
    for size in (10, 5000, 10):
        log.append([bytes([1]) * size], 1)
    assert [segment.size for segment in log.segments()] == [10, 5000, 10]


def test_a_batch_is_never_split_over_segments(make_log: Callable[[Limits], Log]) -> None:
    log = make_log(LIMITS)
    log.append([bytes(600)], 1)
    log.append([bytes(300)] * 10, 1)
    assert [segment.size for segment in log.segments()] == [600, 3000]


def test_overwriting_drops_the_oldest_segments(make_log: Callable[[Limits], Log]) -> None:
    log = make_log(LIMITS)
    for number in range(40):
        log.append([b"%04d" % number * 125], 1)
    assert log.end == 40
    assert log.total_bytes <= LIMITS.max_size
    assert log.oldest == 20
    assert read_all(log)[0] == b"0020" * 125


def test_overwriting_can_drop_everything(make_log: Callable[[Limits], Log]) -> None:
    log = make_log(LIMITS)
    log.append([bytes(100)], 1)
    assert log.append([bytes(10_000)], 1) == 1
    assert (log.oldest, log.end, log.total_bytes) == (1, 2, 10_000)


def test_a_message_larger_than_the_maximum_drops_nothing(
    make_log: Callable[[Limits], Log],
) -> None:
    log = make_log(LIMITS)
    log.append([b"kept"], 1)
    with pytest.raises(MessageTooLargeError):
        log.append([bytes(10_001)], 1)
    assert read_all(log) == [b"kept"]


def test_full_rejecting_log_keeps_its_messages(make_log: Callable[[Limits], Log]) -> None:
    log = make_log(REJECTS)
    for _ in range(10):
        log.append([bytes(1000)], 1)
    with pytest.raises(StreamFullError):
        log.append([b"x"], 1)
    assert (log.oldest, log.end, log.total_bytes) == (0, 10, 10_000)


def test_full_rejecting_log_drops_exported_messages(
    make_log: Callable[[Limits], Log],
) -> None:
    log = make_log(REJECTS)
    for _ in range(10):
        log.append([bytes(1000)], 1)
    assert log.append([b"x"], 1, lambda: 3) == 10
    assert log.oldest == 1
    with pytest.raises(StreamFullError):
        log.append([bytes(2500)], 1, lambda: 2)
    assert log.oldest == 1


def test_expired_messages_are_dropped_and_numbers_continue(
    make_log: Callable[[Limits], Log],
) -> None:
    log = make_log(LIMITS._replace(time_to_live_millis=60_000))
    for number in range(5):
        log.append([bytes(1000)], number * 10_000)
    log.trim(85_000)
    assert log.oldest == 3
    log.trim(200_000)
    assert (log.oldest, log.end, log.total_bytes) == (5, 5, 0)
    assert log.append([b"x"], 200_000) == 5


def test_oldest_and_newest_times_are_those_of_the_messages(
    make_log: Callable[[Limits], Log],
) -> None:
    log = make_log(LIMITS._replace(time_to_live_millis=60_000))
    assert (log.oldest_time, log.newest_time) == (None, None)
    for number in range(5):
        log.append([bytes(600)], 10_000 + number)
        assert (log.oldest_time, log.newest_time) == (10_000, 10_000 + number)
    # The newest segment may be empty.
    log.begin_segment()
    assert (log.oldest_time, log.newest_time) == (10_000, 10_004)
    log.trim(70_002)
    assert (log.oldest_time, log.newest_time) == (10_002, 10_004)
    log.trim(200_000)
    assert (log.oldest_time, log.newest_time) == (None, None)
    log.append([b"x"], 200_000)
    assert (log.oldest_time, log.newest_time) == (200_000, 200_000)


def test_appended_bytes_are_counted(make_log: Callable[[Limits], Log]) -> None:
    log = make_log(REJECTS)
    log.append([b"1", b"22"], 1)
    for _ in range(9):
        log.append([bytes(1000)], 1)
    assert log.appended_bytes == 9003
    with pytest.raises(StreamFullError):
        log.append([bytes(1000)], 1)
    assert log.appended_bytes == 9003
    log.append([bytes(500)], 1, lambda: log.end)
    assert log.appended_bytes == 9503


def test_appended_bytes_start_at_zero_after_opening(files: LogFiles) -> None:
    files.create().append([b"123"], 7)

    again = files.open()

    assert again.appended_bytes == 0
    assert (again.oldest_time, again.newest_time) == (7, 7)


def test_new_segment_size_applies_to_new_segments(make_log: Callable[[Limits], Log]) -> None:
    log = make_log(LIMITS)
    log.append([bytes(500)], 1)
    log.begin_segment()
    log.limits = LIMITS._replace(segment_size=4096)
    for _ in range(5):
        log.append([bytes(500)], 1)
    assert [segment.size for segment in log.segments()] == [500, 2500]


def test_memory_numbers_do_not_repeat_after_a_crash(files: LogFiles) -> None:
    log = memory_log(files.catalog)
    log.append([b"x"] * 7, 1)
    reserved = files.catalog.streams()[0].reserved
    assert reserved >= 7
    again = memory_log(files.catalog, first=reserved)
    assert (again.oldest, again.end) == (reserved, reserved)


def test_memory_numbers_continue_without_a_gap_after_a_clean_stop(files: LogFiles) -> None:
    log = memory_log(files.catalog)
    log.append([b"x"] * 7, 1)
    log.close()
    assert files.catalog.streams()[0].reserved == 7


def test_memory_numbers_are_reserved_in_the_background(files: LogFiles) -> None:
    requests: list[None] = []
    log = MemoryLog(LIMITS, files.catalog, "id", lambda: requests.append(None), reserved=1 << 20)
    log.append([b"x"] * 100, 1)
    assert requests == []
    # Half of the reserve is used.
    for _ in range(6):
        log.append([b""] * 100_000, 1)
    assert len(requests) == 1
    assert files.catalog.streams()[0].reserved == 0
    log.work()
    assert files.catalog.streams()[0].reserved > 3 << 19


def test_memory_appends_that_outrun_the_reserve_extend_it(files: LogFiles) -> None:
    log = memory_log(files.catalog, reserved=1 << 20)
    for _ in range(11):
        log.append([b""] * 100_000, 1)
    assert files.catalog.streams()[0].reserved >= log.end


def test_memory_log_writes_no_files(files: LogFiles) -> None:
    memory_log(files.catalog).append([b"secret words"], 1)
    assert not files.directory.exists()


def test_killed_log_keeps_its_messages(files: LogFiles) -> None:
    log = files.create()
    for number in range(10):
        log.append([b"%d" % number * 300], number)
    again = files.open()
    assert read_all(again) == read_all(log)
    assert again.append([b"x"], 1) == 10


def test_numbers_continue_after_all_messages_were_removed(files: LogFiles) -> None:
    limits = LIMITS._replace(time_to_live_millis=60_000)
    log = files.create(limits)
    log.append([b"x"] * 5, 1)
    log.trim(100_000)
    log.work()
    again = files.open(limits)
    assert (again.oldest, again.end) == (5, 5)


def test_sync_covers_a_new_segment(files: LogFiles) -> None:
    """The directory must list the new segment before `sync` returns."""
    log = files.create()
    log.append([bytes([1]) * 1000], 1)
    log.append([bytes([2]) * 1000], 1)
    log.sync()
    for seed in range(8):
        files.disk.power_cut(Random(seed))
        log = files.open()
        assert read_all(log) == [bytes([1]) * 1000, bytes([2]) * 1000]
        log.close()


def test_leftover_files_of_removed_segments_are_removed(files: LogFiles) -> None:
    log = files.create()
    for _ in range(12):
        log.append([bytes(1000)], 1)
    left_over = sorted(files.directory.iterdir())[0]
    contents = left_over.read_bytes()
    log.work()
    assert not left_over.exists()
    left_over.write_bytes(contents)
    assert files.open().oldest == 2
    assert not left_over.exists()


def test_exported_numbers_beyond_the_end_are_not_used_again(files: LogFiles) -> None:
    """After a power cut an export may have sent messages that the disk has lost."""
    log = files.create()
    log.append([b"x"] * 3, 1)
    again = files.open(lowest_end=10)
    assert again.end == 10
    assert again.read(0, 10, 100).payloads == [b"x"] * 3
    with pytest.raises(DamagedError) as caught:
        again.read(3, 10, 100)
    assert caught.value.next_number == 10


def test_numbers_of_a_lost_active_segment_are_not_used_again(
    files: LogFiles, caplog: pytest.LogCaptureFixture
) -> None:
    log = files.create()
    for _ in range(5):
        log.append([bytes(1000)], 1)
    log.work()
    for path in sorted(files.directory.iterdir())[-2:]:
        path.unlink()
    again = files.open()
    assert again.end >= 5
    assert again.read(0, 4, 10_000).payloads
    with pytest.raises(DamagedError):
        again.read(4, 5, 100)
    assert "lost" in caplog.text


@pytest.mark.parametrize("missing", [".data", ".index"])
def test_unpaired_file_of_an_active_segment_is_renamed(files: LogFiles, missing: str) -> None:
    log = files.create()
    for _ in range(3):
        log.append([bytes(1000)], 1)
    next(path for path in sorted(files.directory.iterdir())[-2:] if path.suffix == missing).unlink()
    again = files.open()
    assert again.read(1, 3, 1).payloads == [bytes(1000)]
    number = again.append([b"x"], 1)
    assert number >= 3
    assert files.open().read(number, number + 1, 1).payloads == [b"x"]


def test_unpaired_empty_file_is_not_a_loss(files: LogFiles) -> None:
    log = files.create()
    log.append([bytes(1000)], 1)
    (files.directory / f"{1:020d}.data").touch()
    again = files.open()
    assert again.append([bytes(1000)], 1) == 1


def test_missing_segment_loses_only_its_own_messages(files: LogFiles) -> None:
    log = files.create()
    for number in range(5):
        log.append([bytes([number]) * 1000], 1)
    log.work()
    for path in sorted(files.directory.iterdir())[2:4]:
        path.unlink()
    again = files.open()
    assert (again.oldest, again.end) == (0, 5)
    assert again.read(0, 5, 1).payloads == [bytes(1000)]
    with pytest.raises(DamagedError) as caught:
        again.read(1, 5, 1)
    assert again.read(caught.value.next_number, 5, 1).payloads == [bytes([2]) * 1000]


def test_failed_append_on_a_full_disk_changes_nothing(files: LogFiles) -> None:
    log = files.create()
    log.append([b"before"], 1)
    files.disk.fill(10)
    with pytest.raises(OSError, match="No space left"):
        log.append([bytes(100)], 1)
    assert read_all(log) == [b"before"]
    files.disk.mend()
    assert log.append([b"after"], 1) == 1
    assert read_all(files.open()) == [b"before", b"after"]


def test_failed_work_is_retried_in_order(files: LogFiles) -> None:
    log = files.create()
    for _ in range(12):
        log.append([bytes(1000)], 1)
    files.disk.fails = lambda action, _path: action == "sync"
    with pytest.raises(OSError, match="Input/output"):
        log.work()
    assert log._pending_jobs
    files.disk.mend()
    log.work()
    assert not log._pending_jobs
    assert [s.first for s in files.catalog.segments("id")] == list(range(2, 11))


def test_many_sealed_segments_need_few_descriptors(files: LogFiles) -> None:
    log = files.create(LIMITS._replace(max_size=1 << 30))
    files.disk.pool.capacity = 3
    for number in range(300):
        log.append([number.to_bytes(2, "big") * 512], 1)
        assert len(files.disk._open_files) <= 6
    log.work()
    for number in range(0, 300, 20):
        log.read(number, number + 1, 1)
    assert len(files.disk._open_files) <= 6


def test_append_cost_does_not_depend_on_the_number_of_segments(files: LogFiles) -> None:
    """An append uses only the last segment, which this checks without measuring time."""
    log = files.create(LIMITS._replace(max_size=1 << 30))
    for _ in range(50):
        log.append([bytes(1000)], 1)

    class NotIterable(list[object]):
        def __iter__(self) -> object:  # type: ignore[override]
            raise AssertionError("an append iterated over all segments")

    log._sealed = NotIterable(log._sealed)  # type: ignore[assignment]
    log.append([bytes(10)], 1)


# Listeners that are called before a drop


def record_drops(log: Log) -> list[tuple[int, bool, list[bytes]]]:
    """Records the calls of `before_drop`, with the messages that could be read in them."""
    drops: list[tuple[int, bool, list[bytes]]] = []

    def record(end: int, are_expired: bool) -> None:
        payloads: list[bytes] = []
        while log.oldest + len(payloads) < end:
            payloads += log.read(log.oldest + len(payloads), end, 1 << 20).payloads
        drops.append((end, are_expired, payloads))

    log.before_drop = record
    return drops


def test_overwritten_messages_can_be_read_before_the_drop(
    make_log: Callable[[Limits], Log],
) -> None:
    log = make_log(LIMITS._replace(max_size=2048))
    drops = record_drops(log)
    for number in range(4):
        log.append([bytes((number,)) * 512], number)
    assert drops == []
    log.append([bytes(600)], 4)
    (dropped,) = drops
    assert dropped == (log.oldest, False, [bytes((number,)) * 512 for number in range(2)])
    log.close()


def test_expired_messages_can_be_read_before_the_drop(
    make_log: Callable[[Limits], Log],
) -> None:
    log = make_log(LIMITS._replace(time_to_live_millis=100))
    drops = record_drops(log)
    log.append([b"a", b"b"], 1000)
    log.trim(1100)
    assert drops == []
    log.trim(1101)
    assert drops == [(2, True, [b"a", b"b"])]
    assert (log.oldest, log.end) == (2, 2)
    log.trim(5000)
    assert len(drops) == 1
    log.close()


def test_before_drop_is_called_only_for_dropped_messages(make_log: Callable[[Limits], Log]) -> None:
    log = make_log(REJECTS._replace(max_size=1024))
    drops = record_drops(log)
    log.append([bytes(1000)], 1)
    with pytest.raises(StreamFullError):
        log.append([bytes(100)], 1)
    assert drops == []
    log.append([bytes(100)], 1, lambda: 1)
    assert drops == [(1, False, [bytes(1000)])]
    log.close()


# Bulk reads


@contextmanager
def filled(kind: str, batches: list[list[int]], max_size: int = 1 << 20) -> Iterator[Log]:
    """A log with segments of 1024 bytes and messages of these sizes."""
    limits = LIMITS._replace(max_size=max_size)
    with TemporaryDirectory(dir=MEMORY) as directory:
        catalog = Catalog(Path(directory) / "catalog.sqlite")
        files = LogFiles(catalog, Path(directory) / "stream")
        log: Log = files.create(limits) if kind == "file" else memory_log(catalog, limits)
        for time, batch in enumerate(batches):
            log.append([bytes((time % 256,)) * size for size in batch], time)
        yield log
        log.close()
        catalog.close()


batches = st.lists(st.lists(st.integers(1, 700), min_size=1, max_size=4), min_size=1, max_size=25)


@pytest.mark.parametrize("kind", ["file", "memory"])
@pytest.mark.parametrize("max_size", [1 << 20, 4096])
@settings(max_examples=settings().max_examples * 4 // 10)
@given(batches=batches, data=st.data())
def test_find_end_matches_the_sum_of_sizes(
    kind: str, max_size: int, batches: list[list[int]], data: st.DataObject
) -> None:
    sizes = [size for batch in batches for size in batch]
    with filled(kind, batches, max_size) as log:
        assert log.end == len(sizes)
        for _ in range(10):
            start = data.draw(st.integers(log.oldest, log.end - 1), "start")
            stop = data.draw(st.integers(start + 1, log.end), "stop")
            totals = list(accumulate(sizes[start:stop]))
            near = data.draw(st.sampled_from(totals), "near") + data.draw(st.integers(-1, 1))
            for max_bytes in (max(near, 1), 1, 2**40):
                fitting = sum(total <= max_bytes for total in totals)
                assert log.find_end(start, stop, max_bytes) == start + max(fitting, 1)


@pytest.mark.parametrize("kind", ["file", "memory"])
@settings(max_examples=settings().max_examples * 4 // 10)
@given(batches=batches, data=st.data())
def test_read_stored_gives_the_same_messages_as_read(
    kind: str, batches: list[list[int]], data: st.DataObject
) -> None:
    with filled(kind, batches, 8192) as log:
        number = data.draw(st.integers(log.oldest, log.end - 1), "start")
        stop = data.draw(st.integers(number + 1, log.end), "stop")
        while number < stop:
            max_bytes = data.draw(st.integers(1, 2000), "max_bytes")
            checked = log.read(number, stop, max_bytes)
            run = log.read_stored(number, stop, max_bytes)
            entries = list(ENTRY.iter_unpack(run.entries))
            assert run.first_sequence_number == number
            assert run.payloads == b"".join(checked.payloads)
            assert [time for _, _, time in entries] == checked.ingest_times
            assert [end - run.position for end, _, _ in entries] == list(
                accumulate(map(len, checked.payloads))
            )
            number += len(entries)


@pytest.mark.parametrize("kind", ["file", "memory"])
@settings(max_examples=settings().max_examples * 3 // 10)
@given(batches=batches, data=st.data())
def test_summaries_cover_only_segments_of_the_slice(
    kind: str, batches: list[list[int]], data: st.DataObject
) -> None:
    with filled(kind, batches, 8192) as log:
        segments = log.segments()
        for _ in range(10):
            start = data.draw(st.integers(log.oldest, log.end), "start")
            stop = data.draw(st.integers(0, log.end), "stop")
            wanted = range(start, stop)
            assert log.summaries(start, stop) == [
                segment.summary()
                for segment in segments
                if any(number in wanted for number in range(segment.first, segment.end))
            ]


def check_checksums(directory: Path, log: Log) -> None:
    summaries = log.summaries(log.oldest, log.end)
    assert summaries[0].first == log.oldest
    assert summaries[-1].end == log.end
    for summary in summaries:
        data = data_path(directory, summary.first).read_bytes()[: summary.size]
        entries = index_path(directory, summary.first).read_bytes()
        assert crc32(data) == summary.data_crc
        assert crc32(entries[: (summary.end - summary.first) * ENTRY.size]) == summary.index_crc


def test_summary_checksums_match_the_files_after_a_crash(
    files: LogFiles,
) -> None:
    log = files.create()
    for number in range(30):
        log.append([b"%02d" % number * 200], number)
        check_checksums(files.directory, log)
    assert log.oldest > 0
    again = files.open()
    check_checksums(files.directory, again)
    for number in range(5):
        again.append([b"%02d" % number * 200], number)
    check_checksums(files.directory, again)
    again.work()
    check_checksums(files.directory, files.open())


def test_summary_checksums_exclude_a_torn_end(files: LogFiles) -> None:
    log = files.create()
    log.append([bytes(100)] * 3, 1)
    with data_path(files.directory, 0).open("ab") as file:
        file.write(b"torn")
    with index_path(files.directory, 0).open("ab") as file:
        file.write(bytes(23))
    again = files.open()
    assert again.end == 3
    check_checksums(files.directory, again)
    assert again.summaries(0, 3) == log.summaries(0, 3)


def test_find_end_and_read_stored_use_few_descriptors(files: LogFiles) -> None:
    files.disk.pool.capacity = 3
    log = files.create(LIMITS._replace(max_size=1 << 30))
    for number in range(100):
        log.append([number.to_bytes(2, "big") * 512], 1)
    log.work()
    for number in range(0, 100, 7):
        log.find_end(number, 100, 3000)
        log.read_stored(number, 100, 3000)
        assert len(files.disk._open_files) <= 6
    assert log.find_end(0, 100, 10_000) == 9


def test_find_end_does_not_open_segments_that_fit_completely(files: LogFiles) -> None:
    log = files.create(LIMITS._replace(max_size=1 << 30))
    for _ in range(10):
        log.append([bytes(1024)], 1)
    log.work()
    for path in sorted(files.directory.iterdir())[2:14]:
        path.unlink()
    assert log.find_end(0, 10, 8 * 1024 + 1) == 8


def test_segment_without_an_index_counts_as_fitting(files: LogFiles) -> None:
    log = files.create()
    for number in range(9):
        log.append([bytes((number,)) * 300], 1)
    log.work()
    index_path(files.directory, 3).unlink()
    again = files.open()
    # From its middle, from its start, and from an earlier segment.
    assert again.find_end(4, 9, 1) == 6
    assert again.find_end(3, 9, 1) == 6
    assert again.find_end(3, 5, 1) == 5
    assert again.find_end(0, 9, 1000) == 6
    # The size of the segment is known without the index.
    assert again.find_end(0, 9, 2100) == 7


def test_find_end_respects_the_limit_despite_a_damaged_entry(files: LogFiles) -> None:
    log = files.create()
    for number in range(9):
        log.append([bytes((number,)) * 300], 1)
    log.work()
    with index_path(files.directory, 3).open("r+b") as file:
        file.seek(2 * ENTRY.size)
        file.write(bytes(ENTRY.size))
    assert log.find_end(3, 6, 300) == 4


def test_lost_messages_are_in_a_segment_of_size_zero(files: LogFiles) -> None:
    log = files.create()
    log.append([b"x"] * 3, 1)
    again = files.open(lowest_end=10)
    lost = again.summaries(3, 10)
    assert [(s.first, s.end, s.size, s.data_crc, s.index_crc) for s in lost] == [(3, 10, 0, 0, 0)]
    assert again.find_end(0, 10, 1) == 1
    assert again.find_end(0, 10, 3) == 10
    assert again.find_end(5, 10, 1) == 10
    with pytest.raises(DamagedError) as caught:
        again.read_stored(3, 10, 100)
    assert caught.value.next_number == 10


# Times and sizes


@pytest.mark.parametrize("kind", ["file", "memory"])
@pytest.mark.parametrize("max_size", [1 << 20, 4096])
@settings(max_examples=settings().max_examples * 4 // 10)
@given(batches=batches, data=st.data())
def test_size_of_matches_the_sum_of_sizes(
    kind: str, max_size: int, batches: list[list[int]], data: st.DataObject
) -> None:
    sizes = [size for batch in batches for size in batch]
    with filled(kind, batches, max_size) as log:
        for _ in range(10):
            start = data.draw(st.integers(log.oldest, log.end - 1), "start")
            stop = data.draw(st.integers(start + 1, log.end), "stop")
            assert log.size_of(start, stop) == sum(sizes[start:stop])


def test_time_of_gives_the_ingest_time(files: LogFiles, catalog: Catalog) -> None:
    for log in (files.create(), memory_log(catalog)):
        for number in range(8):
            log.append([b"x" * 300, b"y" * 300], 1000 + number)
        log.work()
        assert [log.time_of(number) for number in range(16)] == [
            1000 + number // 2 for number in range(16)
        ]


def test_time_of_does_not_read_the_payload(files: LogFiles) -> None:
    log = files.create(LIMITS._replace(max_size=1 << 20))
    log.append([b"x" * 1000], 7)
    log.append([b"x" * 1000], 8)
    log.work()
    data_path(files.directory, 0).write_bytes(b"")
    assert log.time_of(0) == 7


def test_missing_index_gives_time_zero_and_the_segment_size(files: LogFiles) -> None:
    log = files.create()
    for number in range(9):
        log.append([bytes((number,)) * 300], 5)
    log.work()
    index_path(files.directory, 3).unlink()
    again = files.open()
    assert [again.time_of(number) for number in (2, 3, 4, 5, 6)] == [5, 0, 0, 0, 5]
    # A part of the damaged segment counts as the whole segment.
    assert again.size_of(0, 9) == 2700
    assert again.size_of(2, 5) == 300 + 900


def test_size_of_is_at_most_the_segment_size(files: LogFiles) -> None:
    log = files.create()
    for number in range(4):
        log.append([bytes((number,)) * 300], 5)
    log.work()
    entries = [ENTRY.pack(end, 0, 5) for end in (2**32 - 1, 1, 2**32 - 1)]
    index_path(files.directory, 0).write_bytes(b"".join(entries))
    again = files.open()
    assert again.size_of(0, 1) == 900
    assert again.size_of(1, 2) == 0
