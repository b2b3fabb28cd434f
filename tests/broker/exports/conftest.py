from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.exports.workbench import Workbench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    bench = Workbench(tmp_path)
    yield bench
    bench.close()
