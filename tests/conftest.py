"""Hypothesis profiles, and which tests run together in which order.

Both profiles try new examples in every run, and print how to repeat a failing one. No example has a
deadline: the machine may be busy.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("test", deadline=None, print_blob=True)
settings.register_profile(
    "full", deadline=None, print_blob=True, max_examples=10 * settings().max_examples
)
settings.load_profile("test")

# A run ends with its slowest group of tests, so that slow groups have to start first.
_SLOW_GROUPS = (
    "spark session",
    "tests/exports/",
    "tests/spark/",
    "tests/cli/test_up.py",
    "tests/pipeline/",
    "tests/web/test_page.py",
    "tests/integration/",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts each test in the group that one worker runs, and sorts the groups.

    The sort is stable: groups of the same rank keep the order that pytest-randomly gave them.
    """
    groups = {item: _find_group(item) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: _rank(groups[item]))


def _find_group(item: pytest.Item) -> str:
    """The test's file, or one group for all tests that share a Spark session."""
    file = item.nodeid.partition("::")[0]
    names = getattr(item, "fixturenames", ())
    return "spark session" if file.startswith("tests/spark/") and "spark" in names else file


def _rank(group: str) -> int:
    for rank, prefix in enumerate(_SLOW_GROUPS):
        if group.startswith(prefix):
            return rank
    return len(_SLOW_GROUPS)
