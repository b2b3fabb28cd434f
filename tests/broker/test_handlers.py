"""Handlers: waiting reads, large reads, runs of appends, and the extensions."""

from __future__ import annotations

import errno
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import cbor2
import pytest

from penstock.broker.access import FULL_ACCESS
from penstock.broker.memory import AnswerRoom
from penstock.broker.message_reader import STEP_BYTES
from penstock.errors import (
    InvalidRequestException,
    NotEnoughMessagesException,
    RequestPayloadTooLargeException,
    ResourceNotFoundException,
    ResponseStatusCode,
    StreamManagerException,
    UnknownFailureException,
    UpdateNotAllowedException,
)
from penstock.model import ReadMessagesOptions
from penstock.store.files import Disk
from penstock.wire.frames import HEADER, encode_frame
from penstock.wire.operations import Operation
from penstock.wire.requests import ReadMessagesRequest
from tests.model.samples import NO_EXPORTS
from tests.raw_connection import RawConnection
from tests.support import (
    MEBIBYTE,
    PROMPT_S,
    TIMEOUT_S,
    BrokerProcess,
    Json,
    LocalBroker,
    append,
    append_frame,
    create,
    frame,
    read,
    running,
    wait_until,
)

Status = ResponseStatusCode

_numbers = count()

TIMED_OUT = "not enough messages to return before time out"


@pytest.fixture
def stream(client: RawConnection) -> str:
    return create(client, f"stream {next(_numbers)}")


def storage(client: RawConnection, name: str) -> tuple[int, int, int]:
    info = client.call(Operation.DescribeMessageStream, name=name)["messageStreamInfo"]
    status = info["storageStatus"]
    return status["oldestSequenceNumber"], status["newestSequenceNumber"], status["totalBytes"]


def waiting_reads(client: RawConnection, name: str) -> int:
    streams = client.call(Operation.Statistics)["statistics"]["streams"]
    return sum(stream["waitingReads"] for stream in streams if stream["name"] == name)


def start_read(client: RawConnection, name: str, **options: int) -> None:
    client.send(Operation.ReadMessages, streamName=name, readMessagesOptions=options)


def payloads_of(answer: Json) -> list[bytes]:
    assert answer["status"] == 0, answer
    return [message["payload"] for message in answer["messages"]]


# Waiting reads


def test_waiting_read_is_answered_by_an_append(
    client: RawConnection, other: RawConnection, stream: str
) -> None:
    start_read(client, stream, readTimeoutMillis=60_000)
    wait_until(lambda: waiting_reads(other, stream) == 1)

    append(other, stream, b"at last")

    assert payloads_of(client.receive()[1]) == [b"at last"]
    assert waiting_reads(other, stream) == 0


def test_waiting_read_is_answered_when_its_minimum_is_stored(
    client: RawConnection, other: RawConnection, stream: str
) -> None:
    start_read(client, stream, minMessageCount=3, maxMessageCount=9, readTimeoutMillis=60_000)
    wait_until(lambda: waiting_reads(other, stream) == 1)
    for payload in (b"1", b"2"):
        append(other, stream, payload)
        assert waiting_reads(other, stream) == 1

    append(other, stream, b"3")

    assert payloads_of(client.receive()[1]) == [b"1", b"2", b"3"]


def test_connection_handles_requests_while_its_reads_wait(
    client: RawConnection, stream: str
) -> None:
    start_read(client, stream, readTimeoutMillis=60_000)

    client.send(Operation.ListStreams)
    assert client.receive()[0] == Operation.ListStreamsResponse
    client.send(Operation.AppendMessage, name=stream, payload=b"from here")

    # The answers may come in any order.
    assert {client.receive()[0], client.receive()[0]} == {
        Operation.AppendMessageResponse,
        Operation.ReadMessagesResponse,
    }


def test_waiting_read_times_out(client: RawConnection, stream: str) -> None:
    append(client, stream, b"one")
    began = time.monotonic()

    with pytest.raises(NotEnoughMessagesException, match=f"^{TIMED_OUT}$"):
        read(client, stream, minMessageCount=2, readTimeoutMillis=100)

    assert time.monotonic() - began >= 0.09


