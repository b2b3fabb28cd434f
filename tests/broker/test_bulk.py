"""Requests of bulk readers: watches, locations of messages, and stored bytes."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.access import FULL_ACCESS, Role
from penstock.broker.bulk import _compile
from penstock.broker.memory import AnswerRoom
from penstock.discovery import read_address
from penstock.errors import (
    InvalidRequestException,
    MessageStoreReadErrorException,
    ResourceNotFoundException,
    UnauthorizedException,
)
from penstock.model.storage import SegmentSummary
from penstock.store.catalog import Catalog
from penstock.store.record import ENTRY, checksum, data_path, index_path
from penstock.store.rows import TokenRow
from penstock.wire.operations import Operation
from penstock.wire.requests import WatchStreamsRequest
from tests.raw_connection import RawConnection
from tests.support import (
    MEBIBYTE,
    BrokerProcess,
    Json,
    LocalBroker,
    append,
    create,
    wait_until,
)

_numbers = count()

# Segments of three messages of 300 bytes.
SMALL = {"streamSegmentSize": 1024, "maxSize": MEBIBYTE}
MEMORY = {"persistence": 1}
A_MINUTE = 60_000


@pytest.fixture
def prefix() -> str:
    """The prefix of a test's stream names."""
    return f"test {next(_numbers)}."


@pytest.fixture
def stream(client: RawConnection, prefix: str) -> str:
    return create(client, f"{prefix}s", **SMALL)


def send_watch(client: RawConnection, *patterns: str, **next_numbers: int) -> None:
    """Sends a watch of these streams, without reading the answer."""
    client.send(
        Operation.WatchStreams,
        patterns=list(patterns),
        nextNumbers=next_numbers,
        waitMillis=A_MINUTE,
    )


def receive_watch(client: RawConnection) -> dict[str, Json]:
    operation, answer = client.receive()
    assert (operation, answer["status"]) == (Operation.WatchStreamsResponse, 0), answer
    return {stream["name"]: stream for stream in answer["streams"]}


def ends(streams: dict[str, Json]) -> dict[str, int]:
    return {name: stream["endSequenceNumber"] for name, stream in streams.items()}


def watch(client: RawConnection, *patterns: str) -> dict[str, Json]:
    client.send(Operation.WatchStreams, patterns=list(patterns))
    return receive_watch(client)


def id_of(client: RawConnection, name: str) -> str:
    return str(watch(client, name)[name]["streamId"])


def waiting(client: RawConnection, name: str) -> int:
    streams = client.call(Operation.Statistics)["statistics"]["streams"]
    return sum(stream["waitingReads"] for stream in streams if stream["name"] == name)


def locate(client: RawConnection, name: str, first: int, end: int, **fields: Any) -> Json:
    return client.call(
        Operation.LocateMessages,
        name=name,
        firstSequenceNumber=first,
        endSequenceNumber=end,
        **fields,
    )


def stored(client: RawConnection, name: str, first: int, end: int, **fields: Any) -> Json:
    return client.call(
        Operation.ReadStored, name=name, firstSequenceNumber=first, endSequenceNumber=end, **fields
    )


def enter(broker: LocalBroker, role: Role, *patterns: str) -> RawConnection:
    """A connection with a token of its own."""
    catalog = Catalog(broker.root / "catalog.sqlite")
    secret = f"secret {next(_numbers)}"
    catalog.add_token(TokenRow(secret, role, patterns, 1), secret)
    catalog.close()
    return broker.connect(secret)


def directory_of(root: Path, client: RawConnection, name: str) -> Path:
    return root / "streams" / id_of(client, name)


