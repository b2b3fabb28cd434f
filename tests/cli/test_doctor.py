"""`penstock doctor` as a whole: machines that are well, and those that are not.

What each check finds is tested beside it, in `checks/`.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from penstock.cli.checks import listeners, stored_data
from penstock.cli.doctor import CHECKS
from tests.support import LocalBroker, create

from .command import penstock


class Report:
    """What the doctor said to a program, by the names of its checks."""

    def __init__(self, *words: str, **variables: Any) -> None:
        finished = penstock("doctor", "--json", *words, **variables)
        assert finished.error == ""
        self.code = finished.code
        self.findings: list[dict[str, Any]] = json.loads(finished.output)

    def __getitem__(self, name: str) -> dict[str, Any]:
        (finding,) = [finding for finding in self.findings if finding["name"] == name]
        return finding

    def state(self, name: str) -> str:
        return str(self[name]["state"])

    @property
    def failed(self) -> list[str]:
        return [finding["name"] for finding in self.findings if finding["state"] == "fail"]


def test_a_new_machine_is_well(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = str(unused.getsockname()[1])
    report = Report("--root", str(root), STREAM_MANAGER_SERVER_PORT=port, HOME=str(tmp_path))

    assert report.failed == []
    assert report.code == 0
    assert [finding["name"] for finding in report.findings] == [*CHECKS, "exports"]
    for name in ("python", "packages", "clock", "settings", "root", "port", "file descriptors"):
        assert report.state(name) == "ok", report[name]
    assert report.state("broker") == "warn"
    assert report["broker"]["mend"] == f"`penstock serve --root {root}` starts one"
    for name in ("permissions", "store", "TLS", "Unix socket", "S3 files", "exports"):
        assert report.state(name) == "skip"
    assert not root.exists()


def test_a_running_broker_is_well_but_for_where_it_exports_to(tmp_path: Path) -> None:
    exports = {"http": [{"identifier": "nowhere", "uri": "http://127.0.0.1:1/in"}]}
    with LocalBroker(tmp_path / "root") as broker:
        with broker.connect() as client:
            create(client, "s", exportDefinition=exports)
        report = Report("--root", str(broker.root))

    assert report.code == 1
    assert report.failed == ["export"]
    for name in ("settings", "broker", "root", "permissions", "store", "port"):
        assert report.state(name) == "ok", report[name]


def test_settings_that_are_wrong_are_told_and_those_that_depend_on_them_left_out() -> None:
    report = Report(PENSTOCK_MAX_CONNECTIONS="many")

    assert report.code == 1
    assert report.failed == ["settings"]
    assert {report.state(name) for name in (*stored_data.CHECKS, *listeners.CHECKS)} == {"skip"}


def test_people_get_a_line_for_each_and_how_to_mend_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    finished = penstock("doctor", "--root", str(tmp_path))

    lines = finished.output.splitlines()
    index = lines.index(next(line for line in lines if line.startswith("warn  permissions")))
    assert lines[index].split(maxsplit=2)[2] == f"{tmp_path} has mode 755: others may look into it"
    assert lines[index + 1].split() == ["->", "chmod", "700", str(tmp_path)]
    assert lines[0].startswith("ok    python ")
    assert "\x1b" not in finished.output
