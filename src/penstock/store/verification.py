"""Verification: checks every stored message without changing the store.

A sealed segment is intact if its two files match the checksums in the catalog. All other segments
are checked message by message, with the journal's records applied as at the next start. The catalog
is compared with the files: missing or truncated segments, gaps in the numbers, files without a
stream. Gaps that a salvage left are listed in the catalog (table `gap`) and are not damage.

A running broker appends to, seals and removes segments during the check. So a stream that seems
damaged is checked again with the current catalog and directory, and only damage that is found again
is reported. Messages that the broker removes during the check are not counted.
"""

from __future__ import annotations

import sqlite3
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.discovery import is_served
from penstock.errors import StoreError
from penstock.model import MessageStreamDefinition, Persistence
from penstock.model.storage import SegmentSummary
from penstock.store.catalog_copy import find_rebuilt
from penstock.store.catalog_reader import CatalogReader, StreamSnapshot
from penstock.store.definitions import DamagedDefinitionError, decode_definition
from penstock.store.journal import (
    JournalRecord,
    decode_records,
    has_records_after_damage,
    journal_paths,
)
from penstock.store.log import DEFINITION_FILE
from penstock.store.record import data_path, first_of_name, index_path
from penstock.store.rows import StreamRow
from penstock.store.schema import CATALOG_FILE
from penstock.store.segment_check import (
    CheckedSpan,
    Meter,
    SegmentSource,
    check_messages,
    ignore_bytes,
    matches_checksums,
    raise_unless_damage,
)

# Bounds the memory for a stream in which every other message is damaged.
_MAX_RANGES = 1000
# Beside a running broker, apparent damage is checked again after a pause, this many times.
_CONFIRM_PAUSE_SECONDS = 0.5
_CONFIRMATIONS = 2


class MessageRange(msgspec.Struct, frozen=True, rename="camel"):
    """Consecutive messages."""

    first_sequence_number: int
    last_sequence_number: int

    @property
    def count(self) -> int:
        return self.last_sequence_number - self.first_sequence_number + 1


class DamagedRange(MessageRange, frozen=True, rename="camel"):
    """Consecutive messages that cannot be read for the same reason."""

    reason: str
    # The data file of the segment, relative to the root; empty if there is no segment.
    file: str = ""


class DamagedFile(msgspec.Struct, frozen=True, rename="camel"):
    """A finding about a file of the root that is not about messages."""

    file: str
    reason: str


class StreamReport(msgspec.Struct, rename="camel", kw_only=True):
    name: str
    stream_id: str
    is_in_memory: bool = False
    oldest_sequence_number: int = 0
    end_sequence_number: int = 0
    segments: int = 0
    intact_messages: int = 0
    damaged_messages: int = 0
    # Messages that a salvage could not read. They are not damage of this root.
    missing_messages: int = 0
    bytes: int = 0
    damage: list[DamagedRange] = []
    gaps: list[MessageRange] = []
    # Ranges beyond the max length of the lists above; their messages are counted.
    unlisted_ranges: int = 0
    unlisted_gaps: int = 0


class VerificationReport(msgspec.Struct, rename="camel", kw_only=True):
    root: str
    is_served: bool
    streams: list[StreamReport] = []
    problems: list[DamagedFile] = []
    # Findings that are not damage: leftovers that the broker removes, renamed files.
    notes: list[DamagedFile] = []
    seconds: float = 0.0

    @property
    def damaged_messages(self) -> int:
        return sum(stream.damaged_messages for stream in self.streams)

    @property
    def missing_messages(self) -> int:
        return sum(stream.missing_messages for stream in self.streams)

    @property
    def has_damage(self) -> bool:
        return bool(self.damaged_messages or self.problems)


class SegmentCheck(NamedTuple):
    """The result for one segment: its messages up to `end`, without gaps."""

    first: int
    end: int
    size: int
    summary: SegmentSummary | None
    records: Sequence[JournalRecord]
    spans: Sequence[CheckedSpan]
    problems: Sequence[DamagedFile] = ()
    notes: Sequence[DamagedFile] = ()

    @property
    def is_intact(self) -> bool:
        return not self.problems and all(span.reason is None for span in self.spans)


