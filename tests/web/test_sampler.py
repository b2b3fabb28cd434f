"""Samples of the broker's statistics, and answers written from them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.model.statistics import Statistics
from penstock.web import sampler as sampling
from penstock.web.sampler import Sampler, SharedAnswers
from tests.broker.exports.workbench import to_http
from tests.raw_connection import RawConnection
from tests.support import LocalBroker, create, read, wait_until
from tests.web.site import commit, plan


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "STEP_MILLIS", 20)


@pytest.fixture
def sampler(broker: LocalBroker, short_steps: None) -> Iterator[Sampler]:
    sampler = broker.run(lambda: Sampler(broker.broker))
    yield sampler
    broker.run(sampler.stop)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path / "root") as broker:
        yield broker


@pytest.fixture
def client(broker: LocalBroker) -> Iterator[RawConnection]:
    with broker.connect() as connection:
        yield connection


def series(broker: LocalBroker, sampler: Sampler, stream: str | None, name: str) -> list[Any]:
    points = broker.run(lambda: sampler.history.points(stream))
    return points.series[name] if points is not None else []


def test_counts_are_in_the_next_sample(
    broker: LocalBroker, sampler: Sampler, client: RawConnection
) -> None:
    create(client, "s", exportDefinition=to_http())
    client.append_many("s", [b"1", b"22", b"333"])
    read(client, "s", minMessageCount=2)
    (found,) = plan(client)
    commit(client, found, settledEnd=2, exportedMessages=2, exportedBytes=3)

    seen = ("messages_appended", "bytes_appended", "messages_exported", "bytes_exported")

    def is_all_seen() -> bool:
        return all(
            any(series(broker, sampler, where, name)) for where in (None, "s") for name in seen
        )

    wait_until(is_all_seen)
    wait_until(lambda: any(series(broker, sampler, None, "messages_read")))
    assert series(broker, sampler, "s", "messages_behind")[-1] == 1
    assert series(broker, sampler, None, "messages_behind")[-1] == 1
    (found,) = plan(client)
    commit(client, found)
    wait_until(lambda: broker.run(lambda: sampler.history.exports.rate("s", "e")) > 0)


def test_sampling_continues_after_a_failure(
    broker: LocalBroker,
    sampler: Sampler,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> Statistics:
        raise RuntimeError("no statistics")

    monkeypatch.setattr(broker.broker, "statistics", fail)
    wait_until(lambda: "cannot sample the broker's statistics" in caplog.text)
    monkeypatch.undo()

    before = len(series(broker, sampler, None, "messages_appended"))
    wait_until(lambda: len(series(broker, sampler, None, "messages_appended")) > before)
    assert broker.run(sampler.sample).time > 0


def test_sampling_starts_although_the_first_sample_fails(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Statistics:
        raise RuntimeError("too early")

    monkeypatch.setattr(broker.broker, "statistics", fail)
    sampler = broker.run(lambda: Sampler(broker.broker))
    monkeypatch.undo()

    assert "too early" in caplog.text
    assert broker.run(sampler.sample).version
    broker.run(sampler.stop)


# Shared answers


class Writer:
    """Writes the names of all streams, once `may_write` is set."""

    def __init__(self) -> None:
        self.may_write = asyncio.Event()
        self.begun = 0
        self.written = 0

    async def write(self, statistics: Statistics) -> bytes:
        assert self.begun == self.written, "another answer is being written"
        self.begun += 1
        await self.may_write.wait()
        self.written += 1
        return ",".join(stream.name for stream in statistics.streams).encode()


@pytest.fixture
def answers(broker: LocalBroker, sampler: Sampler) -> SharedAnswers:
    return broker.run(lambda: SharedAnswers(sampler))


@pytest.fixture
def writer(broker: LocalBroker) -> Writer:
    return broker.run(Writer)


def request(
    broker: LocalBroker, answers: SharedAnswers, writer: Writer, *keys: str
) -> asyncio.Future[list[bytes]]:
    """Sends concurrent requests with these keys."""
    return broker.run(lambda: asyncio.gather(*(answers.get(key, writer.write) for key in keys)))


async def result(requests: asyncio.Future[list[bytes]]) -> list[bytes]:
    return await requests


def test_concurrent_requests_with_one_key_share_an_answer(
    broker: LocalBroker, answers: SharedAnswers, writer: Writer
) -> None:
    requests = request(broker, answers, writer, "a", "a", "a")
    broker.run(writer.may_write.set)

    # The first one was being written when the others arrived.
    _, second, third = broker.finish(result(requests))
    assert second is third
    assert writer.written <= 2


def test_answers_of_different_keys_are_written_one_at_a_time(
    broker: LocalBroker, answers: SharedAnswers, writer: Writer
) -> None:
    requests = request(broker, answers, writer, "a", "b", "a", "c")
    wait_until(lambda: writer.begun)
    broker.run(writer.may_write.set)

    broker.finish(result(requests))
    assert writer.written == 3


def test_request_never_gets_an_answer_from_an_earlier_sample(
    broker: LocalBroker, answers: SharedAnswers, writer: Writer, client: RawConnection
) -> None:
    early = request(broker, answers, writer, "a")
    wait_until(lambda: writer.begun)
    name = create(client, "created after the first request").encode()
    late = request(broker, answers, writer, "a", "a")
    broker.run(writer.may_write.set)

    assert all(name not in text.split(b",") for text in broker.finish(result(early)))
    assert all(name in text.split(b",") for text in broker.finish(result(late)))
    assert writer.written == 2
    name = create(client, "created after both").encode()
    (text,) = broker.finish(result(request(broker, answers, writer, "a")))
    assert name in text.split(b",")


def test_answers_take_a_bounded_share_of_time(broker: LocalBroker, answers: SharedAnswers) -> None:
    async def write(_: Statistics) -> bytes:
        began = broker.loop.time()
        while broker.loop.time() < began + 0.01:
            pass  # keeps the event loop busy, as rendering thousands of streams does
        return b""

    async def two_answers() -> float:
        await answers.get("a", write)
        began = broker.loop.time()
        await answers.get("a", write)
        return broker.loop.time() - began

    assert broker.finish(two_answers()) > 0.09


def test_no_answer_is_cached_without_pending_requests(
    broker: LocalBroker, answers: SharedAnswers, writer: Writer
) -> None:
    broker.run(writer.may_write.set)
    broker.finish(result(request(broker, answers, writer, "a", "b")))
    assert answers._answers == {}


def test_next_request_after_a_failure_gets_an_answer(
    broker: LocalBroker, answers: SharedAnswers, writer: Writer, client: RawConnection
) -> None:
    create(client, "s")

    async def fail(_: Statistics) -> bytes:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        broker.finish(answers.get("a", fail))
    broker.run(writer.may_write.set)
    assert broker.finish(answers.get("a", writer.write)) == b"s"
