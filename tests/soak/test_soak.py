"""A short soak with a fixed seed, which has each kind of fault once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support import clean_environment

PROJECT = Path(__file__).resolve().parents[2]
ROUNDS = 6


def test_short_soak_loses_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "soak", "--json", "--seed", "15", "--directory", str(tmp_path)),
            *("--arena", "broker", "--arena", "power", "--simulate-power"),
            *("--rounds", str(ROUNDS), "--max-load-seconds", "1"),
        ],
        cwd=PROJECT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    result = json.loads(done.stdout)
    assert result["failures"] == []
    assert result["findings"] == []
    assert result["isClean"]
    assert done.returncode == 0
    tried = result["tried"]
    assert tried["rounds of the broker arena"] == ROUNDS
    assert tried["power cuts"] == ROUNDS
    for row in ("appends answered", "kill -9 of the broker", "damaged places"):
        assert tried[row] > 0, row
    # The soak deletes its files.
    assert list(tmp_path.iterdir()) == []