def write_byte(path: Path, place: int, value: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(bytes((value,)))


def truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


# Watches that are answered at once


def test_watch_returns_the_range_of_each_stream(client: RawConnection, prefix: str) -> None:
    full = create(client, f"{prefix}full", maxSize=2048, streamSegmentSize=1024)
    empty = create(client, f"{prefix}empty")
    for _ in range(5):
        append(client, full, bytes(1000))

    streams = watch(client, f"{prefix}*")

    # Two segments fit, and each has one of these messages.
    assert {
        name: (s["oldestSequenceNumber"], s["endSequenceNumber"]) for name, s in streams.items()
    } == {
        full: (3, 5),
        empty: (0, 0),
    }
    assert len({stream["streamId"] for stream in streams.values()}) == 2


def test_stream_that_is_created_again_has_a_new_id(client: RawConnection, stream: str) -> None:
    before = id_of(client, stream)
    assert id_of(client, stream) == before

    client.call(Operation.DeleteMessageStream, name=stream)
    assert watch(client, stream) == {}
    create(client, stream)

    assert id_of(client, stream) != before


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (["a1"], ["a1"]),
        (["a*"], ["a1", "a2"]),
        (["a?", "a1", "*1"], ["a1", "a2", "b1"]),
        (["[!a]*"], ["b1"]),
        (["[ab]1"], ["a1", "b1"]),
        (["A1", "a", "1", "a1 "], []),
        (["nowhere"], []),
    ],
)
def test_watch_returns_streams_by_name_and_pattern(
    client: RawConnection, prefix: str, patterns: list[str], found: list[str]
) -> None:
    for name in ("a1", "a2", "b1"):
        create(client, prefix + name)

    streams = watch(client, *(prefix + pattern for pattern in patterns))

    assert sorted(streams) == [prefix + name for name in found]


def test_unknown_stream_ends_the_watch(client: RawConnection, prefix: str) -> None:
    known, unknown = create(client, f"{prefix}a"), create(client, f"{prefix}b")

    send_watch(client, f"{prefix}*", **{known: 0})

    assert ends(receive_watch(client)) == {known: 0, unknown: 0}


@pytest.mark.parametrize("number", [0, 2])
def test_stored_message_ends_the_watch(client: RawConnection, prefix: str, number: int) -> None:
    quiet, stream = create(client, f"{prefix}quiet"), create(client, f"{prefix}s")
    client.append_many(stream, [b"x"] * 3)

    send_watch(client, f"{prefix}*", **{stream: number, quiet: 0})

    assert ends(receive_watch(client)) == {quiet: 0, stream: 3}


# Watches that wait


@pytest.mark.parametrize("which", range(3))
def test_append_to_any_stream_ends_the_watch(
    client: RawConnection, other: RawConnection, prefix: str, which: int
) -> None:
    names = [create(client, f"{prefix}{place}") for place in range(3)]
    for name in names:
        append(client, name, b"x")
    send_watch(client, f"{prefix}*", **dict.fromkeys(names, 1))
    wait_until(lambda: all(waiting(other, name) == 1 for name in names))

    append(other, names[which], b"y")

    assert ends(receive_watch(client)) == {
        name: 2 if place == which else 1 for place, name in enumerate(names)
    }
    assert [waiting(other, name) for name in names] == [0, 0, 0]


def test_watch_waits_for_a_higher_number(
    client: RawConnection, other: RawConnection, stream: str
) -> None:
    send_watch(client, stream, **{stream: 2})
    wait_until(lambda: waiting(other, stream) == 1)
    for _ in range(2):
        append(other, stream, b"x")
        assert waiting(other, stream) == 1

    append(other, stream, b"x")

    assert ends(receive_watch(client)) == {stream: 3}


def test_watch_is_answered_in_the_turn_of_its_own_connection(
    broker: LocalBroker, client: RawConnection, stream: str
) -> None:
    """The answer does not delay the append of another connection."""
    request = WatchStreamsRequest(
        request_id="r", patterns=[stream], next_numbers={stream: 0}, wait_millis=A_MINUTE
    )

    def append_during_a_watch() -> None:
        call = Recorder()
        broker.broker.handlers.handle(call, request)
        broker.broker.streams.find(stream).append([b"x"], 1)
        assert call.answers == []
        list(call.steps)
        ((answered,),) = [answer["streams"] for answer in call.answers]
        assert answered["endSequenceNumber"] == 1

    broker.run(append_during_a_watch)


class Recorder:
    """A call that records its steps, for the test to run, and its answers."""

    request_id = "r"
    access = FULL_ACCESS

    def __init__(self) -> None:
        self.steps: Iterator[None] = iter(())
        self.answers: list[Json] = []

    def work(self, steps: Iterator[None]) -> None:
        self.steps = steps

    @property
    def answer_by(self) -> float:
        raise AssertionError("nothing waits for memory")

    def succeed_in(self, room: AnswerRoom, **fields: Any) -> None:
        room.release()
        self.answers.append(fields)

    def send_parts(self, parts: list[bytes], room: AnswerRoom) -> None:
        raise AssertionError("nothing is read")

    def succeed(self, **fields: Any) -> None:
        self.answers.append(fields)

    def allow_seconds(self, seconds: float) -> None:
        pass

    def on_close(self, cancel: Callable[[], object]) -> None:
        pass

    def hold_requests(self) -> None:
        pass

    def send(self, response: bytes) -> None:
        raise AssertionError("nothing is answered")

    def fail(self, error: Exception) -> None:
        raise error


