"""Answers a call at once, or when the memory budget for answers allows it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from penstock.broker.memory import AnswerMemory, AnswerRoom, RoomNeededError
from penstock.errors import (
    ServerOutOfMemoryException,
    StreamManagerException,
    UnknownFailureException,
)

logger = logging.getLogger(__name__)

# A wait for memory ends this long before the client's timeout.
_EARLY_SECONDS = 1.0

Build = Callable[[AnswerRoom], Iterator[None]]


class WaitingCall(Protocol):
    @property
    def answer_by(self) -> float: ...
    def fail(self, error: StreamManagerException) -> None: ...
    def work(self, steps: Iterator[None]) -> None: ...
    def on_close(self, cancel: Callable[[], object]) -> None: ...


class FailingCall(Protocol):
    def fail(self, error: StreamManagerException) -> None: ...


@contextmanager
def failing(call: FailingCall) -> Iterator[None]:
    """Answers the call with any error that is raised."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - every request has an answer
        _fail(call, error)


def answer_in_room(
    call: WaitingCall, memory: AnswerMemory, build: Build, room: AnswerRoom | None = None
) -> Iterator[None]:
    """Runs the steps of `build`, which answers the call and passes the room on or releases it.

    If memory is short, `build` starts over when memory is free. Meanwhile the connection handles
    other requests. Any other error becomes the answer.
    """
    if room is None:
        room = memory.open()
    try:
        yield from build(room)
    except RoomNeededError as error:
        room.release()
        _wait_for_room(call, memory, build, error.size)
    except Exception as error:  # noqa: BLE001 - every request has an answer
        room.release()
        _fail(call, error)
    except BaseException:
        room.release()
        raise


def _fail(call: FailingCall, error: Exception) -> None:
    if isinstance(error, StreamManagerException):
        call.fail(error)
    else:
        logger.error("a request failed", exc_info=error)
        call.fail(UnknownFailureException("internal error; see the log of the server"))


def _wait_for_room(call: WaitingCall, memory: AnswerMemory, build: Build, size: int) -> None:
    def granted(room: AnswerRoom) -> None:
        timer.cancel()
        call.work(answer_in_room(call, memory, build, room))

    def expire() -> None:
        room.release()
        call.fail(
            ServerOutOfMemoryException(
                f"the answer has about {size} bytes, and the memory for answers "
                "(max_unsent_response_bytes) is full of answers that other clients have not read; "
                "retry, or lower minMessageCount"
            )
        )

    def cancel() -> None:
        timer.cancel()
        room.release()

    timer = asyncio.get_running_loop().call_at(call.answer_by - _EARLY_SECONDS, expire)
    room = memory.wait(size, granted)
    call.on_close(cancel)
