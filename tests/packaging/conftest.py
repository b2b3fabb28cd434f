"""The archives of a release: from the directory in DIST, or built for the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

PROJECT = Path(__file__).resolve().parents[2]


class Archives(NamedTuple):
    wheel: Path
    sdist: Path


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    if "DIST" in os.environ:
        directory = PROJECT / os.environ["DIST"]
    else:
        directory = tmp_path_factory.mktemp("dist")
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(directory)]
        subprocess.run([*command, str(PROJECT)], check=True, capture_output=True)
    (wheel,) = directory.glob("*.whl")
    (sdist,) = directory.glob("*.tar.gz")
    return Archives(wheel, sdist)