@pytest.mark.parametrize(("timeout", "at_most"), [(10_000, 9.8), (60_000, 59.75)])
def test_waiting_read_ends_before_the_client_times_out(
    broker: LocalBroker,
    client: RawConnection,
    other: RawConnection,
    stream: str,
    timeout: int,
    at_most: float,
) -> None:
    """The AWS clients time out exactly at that time, and a later answer crashes them."""
    start_read(client, stream, readTimeoutMillis=timeout)
    wait_until(lambda: waiting_reads(other, stream) == 1)

    def seconds_left() -> float:
        ((_, _, waiter),) = broker.broker.streams.find(stream).waiters._heap
        assert waiter._timer is not None
        return waiter._timer.when() - broker.loop.time()

    assert 0 < broker.run(seconds_left) <= at_most


@pytest.mark.parametrize("start", [0, 1, 5])
def test_timed_out_read_has_the_message_that_programs_compare(
    client: RawConnection, stream: str, start: int
) -> None:
    append(client, stream, b"one")

    with pytest.raises(NotEnoughMessagesException, match=f"^{TIMED_OUT}$"):
        read(
            client,
            stream,
            desiredStartSequenceNumber=start,
            minMessageCount=2,
            readTimeoutMillis=1,
        )


def test_read_without_timeout_fails_with_the_number_of_messages(
    client: RawConnection, stream: str
) -> None:
    append(client, stream, b"one")

    with pytest.raises(NotEnoughMessagesException, match="minMessageCount is 2"):
        read(client, stream, minMessageCount=2)


def test_read_behind_the_end_fails_with_the_last_number(client: RawConnection, stream: str) -> None:
    append(client, stream, b"0")

    with pytest.raises(NotEnoughMessagesException, match="greater than the last sequence number"):
        read(client, stream, desiredStartSequenceNumber=1)


def test_max_timeout_is_accepted(client: RawConnection, other: RawConnection, stream: str) -> None:
    start_read(client, stream, readTimeoutMillis=9_223_372_036_854)
    wait_until(lambda: waiting_reads(other, stream) == 1)

    append(other, stream, b"x")

    assert payloads_of(client.receive()[1]) == [b"x"]


def test_lost_connection_removes_its_waiters(
    broker: LocalBroker, client: RawConnection, stream: str
) -> None:
    leaving = broker.connect()
    for _ in range(3):
        start_read(leaving, stream, readTimeoutMillis=60_000)
    wait_until(lambda: waiting_reads(client, stream) == 3)

    leaving.close()

    wait_until(lambda: waiting_reads(client, stream) == 0)
    assert append(client, stream, b"x") == 0


def test_waiting_read_fails_when_its_stream_is_deleted(
    client: RawConnection, other: RawConnection, stream: str
) -> None:
    start_read(client, stream, readTimeoutMillis=60_000)
    wait_until(lambda: waiting_reads(other, stream) == 1)

    other.call(Operation.DeleteMessageStream, name=stream)
    # A new stream of this name does not count.
    create(other, stream)
    append(other, stream, b"not for you")

    assert client.receive()[1]["status"] == Status.ResourceNotFound


def test_waiting_read_starts_with_the_oldest_message(
    client: RawConnection, other: RawConnection
) -> None:
    small = create(client, "small", maxSize=2048, streamSegmentSize=1024)
    start_read(client, small, minMessageCount=3, readTimeoutMillis=60_000)
    wait_until(lambda: waiting_reads(other, small) == 1)

    # The second and third evict the first, so that there are never three messages from 0 on.
    for number in range(3):
        append(other, small, bytes((number,)) * 1000)
    assert storage(other, small)[:2] == (1, 2)
    assert waiting_reads(other, small) == 1
    append(other, small, b"x")
    append(other, small, b"y")

    answer = client.receive()[1]
    numbers = [message["sequenceNumber"] for message in answer["messages"]]
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    assert numbers[0] >= 1


