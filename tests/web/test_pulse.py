"""The look at the broker that is taken every second."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.model.statistics import Statistics
from penstock.testing.connection import Connection
from penstock.web import pulse as pulses
from penstock.web.pulse import Copies, Pulse
from tests.broker.exports.workbench import to_http
from tests.support import LocalBroker, append, create, read, wait_until
from tests.web.site import commit, plan


@pytest.fixture(autouse=True)
def quick_pulse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has time for seconds."""
    monkeypatch.setattr(pulses, "STEP_MILLIS", 20)


@pytest.fixture
def pulse(broker: LocalBroker, quick_pulse: None) -> Iterator[Pulse]:
    pulse = broker.run(lambda: Pulse(broker.broker))
    yield pulse
    broker.run(pulse.stop)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path_factory.mktemp("pulse") / "root") as broker:
        yield broker


@pytest.fixture
def client(broker: LocalBroker) -> Iterator[Connection]:
    with broker.connect() as connection:
        yield connection


def series(broker: LocalBroker, pulse: Pulse, stream: str | None, name: str) -> list[Any]:
    points = broker.run(lambda: pulse.history.points(stream))
    return points.series[name] if points is not None else []


def test_what_happens_is_seen_in_the_next_step(
    broker: LocalBroker, pulse: Pulse, client: Connection
) -> None:
    create(client, "s", exportDefinition=to_http())
    client.append_many("s", [b"1", b"22", b"333"])
    read(client, "s", minMessageCount=2)
    (found,) = plan(client)
    commit(client, found, settledEnd=2, exportedMessages=2, exportedBytes=3)

    seen = ("messages_appended", "bytes_appended", "messages_exported", "bytes_exported")

    def is_all_seen() -> bool:
        return all(
            any(series(broker, pulse, where, name)) for where in (None, "s") for name in seen
        )

    wait_until(is_all_seen)
    wait_until(lambda: any(series(broker, pulse, None, "messages_read")))
    assert series(broker, pulse, "s", "messages_behind")[-1] == 1
    assert series(broker, pulse, None, "messages_behind")[-1] == 1
    (found,) = plan(client)
    commit(client, found)
    wait_until(lambda: broker.run(lambda: pulse.history.exports.rate("s", "e")) > 0)


def test_who_asks_sees_streams_that_have_just_changed(
    broker: LocalBroker, pulse: Pulse, client: Connection
) -> None:
    def names() -> list[str]:
        return [stream.name for stream in broker.run(pulse.look).streams]

    for number in range(3):
        create(client, f"new {number}")
        assert f"new {number}" in names()


def test_many_who_ask_at_once_are_shown_the_same(broker: LocalBroker, pulse: Pulse) -> None:
    def look_twice() -> tuple[Statistics, Statistics]:
        return pulse.look(), pulse.look()

    first, second = broker.run(look_twice)
    assert first is second


def test_who_asks_later_is_shown_what_is_new(
    broker: LocalBroker, pulse: Pulse, client: Connection
) -> None:
    name = create(client, "fresh")
    broker.run(pulse.look)
    append(client, name, b"x")

    def count() -> int:
        streams = broker.run(pulse.look).streams
        return next(each.messages_appended for each in streams if each.name == name)

    wait_until(lambda: count() == 1)


def test_it_goes_on_after_something_failed(
    broker: LocalBroker,
    pulse: Pulse,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> Statistics:
        raise RuntimeError("it is not to be looked at")

    monkeypatch.setattr(broker.broker, "statistics", fail)
    wait_until(lambda: "the broker cannot be looked at" in caplog.text)
    monkeypatch.undo()

    before = len(series(broker, pulse, None, "messages_appended"))
    wait_until(lambda: len(series(broker, pulse, None, "messages_appended")) > before)
    assert broker.run(pulse.look).time > 0


def test_it_begins_also_if_the_first_look_fails(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Statistics:
        raise RuntimeError("too early")

    monkeypatch.setattr(broker.broker, "statistics", fail)
    pulse = broker.run(lambda: Pulse(broker.broker))
    monkeypatch.undo()

    assert "too early" in caplog.text
    assert broker.run(pulse.look).version
    broker.run(pulse.stop)


# Copies


class Scribe:
    """Writes down the names of streams, when it is let."""

    def __init__(self) -> None:
        self.may_write = asyncio.Event()
        self.begun = 0
        self.written = 0

    async def write(self, statistics: Statistics) -> bytes:
        assert self.begun == self.written, "there is another one at work"
        self.begun += 1
        await self.may_write.wait()
        self.written += 1
        return ",".join(stream.name for stream in statistics.streams).encode()


@pytest.fixture
def copies(broker: LocalBroker, pulse: Pulse) -> Copies:
    return broker.run(lambda: Copies(pulse))


@pytest.fixture
def scribe(broker: LocalBroker) -> Scribe:
    return broker.run(Scribe)


def ask_for(
    broker: LocalBroker, copies: Copies, scribe: Scribe, *sights: str
) -> asyncio.Future[list[bytes]]:
    """All of them at the same time."""
    return broker.run(
        lambda: asyncio.gather(*(copies.get(sight, scribe.write) for sight in sights))
    )


async def told(asked: asyncio.Future[list[bytes]]) -> list[bytes]:
    return await asked


def test_all_who_see_the_same_are_handed_one_copy(
    broker: LocalBroker, copies: Copies, scribe: Scribe
) -> None:
    asked = ask_for(broker, copies, scribe, "a", "a", "a")
    broker.run(scribe.may_write.set)

    first, *others = broker.finish(told(asked))
    assert all(other is first for other in others)
    assert scribe.written == 1


def test_who_sees_something_else_waits_for_his_turn(
    broker: LocalBroker, copies: Copies, scribe: Scribe
) -> None:
    asked = ask_for(broker, copies, scribe, "a", "b", "a", "c")
    wait_until(lambda: scribe.begun)
    broker.run(scribe.may_write.set)

    broker.finish(told(asked))
    assert scribe.written == 3


def test_who_asks_after_a_change_is_not_handed_what_was_begun_before(
    broker: LocalBroker, copies: Copies, scribe: Scribe, client: Connection
) -> None:
    early = ask_for(broker, copies, scribe, "a")
    wait_until(lambda: scribe.begun)
    name = create(client, "begun too late").encode()
    late = ask_for(broker, copies, scribe, "a", "a")
    broker.run(scribe.may_write.set)

    assert all(name not in copy.split(b",") for copy in broker.finish(told(early)))
    assert all(name in copy.split(b",") for copy in broker.finish(told(late)))
    assert scribe.written == 2
    # Now it takes no time, and is there at once.
    name = create(client, "the next").encode()
    (copy,) = broker.finish(told(ask_for(broker, copies, scribe, "a")))
    assert name in copy.split(b",")


def test_a_copy_that_fails_is_written_again_for_the_next(
    broker: LocalBroker, copies: Copies, scribe: Scribe
) -> None:
    async def fail(_: Statistics) -> bytes:
        raise RuntimeError("no ink")

    with pytest.raises(RuntimeError, match="no ink"):
        broker.finish(copies.get("a", fail))
    broker.run(scribe.may_write.set)
    assert broker.finish(copies.get("a", scribe.write))
