"""The budget of descriptors, and the log when there are none left."""

from __future__ import annotations

import errno
import logging
import resource
from pathlib import Path

import pytest

from penstock.broker.descriptors import DescriptorBudget, Shortages, plan_budget
from tests.support import LocalBroker


@pytest.mark.parametrize("limit", [128, 256, 512, 1024, 4096, 65_536, 1 << 20])
def test_budget_leaves_descriptors_for_other_files(limit: int) -> None:
    budget = plan_budget(limit, 1_000_000)
    used = 2 * budget.segments + budget.http_connections + budget.connections
    assert limit - used >= 48
    assert min(budget) >= 8


def test_budget_of_an_unlimited_process_is_limited() -> None:
    assert plan_budget(resource.RLIM_INFINITY, 8192) == DescriptorBudget(16_384, 256, 8192)


def test_shortage_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    times = iter((0.0, 1.0, 59.0, 61.0))
    shortages = Shortages(lambda: next(times))
    error = OSError(errno.EMFILE, "Too many open files", "/some/file")
    for _ in range(4):
        text = shortages.note("stream 's'", error)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert shortages.count == 4
    assert len(caplog.records) == 2
    assert f"the limit of open files is {limit}" in caplog.messages[0]
    assert "raise the limit" in caplog.messages[0]
    assert text == (
        "the server has no file descriptors left (Too many open files; its limit is "
        f"{limit}): try again later"
    )


def test_log_has_the_limits_of_clients_and_http_connections(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with LocalBroker(tmp_path / "root", max_connections=77) as broker:
        budget = broker.broker.budget
    assert budget.connections == 77
    assert f"77 clients and {budget.http_connections} HTTP connections" in caplog.text