def test_waiting_reads_are_answered_when_the_broker_stops(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        create(client, "s")
        start_read(client, "s", readTimeoutMillis=60_000)
        client.send(
            Operation.ReadColumns,
            name="s",
            firstSequenceNumber=0,
            endSequenceNumber=5,
            readTimeoutMillis=60_000,
        )
        with broker.connect() as other:
            wait_until(lambda: waiting_reads(other, "s") == 2)

        broker.stop()

        answers = dict([client.receive(), client.receive()])
        assert answers[Operation.ReadMessagesResponse]["status"] == Status.NotEnoughMessages
        assert answers[Operation.ReadColumnsResponse]["count"] == 0
        with pytest.raises(ConnectionError):
            client.receive()


# Large reads


class Recorder:
    """A call that records its steps, for the test to run, and its answer."""

    request_id = "r"
    access = FULL_ACCESS

    def __init__(self) -> None:
        self.steps: Iterator[None] = iter(())
        self.error: StreamManagerException | None = None
        self.sent: list[bytes] = []

    def work(self, steps: Iterator[None]) -> None:
        self.steps = steps

    def fail(self, error: StreamManagerException) -> None:
        self.error = error

    @property
    def answer_by(self) -> float:
        raise AssertionError("nothing waits for memory")

    def send_parts(self, parts: list[bytes], room: AnswerRoom) -> None:
        room.release()
        self.sent += parts

    def succeed(self, **fields: Any) -> None:
        raise AssertionError("nothing is answered")

    def succeed_in(self, room: AnswerRoom, **fields: Any) -> None:
        raise AssertionError("nothing is answered")

    def allow_seconds(self, seconds: float) -> None:
        pass

    def on_close(self, cancel: Callable[[], object]) -> None:
        pass

    def hold_requests(self) -> None:
        pass


def test_read_fails_when_its_stream_is_deleted_between_steps(
    broker: LocalBroker, client: RawConnection, stream: str
) -> None:
    for _ in range(4):
        client.append_many(stream, [bytes(STEP_BYTES)])
    request = ReadMessagesRequest(
        request_id="r", stream_name=stream, read_messages_options=ReadMessagesOptions(0, 4)
    )

    async def delete_between_steps() -> Recorder:
        call = Recorder()
        broker.broker.handlers.handle(call, request)
        assert next(call.steps) is None
        await broker.broker.streams.delete(stream)
        list(call.steps)
        return call

    call = broker.finish(delete_between_steps())

    assert isinstance(call.error, ResourceNotFoundException)
    assert call.sent == []


def test_unexpected_error_of_a_read_is_answered(
    broker: LocalBroker, client: RawConnection, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    append(client, stream, b"x")
    request = ReadMessagesRequest(request_id="r", stream_name=stream)

    def fail_between_steps() -> Recorder:
        call = Recorder()
        broker.broker.handlers.handle(call, request)
        # Simulates a bug in the broker.
        broker.broker.streams.find(stream).log = None  # type: ignore[assignment]
        list(call.steps)
        return call

    call = broker.run(fail_between_steps)

    assert isinstance(call.error, UnknownFailureException)
    assert "AttributeError" in caplog.text
    broker.run(lambda: broker.broker.streams._streams.pop(stream))


def read_frame(name: str, minimum: int) -> bytes:
    options = {"minMessageCount": minimum, "maxMessageCount": 2**31 - 1}
    return frame(Operation.ReadMessages, streamName=name, readMessagesOptions=options)


def test_very_large_read_has_its_minimum_and_delays_no_other_connection(
    tmp_path: Path,
) -> None:
    size = 64 * 1024
    sizes: list[int] = []
    slowest = 0.0
    with BrokerProcess(tmp_path / "root") as broker, broker.connect() as client:
        create(client, "work")
        create(client, "large")
        for _ in range(13):
            client.append_many("large", [b"x" * size] * 128)

        def read_all() -> None:
            with broker.meet() as reader:
                for minimum in (1, 1600):
                    reader.say(read_frame("large", minimum))
                    # Not decoded: that would delay the measuring thread.
                    length, _ = HEADER.unpack(reader.take(HEADER.size))
                    reader.take(length - 1)
                    sizes.append(length)

        with running(read_all):
            while len(sizes) < 2:
                began = time.monotonic()
                append(client, "work", b"x")
                slowest = max(slowest, time.monotonic() - began)

    assert slowest < PROMPT_S
    assert 60 * MEBIBYTE < sizes[0] <= 65 * MEBIBYTE
    assert 100_000_000 < 1600 * size < sizes[1] < 1650 * size


# Appends


def test_run_of_appends_is_answered_with_consecutive_numbers(
    broker: LocalBroker, client: RawConnection, other: RawConnection, stream: str
) -> None:
    with broker.meet() as peer:
        peer.say(b"".join(append_frame(stream, b"x" * 20, f"{n}") for n in range(1000)))
        answers = [peer.take_answer()[1] for _ in range(1000)]

    assert [answer["requestId"] for answer in answers] == [f"{n}" for n in range(1000)]
    assert [answer["sequenceNumber"] for answer in answers] == list(range(1000))
    assert storage(client, stream) == (0, 999, 20_000)


def test_first_appends_of_a_run_that_does_not_fit_are_stored(
    broker: LocalBroker, client: RawConnection
) -> None:
    create(client, "full", strategyOnFull=0, maxSize=10_000, streamSegmentSize=2_000)
    with broker.meet() as peer:
        peer.say(b"".join(append_frame("full", b"x" * 1000, f"{n}") for n in range(15)))
        answers = [peer.take_answer()[1] for _ in range(15)]

    assert [answer["status"] for answer in answers] == [0] * 10 + [Status.InvalidRequest] * 5
    assert [answer["requestId"] for answer in answers] == [f"{n}" for n in range(15)]
    assert "full" in answers[-1]["errorMessage"]
    assert storage(client, "full") == (0, 9, 10_000)


def test_appends_of_any_shape_are_numbered_together(broker: LocalBroker, stream: str) -> None:
    other_order = encode_frame(
        Operation.AppendMessage, cbor2.dumps({"payload": b"y", "name": stream, "requestId": "o"})
    )
    with broker.meet() as peer:
        peer.say((append_frame(stream, b"x") * 3 + other_order) * 5)
        answers = [peer.take_answer()[1] for _ in range(20)]

    assert [answer["sequenceNumber"] for answer in answers] == list(range(20))


@pytest.mark.parametrize(
    ("name", "status"), [("nowhere", Status.ResourceNotFound), ("a/b", Status.InvalidRequest)]
)
def test_each_append_to_an_unknown_stream_is_answered(
    broker: LocalBroker, name: str, status: ResponseStatusCode
) -> None:
    with broker.meet() as peer:
        peer.say(b"".join(append_frame(name, b"x", f"{n}") for n in range(50)))
        answers = [peer.take_answer() for _ in range(50)]

    assert {operation for operation, _ in answers} == {Operation.AppendMessageResponse}
    assert {answer["status"] for _, answer in answers} == {status}
    assert [answer["requestId"] for _, answer in answers] == [f"{n}" for n in range(50)]


def test_message_larger_than_its_stream_is_rejected(client: RawConnection) -> None:
    create(client, "tiny", maxSize=1024, streamSegmentSize=1024)

    assert append(client, "tiny", b"x" * 1024) == 0
    with pytest.raises(RequestPayloadTooLargeException):
        append(client, "tiny", b"x" * 1025)


class HeldUpDisk(Disk):
    """A disk whose syncs the test can block or fail."""

    def __init__(self) -> None:
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.error: OSError | None = None

    def sync(self, descriptor: int) -> None:
        self.may_sync.wait(TIMEOUT_S)
        if self.error is not None:
            raise self.error
        super().sync(descriptor)

    def write(self, descriptor: int, data: bytes, position: int) -> None:
        if self.error is not None and self.error.errno == errno.ENOSPC:
            raise self.error
        super().write(descriptor, data, position)


@pytest.fixture
def disk() -> HeldUpDisk:
    return HeldUpDisk()


@pytest.fixture
def on_disk(tmp_path: Path, disk: HeldUpDisk) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path / "root", disk, sync_interval_ms=3_600_000) as broker:
        with broker.connect() as client:
            create(client, "flushed", flushOnWrite=True)
            create(client, "plain")
        yield broker


def test_flushed_append_is_answered_after_the_sync(on_disk: LocalBroker, disk: HeldUpDisk) -> None:
    disk.may_sync.clear()
    with on_disk.meet() as peer, on_disk.connect() as client:
        peer.say(append_frame("flushed", b"x") * 10)
        session = wait_until(lambda: next((s for s in on_disk.sessions if not s.is_idle), None))
        assert session is not None
        # Other requests do not wait.
        assert append(client, "plain", b"y") == 0
        assert not session.is_idle

        disk.may_sync.set()

        answers = [peer.take_answer()[1] for _ in range(10)]
        assert [answer["sequenceNumber"] for answer in answers] == list(range(10))


def test_failed_sync_fails_the_append(on_disk: LocalBroker, disk: HeldUpDisk) -> None:
    with on_disk.meet() as peer, on_disk.connect() as client:
        disk.error = OSError(errno.EIO, os.strerror(errno.EIO))
        peer.say(b"".join(append_frame("flushed", b"x", f"{n}") for n in range(5)))
        answers = [peer.take_answer()[1] for _ in range(5)]
        with pytest.raises(UnknownFailureException, match="cannot sync the message"):
            client.append_many("flushed", [b"x", b"y"])
        disk.error = None

    assert {answer["status"] for answer in answers} == {Status.UnknownFailure}
    assert [answer["requestId"] for answer in answers] == [f"{n}" for n in range(5)]
    assert "cannot sync the message" in answers[0]["errorMessage"]


def test_append_on_a_full_disk_fails_and_stores_nothing(
    on_disk: LocalBroker, disk: HeldUpDisk
) -> None:
    with on_disk.connect() as client:
        append(client, "plain", b"before")
        disk.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with pytest.raises(UnknownFailureException, match="disk of the server is full"):
            append(client, "plain", b"too much")
        assert [message["payload"] for message in read(client, "plain")] == [b"before"]
        disk.error = None

        assert append(client, "plain", b"after") == 1


# Streams


def test_creation_of_an_existing_stream_is_rejected(client: RawConnection, stream: str) -> None:
    with pytest.raises(InvalidRequestException) as caught:
        create(client, stream)

    # Programs compare the whole message.
    assert caught.value.message == "the message stream already exists"


@pytest.mark.parametrize(
    "operation",
    [
        Operation.DescribeMessageStream,
        Operation.DeleteMessageStream,
        Operation.AppendMessage,
        Operation.ReadMessages,
        Operation.UpdateMessageStream,
        Operation.AppendMessages,
        Operation.ReadColumns,
        Operation.ReadStored,
        Operation.LocateMessages,
    ],
)
def test_unknown_stream_is_not_found(client: RawConnection, operation: Operation) -> None:
    with pytest.raises(ResourceNotFoundException, match="'nowhere' does not exist"):
        client.call(
            operation,
            name="nowhere",
            streamName="nowhere",
            payload=b"x",
            definition={"name": "nowhere", "strategyOnFull": 0},
            sizes=struct.pack("<I", 1),
            payloads=b"x",
            firstSequenceNumber=0,
            endSequenceNumber=1,
        )


def test_update_rejects_another_persistence(client: RawConnection, stream: str) -> None:
    with pytest.raises(UpdateNotAllowedException, match="cannot change"):
        client.call(
            Operation.UpdateMessageStream,
            definition={"name": stream, "strategyOnFull": 1, "persistence": 1},
        )


def test_description_has_all_lists_and_no_nulls(client: RawConnection, stream: str) -> None:
    info = client.call(Operation.DescribeMessageStream, name=stream)["messageStreamInfo"]

    assert info == {
        "definition": {
            "name": stream,
            "maxSize": 268_435_456,
            "streamSegmentSize": 16_777_216,
            "strategyOnFull": 1,
            "persistence": 0,
            "flushOnWrite": False,
            "exportDefinition": NO_EXPORTS,
        },
        "storageStatus": {
            "oldestSequenceNumber": 0,
            "newestSequenceNumber": -1,
            "totalBytes": 0,
        },
        "exportStatuses": [],
    }


# Extensions: append many


def test_many_messages_are_appended_in_one_call(client: RawConnection, stream: str) -> None:
    assert client.append_many(stream, [b"a", b"bb", b"ccc"]) == 0
    assert client.append_many(stream, [b"d"]) == 3

    messages = read(client, stream, minMessageCount=4)
    assert [message["payload"] for message in messages] == [b"a", b"bb", b"ccc", b"d"]


@pytest.mark.parametrize(
    ("sizes", "payloads", "problem"),
    [
        (struct.pack("<2I", 1, 1), b"abc", "the sum of sizes is 2: expected 3"),
        (struct.pack("<2I", 2, 2), b"abc", "the sum of sizes is 4: expected 3"),
        (struct.pack("<2I", 2**32 - 1, 4), b"abc", "the sum of sizes is 4294967299: expected 3"),
        (struct.pack("<3I", 1, 0, 2), b"abc", "sizes has a 0"),
        (struct.pack("<I", 3) + b"\0", b"abc", "sizes has 5 bytes: expected 4"),
    ],
)
def test_invalid_sizes_append_nothing(
    client: RawConnection, stream: str, sizes: bytes, payloads: bytes, problem: str
) -> None:
    with pytest.raises(InvalidRequestException, match=problem):
        client.call(Operation.AppendMessages, name=stream, sizes=sizes, payloads=payloads)

    assert storage(client, stream) == (0, -1, 0)


def test_append_of_many_messages_is_atomic(client: RawConnection) -> None:
    create(client, "bounded", strategyOnFull=0, maxSize=4096, streamSegmentSize=1024)
    client.append_many("bounded", [b"x" * 500] * 4)

    with pytest.raises(InvalidRequestException, match="full"):
        client.append_many("bounded", [b"y" * 500] * 5)
    with pytest.raises(RequestPayloadTooLargeException):
        client.append_many("bounded", [b"y" * 500] * 9)

    assert storage(client, "bounded") == (0, 3, 2000)
    assert client.append_many("bounded", [b"y" * 500] * 4) == 4


# Extensions: columns


def columns(client: RawConnection, name: str, first: int, end: int, **fields: int) -> Json:
    answer = client.call(
        Operation.ReadColumns,
        name=name,
        firstSequenceNumber=first,
        endSequenceNumber=end,
        **fields,
    )
    offsets = struct.unpack(f"<{answer['count'] + 1}i", answer["offsets"])
    times = struct.unpack(f"<{answer['count']}q", answer["ingestTimes"])
    payloads = [answer["payloads"][start:stop] for start, stop in pairwise(offsets)]
    assert offsets[0] == 0
    assert offsets[-1] == len(answer["payloads"])
    return {**answer, "times": times, "values": payloads}


def test_columns_have_the_appended_messages(client: RawConnection, stream: str) -> None:
    sent = [b"a", b"bb", b"ccc"]
    client.append_many(stream, sent)
    messages = read(client, stream, minMessageCount=3)

    answer = columns(client, stream, 0, 3)

    assert answer["values"] == sent
    assert list(answer["times"]) == [message["ingestTime"] for message in messages]
    assert answer["firstSequenceNumber"] == answer["oldestSequenceNumber"] == 0
    assert answer["endSequenceNumber"] == 3
    assert columns(client, stream, 1, 2)["values"] == [b"bb"]
    assert columns(client, stream, 1, 2**63 - 1)["values"] == [b"bb", b"ccc"]


def test_columns_are_limited_in_bytes_but_have_one_message(
    client: RawConnection, stream: str
) -> None:
    client.append_many(stream, [b"x" * 100] * 10)

    assert columns(client, stream, 0, 10, maxBytes=350)["count"] == 3
    assert columns(client, stream, 0, 10, maxBytes=1)["count"] == 1


def test_columns_start_with_the_oldest_message(client: RawConnection) -> None:
    create(client, "overwritten", maxSize=2048, streamSegmentSize=1024)
    for _ in range(10):
        append(client, "overwritten", b"x" * 1000)
    oldest = storage(client, "overwritten")[0]
    assert oldest > 5

    answer = columns(client, "overwritten", 0, 10)

    assert answer["firstSequenceNumber"] == answer["oldestSequenceNumber"] == oldest
    # All requested messages are evicted.
    gone = columns(client, "overwritten", 0, oldest, readTimeoutMillis=60_000)
    assert (gone["count"], gone["oldestSequenceNumber"]) == (0, oldest)


@pytest.mark.parametrize(("first", "end"), [(1, 1), (2, 1), (1, 5), (100, 200)])
def test_columns_of_an_empty_range_are_empty(
    client: RawConnection, stream: str, first: int, end: int
) -> None:
    append(client, stream, b"x")

    answer = columns(client, stream, first, end)

    assert (answer["count"], answer["values"], answer["times"]) == (0, [], ())
    assert answer["endSequenceNumber"] == 1


def test_columns_wait_for_messages(
    client: RawConnection, other: RawConnection, stream: str
) -> None:
    answers: list[Json] = []
    with running(lambda: answers.append(columns(client, stream, 0, 9, readTimeoutMillis=60_000))):
        wait_until(lambda: waiting_reads(other, stream) == 1)
        append(other, stream, b"at last")
    assert [answer["values"] for answer in answers] == [[b"at last"]]

    began = time.monotonic()
    assert columns(client, stream, 1, 9, readTimeoutMillis=50)["count"] == 0
    assert time.monotonic() - began >= 0.045
    # An empty range is answered at once.
    assert columns(client, stream, 5, 5, readTimeoutMillis=60_000)["count"] == 0