def test_watch_without_new_messages_is_answered_after_its_timeout(
    client: RawConnection, prefix: str
) -> None:
    stream = create(client, f"{prefix}s")
    append(client, stream, b"x")
    for pattern, expected in ((stream, {stream: 1}), (f"{prefix}nothing*", {})):
        began = time.monotonic()
        client.send(
            Operation.WatchStreams, patterns=[pattern], nextNumbers={stream: 1}, waitMillis=100
        )

        assert ends(receive_watch(client)) == expected
        assert time.monotonic() - began >= 0.09


@pytest.mark.parametrize(
    ("millis", "at_most"), [(10_000, 9.8), (A_MINUTE, 59.75), (2 * A_MINUTE, 119.75)]
)
def test_watch_ends_before_the_client_times_out(
    broker: LocalBroker,
    client: RawConnection,
    other: RawConnection,
    stream: str,
    millis: int,
    at_most: float,
) -> None:
    """An answer exactly at the timeout is late, and the connection would be closed."""
    client.send(
        Operation.WatchStreams, patterns=[stream], nextNumbers={stream: 0}, waitMillis=millis
    )
    wait_until(lambda: waiting(other, stream) == 1)

    def seconds_left() -> float:
        ((_, _, waiter),) = broker.broker.streams.find(stream).waiters._heap
        assert waiter._done is not None
        timer = waiter._done.__self__._timer  # type: ignore[attr-defined] # a bound method
        return float(timer.when() - broker.loop.time())

    assert 0 < broker.run(seconds_left) <= at_most


def test_lost_connection_removes_its_waiters(
    broker: LocalBroker, client: RawConnection, prefix: str
) -> None:
    names = [create(client, f"{prefix}{place}") for place in range(2)]
    leaving = broker.connect()
    for _ in range(3):
        send_watch(leaving, f"{prefix}*", **dict.fromkeys(names, 0))
    wait_until(lambda: [waiting(client, name) for name in names] == [3, 3])
    assert broker.run(lambda: len(broker.broker.streams.change_waiters)) == 3

    leaving.close()

    wait_until(lambda: [waiting(client, name) for name in names] == [0, 0])
    assert broker.run(lambda: len(broker.broker.streams.change_waiters)) == 0
    assert append(client, names[0], b"x") == 0


def test_deletion_ends_the_watch(client: RawConnection, other: RawConnection, prefix: str) -> None:
    kept, deleted = create(client, f"{prefix}a"), create(client, f"{prefix}b")
    send_watch(client, f"{prefix}*", **{kept: 0, deleted: 0})
    wait_until(lambda: waiting(other, kept) == 1)

    other.call(Operation.DeleteMessageStream, name=deleted)

    assert ends(receive_watch(client)) == {kept: 0}
    assert waiting(other, kept) == 0


def test_creation_of_a_matching_stream_ends_the_watch(
    broker: LocalBroker, client: RawConnection, other: RawConnection, prefix: str
) -> None:
    known = create(client, f"{prefix}a")
    send_watch(client, f"{prefix}*", **{known: 0})
    wait_until(lambda: waiting(other, known) == 1)

    create(other, f"another {prefix}")
    assert waiting(other, known) == 1
    assert broker.run(lambda: len(broker.broker.streams.change_waiters)) == 1
    created = create(other, f"{prefix}b")

    assert ends(receive_watch(client)) == {known: 0, created: 0}
    assert broker.run(lambda: len(broker.broker.streams.change_waiters)) == 0


def test_watch_waits_for_the_first_matching_stream(
    broker: LocalBroker, client: RawConnection, other: RawConnection, prefix: str
) -> None:
    send_watch(client, f"{prefix}*")
    wait_until(lambda: broker.run(lambda: len(broker.broker.streams.change_waiters)) == 1)

    created = create(other, f"{prefix}s")

    assert ends(receive_watch(client)) == {created: 0}


