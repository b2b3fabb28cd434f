"""The command: help, hints, exit codes, and `penstock serve`."""

from __future__ import annotations

import json
import re
import signal
import socket
import sqlite3
import subprocess
import urllib.request
from pathlib import Path

import pytest

from penstock import __version__
from penstock.discovery import read_address
from tests.support import PENSTOCK, TIMEOUT_S, clean_environment, drain

from .command import hide_module, penstock, penstock_process


def test_version_is_printed() -> None:
    for words in (["version"], ["--version"]):
        finished = penstock(*words)
        assert finished.code == 0
        assert __version__ in finished.output


def test_help_lists_the_commands() -> None:
    for words in (["--help"], ["-h"]):
        finished = penstock(*words)
        assert finished.code == 0
        for command in ("serve", "up", "env", "tokens", "version"):
            assert f"  {command} " in finished.output


@pytest.mark.parametrize("group", [[], ["exports"], ["streams"], ["tokens"]])
def test_help_of_commands_fits_a_terminal(group: list[str]) -> None:
    _, _, commands = penstock(*group, "--help", COLUMNS="80").output.partition("\nCommands:\n")

    assert commands
    assert "..." not in commands


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port", "70000"], "--port is 70000: expected int <= 65535"),
        (["--http-port", "70000"], "--http-port is 70000: expected int <= 65535"),
        (["--log-level", "loud"], "--log-level is 'LOUD': expected one of TRACE, DEBUG, INFO"),
        (["--log-format", "xml"], "--log-format is 'xml': expected one of human, json"),
        (["--host", "0.0.0.0"], "--host is '0.0.0.0': an address other than loopback"),
        (["--config", "/nowhere.toml"], "the configuration file /nowhere.toml does not exist"),
    ],
)
def test_invalid_option_fails_with_one_line(words: list[str], message: str) -> None:
    finished = penstock_process("serve", *words)

    assert finished.code == 2
    assert finished.error_lines[0].startswith(f"penstock: {message}")
    assert len(finished.error_lines) == 1
    assert finished.output == ""


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["stream", "list"], "'streams'?)"),
        (["--root", "x", "status"], "No such option '--root'. Put options after the command."),
        (["append", "s", "-3.5"], "Put messages that begin with a dash after --."),
    ],
)
def test_usage_mistake_gets_a_hint(words: list[str], hint: str) -> None:
    finished = penstock(*words)

    assert finished.code == 2
    assert hint in finished.error


def test_invalid_variable_fails_with_one_line(tmp_path: Path) -> None:
    finished = penstock_process("serve", STREAM_MANAGER_SERVER_PORT="eighty")

    assert finished.code == 2
    assert finished.error_lines == [
        "penstock: STREAM_MANAGER_SERVER_PORT is 'eighty': expected a whole number"
    ]


def test_unknown_setting_in_the_configuration_file_fails(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("prot = 8088\n")

    finished = penstock_process("serve", directory=tmp_path)

    assert finished.code == 2
    assert "there is no setting prot" in finished.error


@pytest.mark.parametrize("words", [["serv"], ["env", "--rot", "1"], ["tokens", "x"]])
def test_unknown_command_or_option_fails(words: list[str]) -> None:
    finished = penstock(*words)

    assert finished.code == 2
    assert "No such" in finished.error
    assert "Traceback" not in finished.error


def test_root_that_cannot_be_created_fails_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    finished = penstock_process("serve", "--root", str(tmp_path / "file" / "root"), "--port", "0")

    assert finished.code == 1
    assert len(finished.error_lines) == 1
    assert finished.error_lines[0].startswith("penstock: ")


def test_store_of_a_newer_version_fails_with_one_line(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "catalog.sqlite") as catalog:
        catalog.execute("PRAGMA user_version = 999")

    finished = penstock_process("serve", "--root", str(tmp_path), "--port", "0")

    assert finished.code == 1
    assert len(finished.error_lines) == 1
    assert "written by a newer Penstock" in finished.error


# The dashboard


def test_serve_prints_the_address_of_the_dashboard(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with subprocess.Popen(
        [str(PENSTOCK), "serve", "--root", str(root), "--port", "0", "--http-port", "0"],
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = drain(process.stdout)
        try:
            assert lines.get(timeout=TIMEOUT_S).startswith("penstock ready 127.0.0.1:")
            shown = re.fullmatch(
                r"penstock dashboard (http://127\.0\.0\.1:\d+/)\n", lines.get(timeout=TIMEOUT_S)
            )
            assert shown is not None
            with urllib.request.urlopen(f"{shown[1]}healthz", timeout=TIMEOUT_S) as answer:
                assert json.loads(answer.read()) == {"status": "ok"}
            address = read_address(root)
            assert address is not None
            assert address.http_url == shown[1]

            # An open connection does not delay the stop.
            port = int(shown[1].rstrip("/").rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as kept:
                kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                assert kept.recv(1) == b"H"
                process.send_signal(signal.SIGTERM)
                assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()
    assert not (root / "broker.json").exists()


def test_taken_dashboard_port_fails_with_one_line(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ("--root", str(root), "--port", "0", "--http-port", str(port))
        finished = penstock_process("serve", *words)

    assert finished.code == 1
    assert finished.output == ""
    assert finished.error_lines[-1] == (
        f"penstock: cannot listen on 127.0.0.1:{port} for the dashboard: Address already in use; "
        "choose another port with --http-port (0 picks a free one)"
    )
    assert "Traceback" not in finished.error
    assert not (root / "broker.json").exists()


def test_missing_dashboard_packages_fail_with_a_hint(tmp_path: Path) -> None:
    hide_module(tmp_path, "starlette")
    words = ("--root", str(tmp_path / "root"), "--port", "0", "--http-port", "0")

    finished = penstock_process("serve", *words, PYTHONPATH=str(tmp_path))

    assert finished.code == 1
    assert finished.output == ""
    assert len(finished.error_lines) == 1
    assert finished.error.startswith(
        "penstock: the dashboard needs more packages: pip install 'penstock-streams[web]' ("
    )
    assert "starlette" in finished.error
    assert not (tmp_path / "root").exists()
