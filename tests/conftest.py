"""Hypothesis profiles, and which tests run together in which order.

Both profiles try new examples in every run, and print how to repeat a failing one. No example has a
deadline: the machine may be busy.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

settings.register_profile("test", deadline=None, print_blob=True)
settings.register_profile(
    "full", deadline=None, print_blob=True, max_examples=10 * settings().max_examples
)
settings.load_profile("test")

# One worker runs these files: a second Spark session costs more than it saves.
_SPARK_SESSION = "spark session"
_FILES_WITH_SPARK_SESSION = {
    f"tests/spark/test_{name}.py"
    for name in ("batch", "channels", "json_rows", "reuse", "streaming", "timestamps", "writing")
}
# A run ends with its slowest group of tests, so that slow groups have to start first.
_SLOW_GROUPS = (
    _SPARK_SESSION,
    "tests/exports/",
    "tests/spark/test_killing_spark.py",
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
        positions.setdefault(_find_group(item.nodeid), len(positions))

    def sort_key(item: pytest.Item) -> tuple[int, int, bool]:
        group = _find_group(item.nodeid)
        return _rank(group), positions[group], item.get_closest_marker("late") is not None

    items.sort(key=sort_key)


def _find_group(node_id: str) -> str:
    file = node_id.partition("::")[0]
    return _SPARK_SESSION if file in _FILES_WITH_SPARK_SESSION else file


def _rank(group: str) -> int:
    for rank, prefix in enumerate(_SLOW_GROUPS):
        if group.startswith(prefix):
            return rank
    return len(_SLOW_GROUPS)
