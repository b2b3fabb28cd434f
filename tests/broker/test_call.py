from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator

import cbor2
import pytest

from penstock.broker.access import FULL_ACCESS
from penstock.broker.call import Call
from penstock.broker.memory import AnswerMemory, AnswerRoom
from penstock.errors import (
    ResourceNotFoundException,
    ResponseStatusCode,
    ServerOutOfMemoryException,
    StreamManagerException,
)
from penstock.wire.operations import Operation


class Clock(asyncio.SelectorEventLoop):
    now = 1000.0

    def time(self) -> float:
        return self.now


class Peer:
    """A connection that records calls."""

    access = FULL_ACCESS

    def __init__(self, version: str = "1.1.0") -> None:
        self.loop: asyncio.AbstractEventLoop = Clock()
        self.version = version
        self.sent: list[bytes] = []
        self.rooms: list[AnswerRoom] = []
        self.open_calls = 1
        self.was_aborted = False
        self.lost_callbacks: dict[Hashable, Callable[[], object]] = {}

    def pass_time(self, seconds: float) -> None:
        assert isinstance(self.loop, Clock)
        self.loop.now += seconds

    def send(self, response: bytes) -> None:
        self.sent.append(response)

    def send_parts(self, parts: list[bytes], room: AnswerRoom) -> None:
        self.rooms.append(room)
        self.sent += parts

    def work(self, steps: Iterator[None]) -> None:
        for _ in steps:
            pass

    def watch(self, call: Call) -> None: ...
    def hold_for(self, call: Call) -> None: ...

    def on_connection_lost(self, key: Hashable, callback: Callable[[], object]) -> None:
        self.lost_callbacks[key] = callback

    def close_call(self, call: Call) -> None:
        self.open_calls -= 1

    def count_failure(self, error: StreamManagerException) -> None: ...

    def abort_late(self) -> None:
        self.was_aborted = True


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.loop.close()


@pytest.fixture
def call(peer: Peer) -> Call:
    return Call(peer, "r", Operation.AppendMessageResponse)


def test_answer_has_the_request_id_and_the_fields(peer: Peer, call: Call) -> None:
    call.succeed(sequenceNumber=5)
    (response,) = peer.sent
    assert response[4] == Operation.AppendMessageResponse
    assert cbor2.loads(response[5:]) == {
        "requestId": "r",
        "status": 0,
        "errorMessage": "",
        "sequenceNumber": 5,
    }


def test_call_is_answered_once(peer: Peer, call: Call) -> None:
    call.succeed()
    call.succeed()
    call.fail(ResourceNotFoundException("no"))
    assert len(peer.sent) == 1
    assert peer.open_calls == 0


@pytest.mark.parametrize(("seconds", "is_late"), [(59.8, False), (59.95, True), (61.0, True)])
def test_late_answer_is_not_sent_and_closes_the_connection(
    peer: Peer, call: Call, seconds: float, is_late: bool
) -> None:
    peer.pass_time(seconds)
    call.succeed()
    assert peer.was_aborted is is_late
    assert len(peer.sent) == (0 if is_late else 1)


@pytest.mark.parametrize("state", ["in time", "late", "closed"])
def test_answer_that_is_not_sent_releases_its_room(peer: Peer, call: Call, state: str) -> None:
    memory = AnswerMemory(1 << 30)
    room = memory.open()
    room.require(1 << 20)
    if state == "late":
        peer.pass_time(61)
    elif state == "closed":
        call.cancel()

    call.succeed_in(room, payloads=bytes(1 << 20))

    assert len(peer.sent) == len(peer.rooms) == (state == "in time")
    assert (memory.used > 0) is (state == "in time")
    assert peer.was_aborted is (state == "late")


def test_longer_client_timeout_extends_the_deadline(peer: Peer, call: Call) -> None:
    call.allow_seconds(120)
    peer.pass_time(119)
    call.succeed()
    assert len(peer.sent) == 1


def test_client_of_1_0_0_gets_a_status_that_it_knows() -> None:
    peer = Peer("1.0.0")
    Call(peer, "r", Operation.AppendMessageResponse).fail(ServerOutOfMemoryException("full"))
    peer.loop.close()
    fields = cbor2.loads(peer.sent[0][5:])
    assert fields["status"] == ResponseStatusCode.UnknownFailure
    assert fields["errorMessage"] == "full"


def test_lost_connection_cancels_the_call(peer: Peer, call: Call) -> None:
    ended: list[bool] = []
    undo: Callable[[], object] = lambda: ended.append(True)  # noqa: E731 - as handlers pass it
    call.on_close(undo)
    call.cancel()
    call.succeed()
    assert ended == [True]
    assert peer.sent == []


def test_connection_lost_callback_stays_after_the_answer(peer: Peer, call: Call) -> None:
    called: list[str] = []
    call.on_connection_lost("k", lambda: called.append("first"))
    call.on_connection_lost("k", lambda: called.append("second"))
    call.succeed()
    assert called == []
    for callback in peer.lost_callbacks.values():
        callback()
    assert called == ["second"]
