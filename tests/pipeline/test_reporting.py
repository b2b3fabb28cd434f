"""Reports of jobs that end at about the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from penstock import StreamManagerClient
from penstock.errors import StreamManagerException
from penstock.model.exporting import (
    CommittedReports,
    DeliveryReport,
    MessageSlice,
    SkippedMessage,
)
from penstock.pipeline.reporting import Reporter
from tests.pipeline.slices import create_http, last_exported, plan
from tests.support import PATIENCE_S, LocalBroker, wait_until


class HeldClient(StreamManagerClient):
    """Its reports leave when `leaves` is set; `requests` has the sizes of the requests."""

    def commit_exports(self, reports: Sequence[DeliveryReport]) -> CommittedReports:
        self.requests.append(len(reports))
        assert self.leaves.wait(PATIENCE_S)
        return super().commit_exports(reports)

    leaves: threading.Event
    requests: list[int]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path / "root") as started:
        yield started


@pytest.fixture
def client(broker: LocalBroker) -> Iterator[HeldClient]:
    with HeldClient(root=broker.root) as opened:
        opened.leaves = threading.Event()
        opened.requests = []
        yield opened


def settle(found: MessageSlice, *, is_final: bool = True) -> DeliveryReport:
    return DeliveryReport(
        lease=found.lease,
        stream=found.stream,
        stream_id=found.stream_id,
        identifier=found.identifier,
        first=found.first,
        settled_end=found.end,
        is_final=is_final,
    )


def plan_slices(client: StreamManagerClient, count: int) -> list[MessageSlice]:
    for _ in range(count):
        create_http(client, "http://127.0.0.1:9/", [b"x"])
    found = plan(client)
    assert len(found) == count
    return [each for each in found if isinstance(each, MessageSlice)]


def test_reports_that_wait_share_a_request(client: HeldClient) -> None:
    slices = plan_slices(client, 5)
    reporter = Reporter(client)
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(reporter.commit, settle(slices[0]))
        wait_until(lambda: client.requests)
        others = [pool.submit(reporter.commit, settle(each)) for each in slices[1:]]
        wait_until(lambda: len(reporter._waiting) == 4)
        client.leaves.set()
        assert first.result()
        assert all(each.result() for each in others)
    assert client.requests == [1, 4]
    assert [last_exported(client, each.stream) for each in slices] == [0] * 5


def test_each_report_of_a_request_has_its_own_answer(client: HeldClient) -> None:
    good, lost = plan_slices(client, 2)
    client.delete_message_stream(lost.stream)
    client.leaves.set()
    reporter = Reporter(client)
    assert reporter.commit(settle(good))
    assert not reporter.commit(settle(lost))


def test_interim_reports_do_not_share_requests(client: HeldClient) -> None:
    slices = plan_slices(client, 2)
    reporter = Reporter(client)
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(reporter.commit, settle(each, is_final=False)) for each in slices]
        wait_until(lambda: client.requests == [1, 1])
        client.leaves.set()
        assert all(each.result() for each in answers)


def test_failure_reaches_all_reports_of_a_request(client: HeldClient) -> None:
    slices = plan_slices(client, 3)
    reporter = Reporter(client)
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(reporter.commit, settle(slices[0]))]
        wait_until(lambda: client.requests)
        answers += [pool.submit(reporter.commit, settle(each)) for each in slices[1:]]
        wait_until(lambda: len(reporter._waiting) == 2)
        client.close()
        client.leaves.set()
        for answer in answers:
            with pytest.raises((StreamManagerException, OSError)):
                answer.result()


def test_large_reports_do_not_share_requests(client: HeldClient) -> None:
    slices = plan_slices(client, 3)
    reporter = Reporter(client)
    skipped = [SkippedMessage(0, "It is so")]
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(reporter.commit, settle(slices[0]))]
        wait_until(lambda: client.requests)
        reports = [msgspec.structs.replace(settle(each), skipped=skipped) for each in slices[1:]]
        answers += [pool.submit(reporter.commit, report) for report in reports]
        wait_until(lambda: client.requests == [1, 1, 1])
        client.leaves.set()
        assert all(each.result() for each in answers)


def test_report_that_cannot_be_encoded_does_not_stop_others(client: HeldClient) -> None:
    bad, good = plan_slices(client, 2)
    client.leaves.set()
    reporter = Reporter(client)
    with pytest.raises(UnicodeEncodeError):
        reporter.commit(msgspec.structs.replace(settle(bad), error="\udc80"))
    assert reporter.commit(settle(good))
