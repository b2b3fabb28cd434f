"""Hypothesis profiles, and which tests run together in which order.

Both profiles try new examples in every run, and print how to repeat a failing one. No example has a
deadline: the machine may be busy.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

# Hypothesis repeats its examples if CI is set, unless a profile says otherwise.
settings.register_profile(
    "test", max_examples=50, deadline=None, print_blob=True, derandomize=False
)
settings.load_profile("test")
settings.register_profile("full", max_examples=1000)

# Spark takes ten seconds to start, so that files share it: tests with a session run in two workers,
# and most exports in one.
_SHARED_SPARK = {
    "spark streaming": (
        "spark/test_killing_spark",
        "spark/test_streaming",
        "spark/test_timestamps",
    ),
    "spark batch": (
        "spark/test_batch",
        "spark/test_channels",
        "spark/test_json_rows",
        "spark/test_reuse",
        "spark/test_writing",
    ),
    "exports": ("exports/test_exporting", "exports/test_replaying"),
}
_GROUP_OF_FILE = {
    f"tests/{file}.py": group for group, files in _SHARED_SPARK.items() for file in files
}
# A run ends with its slowest group of tests, so that slow groups have to start first.
_SLOW_GROUPS = (
    *_SHARED_SPARK,
    "tests/exports/",
    "tests/cli/test_up.py",
    "tests/pipeline/",
    "tests/web/test_page.py",
    "tests/integration/",
)


class GroupScheduling(LoadFileScheduling):  # type: ignore[misc]
    """One worker runs all tests of a file, or of the files that share a Spark session."""

    def _split_scope(self, nodeid: str) -> str:
        return _find_group(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    return GroupScheduling(config, log)


# After pytest-randomly has shuffled the tests.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    positions: dict[str, int] = {}
    for item in items:
        group = _find_group(item.nodeid)
        positions.setdefault(group, len(positions))
        uses_spark = "shared_session" in getattr(item, "fixturenames", ())
        assert not uses_spark or group in _SHARED_SPARK, f"{group} is missing in _SHARED_SPARK"

    def sort_key(item: pytest.Item) -> tuple[int, int, bool]:
        group = _find_group(item.nodeid)
        return _rank(group), positions[group], item.get_closest_marker("late") is not None

    items.sort(key=sort_key)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    # Each worker keeps all tests until it ends, so that garbage collections need not visit them.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _find_group(node_id: str) -> str:
    file = node_id.partition("::")[0]
    return _GROUP_OF_FILE.get(file, file)


def _rank(group: str) -> int:
    for rank, prefix in enumerate(_SLOW_GROUPS):
        if group.startswith(prefix):
            return rank
    return len(_SLOW_GROUPS)