def test_watches_are_answered_when_the_broker_stops(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        create(client, "s")
        send_watch(client, "s", s=0)
        send_watch(client, "not there yet")
        wait_until(lambda: broker.run(lambda: len(broker.broker.streams.change_waiters)) == 2)

        broker.stop()

        assert [sorted(receive_watch(client)), sorted(receive_watch(client))] == [["s"], []]
        with pytest.raises(ConnectionError):
            client.receive()


# Patterns of watches


@settings(deadline=None)
@given(
    st.lists(st.text("ab*?[]!-", min_size=1, max_size=8), min_size=1, max_size=5),
    st.text("abc-", min_size=1, max_size=6),
)
def test_patterns_match_like_those_of_tokens(patterns: list[str], name: str) -> None:
    assert _compile(patterns)(name) == any(fnmatchcase(name, pattern) for pattern in patterns)


def test_patterns_are_limited_and_names_are_not(client: RawConnection, stream: str) -> None:
    """Compiling a pattern blocks the event loop."""
    names = [f"no {number}" for number in range(900)]
    patterns = [f"no {number}*" for number in range(64)]

    assert list(watch(client, stream, *names, *patterns)) == [stream]
    with pytest.raises(
        InvalidRequestException, match="65 patterns with wildcards: expected at most"
    ):
        client.call(Operation.WatchStreams, patterns=[*patterns, "one more*"])


# Permissions of watches


@pytest.mark.parametrize("role", Role)
def test_every_role_may_watch_the_streams_of_its_token(
    broker: LocalBroker, client: RawConnection, prefix: str, role: Role
) -> None:
    own, foreign = create(client, f"{prefix}own"), create(client, f"{prefix}foreign")
    with enter(broker, role, f"{prefix}o*") as limited:
        assert list(watch(limited, "*")) == [own]
        assert watch(limited, foreign) == {}


def test_streams_outside_of_the_token_do_not_end_the_watch(
    broker: LocalBroker, client: RawConnection, prefix: str
) -> None:
    own, foreign = create(client, f"{prefix}own"), create(client, f"{prefix}foreign")
    with enter(broker, Role.consumer, f"{prefix}o*") as limited:
        send_watch(limited, "*", **{own: 0, foreign: 0})
        wait_until(lambda: waiting(client, own) == 1)
        append(client, foreign, b"x")
        create(client, f"{prefix}another")
        assert (waiting(client, own), waiting(client, foreign)) == (1, 0)

        append(client, own, b"x")

        assert ends(receive_watch(limited)) == {own: 1}


# Permissions of location and stored reads


@pytest.mark.parametrize("ask", [locate, stored])
def test_roles_that_may_read_may_locate_and_read_stored_bytes(
    broker: LocalBroker, client: RawConnection, prefix: str, ask: Callable[..., Json]
) -> None:
    own, foreign = create(client, f"{prefix}own"), create(client, f"{prefix}foreign")
    append(client, own, b"x")
    for role in Role:
        with enter(broker, role, f"{prefix}o*") as limited:
            if role in (Role.producer, Role.observer):
                with pytest.raises(UnauthorizedException, match=f"{role} does not allow"):
                    ask(limited, own, 0, 1)
                continue
            assert ask(limited, own, 0, 1)["status"] == 0
            for name in (foreign, "nowhere"):
                with pytest.raises(
                    UnauthorizedException, match=f"does not allow the stream '{name}'"
                ):
                    ask(limited, name, 0, 1)


@pytest.mark.parametrize("ask", [locate, stored])
def test_stream_that_is_created_again_is_not_found_by_its_old_id(
    client: RawConnection, stream: str, ask: Callable[..., Json]
) -> None:
    append(client, stream, b"x")
    before = id_of(client, stream)
    assert ask(client, stream, 0, 1, streamId=before)["status"] == 0

    client.call(Operation.DeleteMessageStream, name=stream)
    with pytest.raises(ResourceNotFoundException, match="does not exist"):
        ask(client, stream, 0, 1, streamId=before)
    create(client, stream)
    append(client, stream, b"y")

    with pytest.raises(ResourceNotFoundException, match="deleted and created again"):
        ask(client, stream, 0, 1, streamId=before)
    # Without an id, the new stream is used.
    assert ask(client, stream, 0, 1)["status"] == 0


# Locations


def segments_of(answer: Json) -> list[SegmentSummary]:
    return [
        SegmentSummary(
            *(
                plain[key]
                for key in (
                    "first",
                    "end",
                    "size",
                    "oldestTime",
                    "newestTime",
                    "dataCrc",
                    "indexCrc",
                )
            )
        )
        for plain in answer["segments"]
    ]


def check_files(directory: Path, segments: list[SegmentSummary]) -> None:
    """The sizes and checksums of the segments match their files."""
    for segment in segments:
        data = data_path(directory, segment.first).read_bytes()[: segment.size]
        index = index_path(directory, segment.first).read_bytes()
        index = index[: (segment.end - segment.first) * ENTRY.size]
        assert (len(data), zlib.crc32(data)) == (segment.size, segment.data_crc)
        assert zlib.crc32(index) == segment.index_crc
        entries = list(ENTRY.iter_unpack(index))
        assert len(entries) == segment.end - segment.first
        times = [ingest_time for _, _, ingest_time in entries]
        assert (min(times), max(times)) == (segment.oldest_time, segment.newest_time)


def fill(client: RawConnection, name: str, number: int = 10) -> list[bytes]:
    """Appends messages of 300 bytes, three for each small segment."""
    payloads = [bytes((place % 256,)) * 300 for place in range(number)]
    for payload in payloads:
        append(client, name, payload)
    return payloads


# First, end and size of the segments of a filled stream.
FILLED = [(0, 3, 900), (3, 6, 900), (6, 9, 900), (9, 10, 300)]


def test_segment_summaries_match_their_files(
    broker: LocalBroker, client: RawConnection, stream: str
) -> None:
    fill(client, stream)

    answer = locate(client, stream, 0, 10)

    segments = segments_of(answer)
    assert [(s.first, s.end, s.size) for s in segments] == FILLED
    check_files(directory_of(broker.root, client, stream), segments)
    assert answer["hasFiles"] is True
    assert (answer["oldestSequenceNumber"], answer["endSequenceNumber"]) == (0, 10)
    assert answer["limitSequenceNumber"] == 10


def test_locate_returns_the_root_and_the_instance(
    broker: LocalBroker, client: RawConnection, stream: str
) -> None:
    answer = locate(client, stream, 0, 1)

    address = read_address(Path(answer["root"]))
    assert address is not None
    assert (address.port, address.instance) == (broker.port, answer["instance"])


def test_summary_stays_valid_while_the_segment_grows(
    broker: LocalBroker, client: RawConnection, stream: str
) -> None:
    directory = directory_of(broker.root, client, stream)
    segments: list[SegmentSummary] = []
    for _ in range(10):
        append(client, stream, bytes(100))
        segments.append(segments_of(locate(client, stream, 0, 100))[-1])

    # The tenth message still fits into the segment.
    assert [(segment.first, segment.end) for segment in segments] == [
        (0, number) for number in range(1, 11)
    ]
    check_files(directory, segments)


@pytest.mark.parametrize("end_it", [BrokerProcess.stop, BrokerProcess.kill])
def test_restart_keeps_segments_and_changes_the_instance(
    tmp_path: Path, end_it: Callable[[BrokerProcess], None]
) -> None:
    with BrokerProcess(tmp_path / "root") as broker:
        with broker.connect() as client:
            create(client, "s", **SMALL)
            fill(client, "s")
            before = locate(client, "s", 0, 10)
        end_it(broker)
        broker.start()
        with broker.connect() as client:
            after = locate(client, "s", 0, 10)
            assert segments_of(after) == segments_of(before)
            check_files(directory_of(broker.root, client, "s"), segments_of(after))
            assert after["instance"] != before["instance"]
            assert after["root"] == before["root"]

            # The active segment continues its checksums.
            fill(client, "s", 5)
            grown = segments_of(locate(client, "s", 0, 15))
            assert grown[:3] == segments_of(before)[:3]
            assert grown[-1].end == 15
            check_files(directory_of(broker.root, client, "s"), grown)


def test_evicted_messages_are_in_no_segment(
    broker: LocalBroker, client: RawConnection, prefix: str
) -> None:
    small = create(client, f"{prefix}s", streamSegmentSize=1024, maxSize=4096)
    fill(client, small, 30)

    answer = locate(client, small, 0, 30)

    oldest = answer["oldestSequenceNumber"]
    segments = segments_of(answer)
    assert oldest > 15
    assert (segments[0].first, segments[-1].end) == (oldest, 30)
    assert all(before.end == after.first for before, after in pairwise(segments))
    check_files(directory_of(broker.root, client, small), segments)
    gone = locate(client, small, 0, oldest, maxBytes=1)
    assert (gone["segments"], gone["limitSequenceNumber"]) == ([], oldest)


def test_memory_stream_has_segments_without_files(
    broker: LocalBroker, client: RawConnection, prefix: str
) -> None:
    memory = create(client, f"{prefix}s", **SMALL, **MEMORY)
    fill(client, memory)

    answer = locate(client, memory, 0, 10, maxBytes=1000)

    assert answer["hasFiles"] is False
    segments = segments_of(answer)
    assert [(s.first, s.end, s.size) for s in segments] == FILLED
    assert {(s.data_crc, s.index_crc) for s in segments} == {(0, 0)}
    assert all(0 < s.oldest_time <= s.newest_time for s in segments)
    assert answer["limitSequenceNumber"] == 3
    assert not directory_of(broker.root, client, memory).exists()


@pytest.mark.parametrize(
    ("first", "end", "firsts"),
    [
        (0, 10, [0, 3, 6, 9]),
        (0, 2**63 - 1, [0, 3, 6, 9]),
        (2, 4, [0, 3]),
        (3, 6, [3]),
        (5, 6, [3]),
        (9, 10, [9]),
        (4, 4, []),
        (5, 4, []),
        (10, 10, []),
        (10, 20, []),
        (2**63 - 1, 2**63 - 1, []),
    ],
)
def test_locate_returns_only_segments_of_the_slice(
    client: RawConnection, stream: str, first: int, end: int, firsts: list[int]
) -> None:
    fill(client, stream)

    answer = locate(client, stream, first, end)

    assert [segment.first for segment in segments_of(answer)] == firsts
    assert answer["endSequenceNumber"] == 10
    assert answer["limitSequenceNumber"] == min(end, 10)


def test_empty_stream_has_no_segments(client: RawConnection, stream: str) -> None:
    answer = locate(client, stream, 0, 100, maxBytes=1)

    assert (answer["segments"], answer["limitSequenceNumber"]) == ([], 0)


@pytest.mark.parametrize("persistence", [0, 1])
@pytest.mark.parametrize(
    ("first", "end", "max_bytes", "limit"),
    [
        (0, 10, 300, 1),
        (0, 10, 299, 1),
        (0, 10, 1, 1),
        (0, 10, 600, 2),
        (0, 10, 899, 2),
        (0, 10, 900, 3),
        (0, 10, 1199, 3),
        (0, 10, 1200, 4),
        (2, 10, 600, 4),
        (2, 10, 1500, 7),
        (8, 10, 599, 9),
        (8, 10, 600, 10),
        (0, 5, 2**62, 5),
        (0, 100, 2**62, 10),
        (9, 10, 1, 10),
    ],
)
def test_limit_of_a_slice_allows_at_least_one_message(
    client: RawConnection,
    prefix: str,
    persistence: int,
    first: int,
    end: int,
    max_bytes: int,
    limit: int,
) -> None:
    name = create(client, f"{prefix}s", **SMALL, persistence=persistence)
    fill(client, name)

    answer = locate(client, name, first, end, maxBytes=max_bytes)

    assert answer["limitSequenceNumber"] == limit


@pytest.mark.parametrize("suffix", [".index", ".data"])
def test_locate_skips_the_size_of_a_segment_with_a_missing_file(
    broker: LocalBroker, client: RawConnection, stream: str, suffix: str
) -> None:
    fill(client, stream)
    directory = directory_of(broker.root, client, stream)
    (directory / f"{3:020d}{suffix}").unlink()

    # A segment whose size is unknown counts as fitting; a read of it fails.
    assert locate(client, stream, 4, 10, maxBytes=1)["limitSequenceNumber"] == 6
    assert locate(client, stream, 0, 10, maxBytes=1000)["limitSequenceNumber"] == 6
    assert locate(client, stream, 0, 10, maxBytes=2000)["limitSequenceNumber"] == 6
    assert [s.first for s in segments_of(locate(client, stream, 0, 10))] == [0, 3, 6, 9]


# Stored reads


def messages_of(answer: Json) -> list[tuple[int, int, bytes]]:
    """Numbers, times and payloads, with their checksums verified."""
    entries = list(ENTRY.iter_unpack(answer["entries"]))
    starts = [answer["position"], *(end for end, _, _ in entries)]
    payloads = [
        answer["payloads"][start - starts[0] : end - starts[0]] for start, end in pairwise(starts)
    ]
    assert len(answer["payloads"]) == starts[-1] - starts[0]
    for payload, (_, stored_checksum, ingest_time) in zip(payloads, entries, strict=True):
        assert checksum(payload, ingest_time) == stored_checksum
    first = answer["firstSequenceNumber"]
    return [
        (number, ingest_time, payload)
        for number, (_, _, ingest_time), payload in zip(
            range(first, first + len(entries)), entries, payloads, strict=True
        )
    ]


def read_all_stored(
    client: RawConnection, name: str, first: int, end: int, **fields: Any
) -> list[Any]:
    messages: list[tuple[int, int, bytes]] = []
    while first < end:
        part = messages_of(stored(client, name, first, end, **fields))
        assert part
        messages += part
        first = part[-1][0] + 1
    return messages


def read_all_columns(client: RawConnection, name: str, first: int, end: int) -> list[Any]:
    messages: list[tuple[int, int, bytes]] = []
    while first < end:
        answer = client.call(
            Operation.ReadColumns, name=name, firstSequenceNumber=first, endSequenceNumber=end
        )
        total = answer["count"]
        offsets = struct.unpack(f"<{total + 1}i", answer["offsets"])
        times = struct.unpack(f"<{total}q", answer["ingestTimes"])
        payloads = [answer["payloads"][start:stop] for start, stop in pairwise(offsets)]
        messages += zip(range(first, first + total), times, payloads, strict=True)
        first += total
    return messages


@pytest.mark.parametrize("persistence", [0, 1])
@pytest.mark.parametrize("max_bytes", [1, 250, 301, 1000, MEBIBYTE])
def test_stored_bytes_have_the_messages_of_other_reads(
    client: RawConnection, prefix: str, persistence: int, max_bytes: int
) -> None:
    name = create(client, f"{prefix}s", **SMALL, persistence=persistence)
    for number in range(40):
        client.append_many(name, [bytes((number,)) * (1 + number * 7 % 200)] * (1 + number % 5))
    end = watch(client, name)[name]["endSequenceNumber"]
    assert len(locate(client, name, 0, end)["segments"]) > 5

    for first in (0, 1, 17, end - 1):
        read = read_all_stored(client, name, first, end, maxBytes=max_bytes)
        assert read == read_all_columns(client, name, first, end)


def test_stored_read_ends_at_the_end_of_a_segment(client: RawConnection, stream: str) -> None:
    payloads = fill(client, stream)

    first = stored(client, stream, 1, 10)
    assert [number for number, _, _ in messages_of(first)] == [1, 2]
    assert (first["position"], first["payloads"]) == (300, b"".join(payloads[1:3]))
    # Positions refer to the file, which is another one now.
    second = stored(client, stream, 3, 10)
    assert (second["position"], second["payloads"]) == (0, b"".join(payloads[3:6]))


def test_stored_read_begins_with_the_oldest_message(client: RawConnection, prefix: str) -> None:
    small = create(client, f"{prefix}s", streamSegmentSize=1024, maxSize=4096)
    fill(client, small, 30)
    oldest = watch(client, small)[small]["oldestSequenceNumber"]
    assert oldest > 15

    answer = stored(client, small, 0, 30)

    assert [number for number, _, _ in messages_of(answer)] == list(range(oldest, oldest + 3))
    gone = stored(client, small, 0, oldest)
    assert (gone["firstSequenceNumber"], gone["entries"], gone["payloads"]) == (oldest, b"", b"")


@pytest.mark.parametrize(("first", "end"), [(1, 1), (2, 1), (1, 5), (100, 200), (0, 0)])
def test_stored_read_of_an_empty_slice_is_empty(
    client: RawConnection, stream: str, first: int, end: int
) -> None:
    append(client, stream, b"x")

    answer = stored(client, stream, first, end)

    assert (answer["entries"], answer["payloads"]) == (b"", b"")
    assert answer["firstSequenceNumber"] == first


def test_stored_read_is_limited_in_bytes_but_has_one_message(
    client: RawConnection, prefix: str
) -> None:
    name = create(client, f"{prefix}s")
    client.append_many(name, [bytes(MEBIBYTE)] * 6)
    client.append_many(name, [bytes(5 * MEBIBYTE)])

    assert len(messages_of(stored(client, name, 0, 7, maxBytes=2 * MEBIBYTE))) == 2
    assert len(messages_of(stored(client, name, 0, 7, maxBytes=2 * MEBIBYTE - 1))) == 1
    assert len(messages_of(stored(client, name, 0, 7, maxBytes=1))) == 1
    # One answer has a max size.
    assert len(messages_of(stored(client, name, 0, 7, maxBytes=1 << 29))) == 4
    assert len(messages_of(stored(client, name, 0, 7))) == 4
    ((number, _, payload),) = messages_of(stored(client, name, 6, 7, maxBytes=1))
    assert (number, len(payload)) == (6, 5 * MEBIBYTE)


@pytest.mark.parametrize("persistence", [0, 1])
def test_stored_read_is_limited_in_messages(
    client: RawConnection, prefix: str, persistence: int
) -> None:
    name = create(client, f"{prefix}s", persistence=persistence)
    client.append_many(name, [b"x"] * 70_000)

    messages = messages_of(stored(client, name, 0, 70_000))

    assert 16_384 <= len(messages) <= 65_536
    assert [number for number, _, _ in messages] == list(range(len(messages)))


def test_stored_reads_are_counted(client: RawConnection, stream: str) -> None:
    fill(client, stream, 3)

    def read_so_far() -> tuple[int, int]:
        statistics = client.call(Operation.Statistics)["statistics"]
        return statistics["messagesRead"], statistics["bytesRead"]

    messages, size = read_so_far()
    stored(client, stream, 0, 3, maxBytes=600)

    assert read_so_far() == (messages + 2, size + 600)


# Stored reads of damaged segments


def test_stored_read_returns_a_damaged_payload_unchanged(
    broker: LocalBroker, client: RawConnection, stream: str
) -> None:
    payloads = fill(client, stream, 3)
    directory = directory_of(broker.root, client, stream)
    write_byte(data_path(directory, 0), 300, 255)

    answer = stored(client, stream, 0, 3)

    damaged = b"\xff" + payloads[1][1:]
    assert answer["payloads"] == payloads[0] + damaged + payloads[2]
    assert len(answer["entries"]) == 3 * ENTRY.size
    with pytest.raises(MessageStoreReadErrorException, match="message 1 is damaged"):
        read_all_columns(client, stream, 1, 3)


def test_stored_read_returns_the_rest_of_truncated_data(
    broker: LocalBroker, client: RawConnection, stream: str
) -> None:
    payloads = fill(client, stream, 3)
    truncate(data_path(directory_of(broker.root, client, stream), 0), 500)

    answer = stored(client, stream, 0, 3)

    assert answer["payloads"] == b"".join(payloads)[:500]
    assert len(answer["entries"]) == 3 * ENTRY.size


@pytest.mark.parametrize("size", [0, 7, ENTRY.size, ENTRY.size + 9])
def test_stored_read_fails_behind_the_end_of_a_truncated_index(
    broker: LocalBroker, client: RawConnection, stream: str, size: int
) -> None:
    payloads = fill(client, stream, 3)
    truncate(index_path(directory_of(broker.root, client, stream), 0), size)

    left = size // ENTRY.size
    if left:
        answer = stored(client, stream, 0, 3)
        assert (answer["payloads"], len(answer["entries"])) == (payloads[0], ENTRY.size)
    for number in range(left, 3):
        with pytest.raises(
            MessageStoreReadErrorException,
            match=f"message {number} is damaged: its index entry is missing; continue reading "
            f"from {number + 1}",
        ):
            stored(client, stream, number, 3)


def test_stored_read_of_a_missing_file_fails_with_the_next_number(
    broker: LocalBroker, client: RawConnection, stream: str
) -> None:
    fill(client, stream)
    directory = directory_of(broker.root, client, stream)
    data_path(directory, 3).unlink()

    with pytest.raises(
        MessageStoreReadErrorException, match=r"3\.data is missing; continue reading from 6"
    ):
        stored(client, stream, 4, 10)

    assert len(read_all_stored(client, stream, 6, 10)) == 4
