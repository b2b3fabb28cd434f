"""Runs `cases.py` on a real, small file system without a free byte, also as an unprivileged user.

SQLite does not write through `Disk`, so injected faults would not reach it. The cases run in their
own mount namespace, which unmounts the file systems when it ends.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.support import TIMEOUT_S, clean_environment, run_program

PROJECT = Path(__file__).resolve().parents[2]
UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")
MOUNT = "mount -t tmpfs -o size=64k none"


def test_full_disk_cases_pass_on_a_real_file_system(tmp_path: Path) -> None:
    probe = (*UNSHARE, "sh", "-c", f"{MOUNT} {tmp_path}")
    environment = clean_environment(PYTHONDONTWRITEBYTECODE="1")
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    if run_program(*probe, cwd=PROJECT, env=environment, seconds=TIMEOUT_S).returncode:
        pytest.skip("this user may not mount a file system")
    cases = str(Path(__file__).with_name("cases.py"))
    pytest_command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", cases)
    finished = run_program(
        *UNSHARE, *pytest_command, cwd=PROJECT, env=environment, seconds=3 * TIMEOUT_S
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