class StreamCheck(NamedTuple):
    report: StreamReport
    snapshot: StreamSnapshot
    definition: MessageStreamDefinition | None
    segments: Sequence[SegmentCheck]
    # Findings about the catalog and the directory; `segments` have the others.
    other_problems: Sequence[DamagedFile]
    other_notes: Sequence[DamagedFile]

    @property
    def problems(self) -> list[DamagedFile]:
        return [
            *self.other_problems,
            *(each for segment in self.segments for each in segment.problems),
        ]

    @property
    def notes(self) -> list[DamagedFile]:
        return [*self.other_notes, *(each for segment in self.segments for each in segment.notes)]


class _PlannedSegment(NamedTuple):
    """A segment to check."""

    first: int
    # None if the segment is not sealed.
    summary: SegmentSummary | None
    # Messages below this number must exist.
    required_end: int
    # Whether it is the active segment.
    is_newest: bool
    records: Sequence[JournalRecord] = ()


class Verification:
    """Checks one root: `run` checks everything, `streams` yields the streams one by one."""

    def __init__(
        self,
        root: Path,
        *,
        patterns: Sequence[str] = (),
        meter: Meter = ignore_bytes,
        pause: Callable[[float], None] = time.sleep,
        catalog_root: Path | None = None,
    ) -> None:
        """`catalog_root`: the directory of the catalog, if it is not the root."""
        if not (root / "streams").is_dir() and not (root / CATALOG_FILE).exists():
            raise StoreError(f"{root} is not a store: it has neither streams/ nor catalog.sqlite")
        self._root = root
        self._patterns = patterns
        self._meter = meter
        self._pause = pause
        self._catalog_root = catalog_root or root
        self.report = VerificationReport(root=str(root), is_served=is_served(root))
        self._records: dict[str, list[JournalRecord]] = {}
        self._catalog: CatalogReader | None = None

    def total_bytes(self) -> int:
        """The approximate number of bytes to read in all streams."""
        size = 0
        for suffix in ("data", "index"):
            for path in self._root.glob(f"streams/*/*.{suffix}"):
                with suppress(OSError):
                    size += path.stat().st_size
        return size

    def run(self) -> VerificationReport:
        for _ in self.streams():
            pass
        return self.report

    def streams(self) -> Iterator[StreamCheck]:
        """Checks the streams one by one. The report is complete at the end."""
        began = time.monotonic()
        try:
            yield from self._check_streams()
        finally:
            if self._catalog is not None:
                self._catalog.close()
        self.report.seconds = round(time.monotonic() - began, 3)

    def _check_streams(self) -> Iterator[StreamCheck]:
        self._find_leftovers()
        rows, removed = self._read_catalog()
        if not self.report.is_served:
            self._read_journal()
        for row in sorted(rows, key=lambda row: row.name):
            if self._is_selected(row.name):
                check = self._check_and_confirm(row.id)
                if check is not None:
                    yield self._add(check)
        for directory in self._find_unlisted({row.id for row in rows} | removed):
            check = self._check_unlisted(directory)
            if check is not None:
                yield self._add(check)

    def _add(self, check: StreamCheck) -> StreamCheck:
        self.report.streams.append(check.report)
        self.report.problems += check.problems
        self.report.notes += check.notes
        return check

    def _is_selected(self, name: str) -> bool:
        return not self._patterns or any(fnmatchcase(name, each) for each in self._patterns)

    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self._root))

    def _find_leftovers(self) -> None:
        for path in sorted(self._root.glob("catalog.sqlite.damaged-*")):
            self.report.notes.append(DamagedFile(path.name, "renamed by recovery"))
        rebuilt = find_rebuilt(self._root)
        if rebuilt is not None:
            self.report.notes.append(
                DamagedFile(
                    rebuilt.name, "used as the catalog; the next start replaces the catalog with it"
                )
            )

    def _read_catalog(self) -> tuple[list[StreamRow], set[str]]:
        try:
            catalog = self._reopen_catalog()
            self.report.problems += [
                DamagedFile(CATALOG_FILE, reason) for reason in catalog.find_damage()
            ]
            return catalog.streams(), catalog.removed_directories()
        except (OSError, sqlite3.Error) as error:
            if isinstance(error, OSError):
                raise_unless_damage(error)
            self.report.problems.append(DamagedFile(CATALOG_FILE, f"cannot be read: {error}"))
            return [], set()

    def _reopen_catalog(self) -> CatalogReader:
        """Opens the current catalog, which a broker may have replaced."""
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None
        self._catalog = CatalogReader(self._catalog_root)
        return self._catalog

    def _read_journal(self) -> None:
        for path in journal_paths(self._root):
            try:
                contents = path.read_bytes()
            except OSError as error:
                raise_unless_damage(error)
                self.report.problems.append(DamagedFile(path.name, f"cannot be read: {error}"))
                continue
            for record in decode_records(contents):
                self._records.setdefault(record.stream_id, []).append(record)
            if has_records_after_damage(contents):
                self.report.notes.append(
                    DamagedFile(path.name, "has a damaged record before intact ones")
                )

    def _check_and_confirm(self, stream_id: str) -> StreamCheck | None:
        """Checks a stream, and beside a running broker repeats it on damage; None if deleted."""
        intact: dict[int, SegmentCheck] = {}
        try:
            assert self._catalog is not None
            check = self._check_known(self._catalog, stream_id, intact)
            for _ in range(_CONFIRMATIONS):
                if check is None or not (check.problems or check.report.damaged_messages):
                    break
                if not (self.report.is_served or is_served(self._root)):
                    break
                if not self.report.is_served:
                    # A broker has started and replayed the journal.
                    self.report.is_served = True
                    self._records.clear()
                self._pause(_CONFIRM_PAUSE_SECONDS)
                check = self._check_known(self._reopen_catalog(), stream_id, intact)
            return check
        except sqlite3.Error as error:
            self.report.problems.append(
                DamagedFile(CATALOG_FILE, f"rows of stream {stream_id} cannot be read: {error}")
            )
            return self._check_unlisted(self._root / "streams" / stream_id)

    def _check_known(
        self, catalog: CatalogReader, stream_id: str, intact: dict[int, SegmentCheck]
    ) -> StreamCheck | None:
        snapshot = catalog.snapshot(stream_id)
        if snapshot is None:
            return None
        check = self._check_stream(snapshot, intact)
        if not self.report.is_served:
            return check
        # The broker removes segments from the catalog before their files.
        now = catalog.snapshot(stream_id)
        if now is None:
            return None
        if now.row.oldest > snapshot.row.oldest:
            check = self._count(check, now.row.oldest)
        return check

    def _check_stream(
        self, snapshot: StreamSnapshot, intact: dict[int, SegmentCheck]
    ) -> StreamCheck:
        row = snapshot.row
        report = StreamReport(name=row.name, stream_id=row.id)
        directory = self._root / "streams" / row.id
        problems: list[DamagedFile] = []
        notes: list[DamagedFile] = []
        definition = self._check_definition(row, directory, problems)
        if definition is not None and definition.persistence is Persistence.Memory:
            report.is_in_memory = True
            report.oldest_sequence_number = report.end_sequence_number = row.reserved
            return StreamCheck(report, snapshot, definition, (), problems, notes)
        if not directory.is_dir():
            problems.append(DamagedFile(self._relative(directory), "directory is missing"))
        checks = []
        for segment in self._plan_segments(snapshot, directory, problems, notes):
            check = intact.get(segment.first)
            if check is None or check.summary is None or check.summary != segment.summary:
                check = self._check_segment(directory, segment)
            if check.is_intact:
                intact[segment.first] = check
            checks.append(check)
        oldest = min([row.oldest, *(check.first for check in checks)])
        return self._count(
            StreamCheck(report, snapshot, definition, checks, problems, notes), oldest
        )

    def _count(self, check: StreamCheck, oldest: int) -> StreamCheck:
        """Counts messages from `oldest` on, without segments that end below it."""
        row = check.snapshot.row
        report = StreamReport(name=row.name, stream_id=row.id, oldest_sequence_number=oldest)
        add_unreadable = partial(_add_unreadable, report, check.snapshot.gaps)
        segments = [each for each in check.segments if each.end > oldest or each.first >= oldest]
        end = oldest
        for segment in segments:
            add_unreadable(end, segment.first, "no segment holds this number")
            report.segments += 1
            report.bytes += segment.size
            for span in segment.spans:
                first = max(span.first, oldest)
                if span.reason is not None:
                    path = data_path(self._root / "streams" / row.id, segment.first)
                    add_unreadable(first, span.end, span.reason, self._relative(path))
                elif first < span.end:
                    report.intact_messages += span.end - first
            end = segment.end
        add_unreadable(end, check.snapshot.lowest_end, "no segment holds this number")
        report.end_sequence_number = max(end, check.snapshot.lowest_end)
        return check._replace(report=report, segments=segments)

    def _check_definition(
        self, row: StreamRow, directory: Path, problems: list[DamagedFile]
    ) -> MessageStreamDefinition | None:
        path = directory / DEFINITION_FILE
        copy = None
        try:
            copy = decode_definition(path.read_bytes())
        except FileNotFoundError:
            pass
        except OSError as error:
            raise_unless_damage(error)
            problems.append(DamagedFile(self._relative(path), f"cannot be read: {error}"))
        except DamagedDefinitionError as error:
            problems.append(DamagedFile(self._relative(path), f"is damaged: {error}"))
        if not row.definition:
            return copy
        try:
            definition = decode_definition(row.definition)
        except DamagedDefinitionError as error:
            problems.append(
                DamagedFile(CATALOG_FILE, f"definition of {row.name!r} is damaged: {error}")
            )
            return copy
        if definition.name != row.name:
            problems.append(
                DamagedFile(CATALOG_FILE, f"{row.name!r} has the definition of {definition.name!r}")
            )
        return definition

    def _plan_segments(
        self,
        snapshot: StreamSnapshot,
        directory: Path,
        problems: list[DamagedFile],
        notes: list[DamagedFile],
    ) -> list[_PlannedSegment]:
        """All segments in the catalog, the directory and the journal."""
        rows = {summary.first: summary for summary in snapshot.segments}
        oldest = min([snapshot.row.oldest, *rows])
        if oldest < snapshot.row.oldest:
            problems.append(
                DamagedFile(
                    CATALOG_FILE,
                    f"oldest number of {snapshot.row.name!r} is {snapshot.row.oldest}, but "
                    f"there are segments from {oldest} on",
                )
            )
        files = self._list_files(directory, notes)
        records: dict[int, list[JournalRecord]] = {}
        for record in self._records.get(snapshot.row.id, ()):
            # Sealed segments are synced, so they need no records.
            if record.segment >= oldest and record.segment not in rows:
                records.setdefault(record.segment, []).append(record)
        checkpoint = snapshot.checkpoint
        firsts = {*rows, *records}
        for first, paths in files.items():
            if first < oldest:
                notes += [
                    DamagedFile(self._relative(path), "left over from a removal") for path in paths
                ]
            elif len(paths) == 2 or first in firsts:
                firsts.add(first)
            elif checkpoint is None or checkpoint.first != first:
                # An empty file is from an interrupted creation; any other had messages.
                found = problems if _size_of(paths[0]) else notes
                found.append(
                    DamagedFile(self._relative(paths[0]), "other file of the segment is missing")
                )
        if checkpoint is not None and checkpoint.first >= oldest:
            firsts.add(checkpoint.first)
        ordered = sorted(firsts)
        if (not ordered or ordered[-1] in rows) and directory.is_dir() and snapshot.row.definition:
            problems.append(DamagedFile(self._relative(directory), "active segment is missing"))
        return [
            self._plan_segment(
                snapshot, first, rows.get(first), following, records.get(first, ()), problems
            )
            for first, following in zip(ordered, [*ordered[1:], None], strict=False)
        ]

    def _plan_segment(
        self,
        snapshot: StreamSnapshot,
        first: int,
        summary: SegmentSummary | None,
        following: int | None,
        records: Sequence[JournalRecord],
        problems: list[DamagedFile],
    ) -> _PlannedSegment:
        """Plans the check of the segment that begins with this number."""
        checkpoint = snapshot.checkpoint
        if summary is not None and not first < summary.end <= (following or summary.end):
            problems.append(
                DamagedFile(
                    CATALOG_FILE,
                    f"segment {first} of {snapshot.row.name!r} cannot end at {summary.end}",
                )
            )
            summary = None
        if summary is not None:
            required = summary.end
        elif following is not None:
            required = following
        elif checkpoint is not None and checkpoint.first == first:
            required = checkpoint.end
        else:
            required = first
        is_newest = following is None and summary is None
        return _PlannedSegment(first, summary, required, is_newest, records)

    def _list_files(self, directory: Path, notes: list[DamagedFile]) -> dict[int, list[Path]]:
        files: dict[int, list[Path]] = {}
        with suppress(FileNotFoundError):
            for path in sorted(directory.iterdir()):
                first = first_of_name(path.name)
                if first is not None:
                    files.setdefault(first, []).append(path)
                elif first_of_name(path.stem) is not None:
                    notes.append(DamagedFile(self._relative(path), "renamed by recovery"))
                elif path.name not in (DEFINITION_FILE, f"{DEFINITION_FILE}.new"):
                    notes.append(DamagedFile(self._relative(path), "not a Penstock file"))
        return files

    def _check_segment(self, directory: Path, segment: _PlannedSegment) -> SegmentCheck:
        first, summary, required = segment.first, segment.summary, segment.required_end
        try:
            source = SegmentSource(directory, first, segment.records)
        except OSError as error:
            raise_unless_damage(error)
            name = Path(error.filename).name
            is_gone = isinstance(error, FileNotFoundError)
            reason = f"{name} is missing" if is_gone else f"the disk reports: {error.strerror}"
            lost = [CheckedSpan(first, required, 0, 0, reason)] if first < required else []
            return SegmentCheck(first, required, 0, summary, segment.records, lost)
        with source:
            if summary is not None and matches_checksums(source, summary, self._meter):
                spans = [CheckedSpan(first, summary.end, 0, summary.size)]
                return SegmentCheck(
                    first, summary.end, summary.size, summary, segment.records, spans
                )
            count = source.count
            if not segment.is_newest:
                count = min(count, required - first)
            spans = list(check_messages(source, first, count, self._meter))
            size = min(source.data_size, summary.size) if summary else source.data_size
        notes = []
        torn = 0
        while segment.is_newest and not self.report.is_served and spans and spans[-1].reason:
            # After the last sync, damaged entries are appends that a crash interrupted.
            if spans[-1].end <= required:
                break
            last = spans.pop()
            torn += last.end - max(last.first, required)
            if last.first < required:
                spans.append(last._replace(end=required))
        if torn:
            file = self._relative(index_path(directory, first))
            notes.append(
                DamagedFile(file, f"{torn} messages at its end were not written completely")
            )
        problems = []
        end = spans[-1].end if spans else first
        if end < required:
            spans.append(CheckedSpan(end, required, 0, 0, "index entry is missing"))
            end = required
        elif summary is not None and all(span.reason is None for span in spans):
            problems.append(
                DamagedFile(
                    CATALOG_FILE,
                    f"checksums of {self._relative(data_path(directory, first))} do not match the "
                    "files, whose messages are intact",
                )
            )
        return SegmentCheck(first, end, size, summary, segment.records, spans, problems, notes)

    def _find_unlisted(self, known: set[str]) -> list[Path]:
        """Directories of streams that the catalog does not list."""
        try:
            found = [
                path
                for path in sorted((self._root / "streams").iterdir())
                if path.name not in known and path.is_dir()
            ]
        except FileNotFoundError:
            self.report.problems.append(DamagedFile("streams", "directory is missing"))
            return []
        if found and is_served(self._root):
            # The broker may have created or deleted these streams just now.
            self._pause(_CONFIRM_PAUSE_SECONDS)
            with suppress(OSError, sqlite3.Error):
                catalog = self._reopen_catalog()
                known = known | {row.id for row in catalog.streams()}
                known |= catalog.removed_directories()
        return [path for path in found if path.name not in known and path.is_dir()]

    def _check_unlisted(self, directory: Path) -> StreamCheck | None:
        """Checks a directory without a catalog row; None if it has no selected stream."""
        relative = self._relative(directory)
        notes: list[DamagedFile] = []
        files = self._list_files(directory, notes)
        paths = [path for paths in files.values() for path in paths]
        name = relative
        with suppress(OSError, DamagedDefinitionError):
            name = decode_definition((directory / DEFINITION_FILE).read_bytes()).name
        if not self._is_selected(name):
            return None
        if not any(map(_size_of, paths)) and not (directory / DEFINITION_FILE).exists():
            # The creation was not finished.
            self.report.notes.append(DamagedFile(relative, "empty, and not in the catalog"))
            return None
        if not any(problem.file == CATALOG_FILE for problem in self.report.problems):
            self.report.problems.append(DamagedFile(relative, "not in the catalog"))
        row = StreamRow(directory.name, name, b"", min(files, default=0), 0)
        return self._check_stream(StreamSnapshot(row, (), None, 0), {})


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _add_unreadable(
    report: StreamReport,
    gaps: Sequence[tuple[int, int]],
    first: int,
    end: int,
    reason: str,
    file: str = "",
) -> None:
    """Counts unreadable messages [first, end): missing in known gaps, damaged elsewhere."""
    place = bisect_right(gaps, first, key=itemgetter(1))
    while first < end:
        gap_first, gap_end = gaps[place] if place < len(gaps) else (end, end)
        damaged_end = min(max(gap_first, first), end)
        _add_damage(report, first, damaged_end, reason, file)
        first = min(gap_end, end)
        _add_gap(report, damaged_end, first)
        place += 1


