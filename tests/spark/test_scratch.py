"""The temporary directory of a pipeline."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from penstock.spark.scratch import make_scratch


def test_directory_is_removed_by_its_pipeline_or_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, tempfile; from penstock.spark.scratch import make_scratch\n"
            "kept = make_scratch(); print(kept.name, flush=True); os.kill(os.getpid(), 9)",
        ],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    left = Path(killed.stdout.strip())
    assert left.is_dir()
    # Directories of another user, of a running process, and without a process id.
    others = [tmp_path / f"penstock-pipeline-{name}" for name in ("1-x", f"{os.getpid()}-x", "x")]
    for other in others:
        other.mkdir()

    with make_scratch() as mine:
        assert Path(mine).is_dir()
        assert not left.exists()
        assert all(other.exists() for other in others)
    assert not Path(mine).exists()
