"""`penstock doctor` as a whole. The tests of each check are in `checks/`."""

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
    """The JSON output of the command, by the names of checks."""

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


def unused_port() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return str(unused.getsockname()[1])


def test_new_machine_passes(tmp_path: Path) -> None:
    root = tmp_path / "root"
    port = unused_port()
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


def test_unreachable_destination_of_a_running_broker_fails(tmp_path: Path) -> None:
    exports = {"http": [{"identifier": "nowhere", "uri": "http://127.0.0.1:1/in"}]}
    with LocalBroker(tmp_path / "root") as broker:
        with broker.connect() as client:
            create(client, "s", exportDefinition=exports)
        report = Report("--root", str(broker.root))

    assert report.code == 1
    assert report.failed == ["export"]
    for name in ("settings", "broker", "root", "permissions", "store", "port"):
        assert report.state(name) == "ok", report[name]


def test_invalid_settings_fail_and_skip_dependent_checks() -> None:
    report = Report(PENSTOCK_MAX_CONNECTIONS="many", STREAM_MANAGER_SERVER_PORT=unused_port())

    assert report.code == 1
    assert report.failed == ["settings"]
    assert {report.state(name) for name in (*stored_data.CHECKS, *listeners.CHECKS)} == {"skip"}


def test_each_check_prints_a_line_and_its_fix(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    finished = penstock("doctor", "--root", str(tmp_path))

    lines = finished.output.splitlines()
    index = lines.index(next(line for line in lines if line.startswith("warn  permissions")))
    assert lines[index].split(maxsplit=2)[2] == f"{tmp_path} has mode 755: other users have access"
    assert lines[index + 1].split() == ["->", "chmod", "700", str(tmp_path)]
    assert lines[0].startswith("ok    python ")
    assert "\x1b" not in finished.output