def _add_gap(report: StreamReport, first: int, end: int) -> None:
    if first >= end:
        return
    report.missing_messages += end - first
    last = report.gaps[-1] if report.gaps else None
    if last is not None and last.last_sequence_number + 1 == first:
        report.gaps[-1] = MessageRange(last.first_sequence_number, end - 1)
    elif len(report.gaps) < _MAX_RANGES:
        report.gaps.append(MessageRange(first, end - 1))
    else:
        report.unlisted_gaps += 1


def _add_damage(report: StreamReport, first: int, end: int, reason: str, file: str = "") -> None:
    if first >= end:
        return
    report.damaged_messages += end - first
    last = report.damage[-1] if report.damage else None
    if last is not None and (last.reason, last.file, last.last_sequence_number + 1) == (
        reason,
        file,
        first,
    ):
        report.damage[-1] = DamagedRange(last.first_sequence_number, end - 1, reason, file)
    elif len(report.damage) < _MAX_RANGES:
        report.damage.append(DamagedRange(first, end - 1, reason, file))
    else:
        report.unlisted_ranges += 1


def verify(
    root: Path, *, patterns: Sequence[str] = (), meter: Meter = ignore_bytes
) -> VerificationReport:
    """Checks the streams that match `patterns`, or all."""
    return Verification(root, patterns=patterns, meter=meter).run()


class ReadThrottle:
    """A meter that waits to limit the bytes read per second."""

    def __init__(
        self,
        bytes_a_second: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_a_second
        self._clock = clock
        self._sleep = sleep
        self._due = clock()

    def __call__(self, count: int) -> None:
        now = self._clock()
        self._due = max(self._due, now - 1.0) + count / self._rate
        if self._due > now:
            self._sleep(self._due - now)
