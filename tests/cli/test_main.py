"""The command: what it says, and how it fails."""

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


def test_the_version_is_printed() -> None:
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port", "70000"], "--port is 70000: expected int <= 65535"),
        (["--http-port", "70000"], "--http-port is 70000: expected int <= 65535"),
        (["--log-level", "loud"], "--log-level is 'LOUD': expected one of TRACE, DEBUG, INFO"),
        (["--log-format", "xml"], "--log-format is 'xml': expected one of human, json"),
        (["--host", "0.0.0.0"], "--host is '0.0.0.0': a listener on another address"),
        (["--config", "/nowhere.toml"], "the configuration file /nowhere.toml does not exist"),
    ],
)
def test_a_wrong_flag_is_told_in_a_line(words: list[str], message: str) -> None:
    finished = penstock_process("serve", *words)

    assert finished.code == 2
    assert finished.error_lines[0].startswith(f"penstock: {message}")
    assert len(finished.error_lines) == 1
    assert finished.output == ""


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["stream", "list"], "'streams'?)"),
        (["--root", "x", "status"], "No such option '--root'. Options stand behind the command."),
        (["append", "s", "-3.5"], "A message that begins with a dash stands behind --."),
    ],
)
def test_a_slip_of_the_command_line_gets_a_hint(words: list[str], hint: str) -> None:
    finished = penstock(*words)

    assert finished.code == 2
    assert hint in finished.error


def test_a_wrong_variable_is_told_in_a_line(tmp_path: Path) -> None:
    finished = penstock_process("serve", STREAM_MANAGER_SERVER_PORT="eighty")

    assert finished.code == 2
    assert finished.error_lines == [
        "penstock: STREAM_MANAGER_SERVER_PORT is 'eighty': expected a whole number"
    ]


def test_a_wrong_line_of_the_file_in_this_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("prot = 8088\n")

    finished = penstock_process("serve", directory=tmp_path)

    assert finished.code == 2
    assert "there is no setting prot" in finished.error


@pytest.mark.parametrize("words", [["serv"], ["env", "--rot", "1"], ["tokens", "x"]])
def test_a_word_that_is_unknown_is_told(words: list[str]) -> None:
    finished = penstock(*words)

    assert finished.code == 2
    assert "No such" in finished.error
    assert "Traceback" not in finished.error


def test_a_root_that_cannot_be_made_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    finished = penstock_process("serve", "--root", str(tmp_path / "file" / "root"), "--port", "0")

    assert finished.code == 1
    assert len(finished.error_lines) == 1
    assert finished.error_lines[0].startswith("penstock: ")


def test_a_store_of_a_newer_version_is_told_in_a_line(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "catalog.sqlite") as catalog:
        catalog.execute("PRAGMA user_version = 999")

    finished = penstock_process("serve", "--root", str(tmp_path), "--port", "0")

    assert finished.code == 1
    assert len(finished.error_lines) == 1
    assert "written by a newer Penstock" in finished.error


# The dashboard


def test_a_broker_with_a_dashboard_says_where_it_is(tmp_path: Path) -> None:
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
            told = re.fullmatch(
                r"penstock dashboard (http://127\.0\.0\.1:\d+/)\n", lines.get(timeout=TIMEOUT_S)
            )
            assert told is not None
            with urllib.request.urlopen(f"{told[1]}healthz", timeout=TIMEOUT_S) as answer:
                assert json.loads(answer.read()) == {"status": "ok"}
            address = read_address(root)
            assert address is not None
            assert address.http_url == told[1]

            # A client that stays connected does not keep it.
            port = int(told[1].rstrip("/").rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as kept:
                kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                assert kept.recv(1) == b"H"
                process.send_signal(signal.SIGTERM)
                assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()
    assert not (root / "broker.json").exists()


def test_a_port_of_the_dashboard_that_is_taken_is_told_in_a_line(tmp_path: Path) -> None:
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


def test_without_its_packages_the_dashboard_says_what_to_install(tmp_path: Path) -> None:
    hide_module(tmp_path, "starlette")
    words = ("--root", str(tmp_path / "root"), "--port", "0", "--http-port", "0")

    finished = penstock_process("serve", *words, PYTHONPATH=str(tmp_path))

    assert finished.code == 1
    assert finished.output == ""
    assert len(finished.error_lines) == 1
    assert finished.error.startswith(
        "penstock: the dashboard needs more packages: pip install 'penstock[web]' ("
    )
    assert "starlette" in finished.error
    assert not (tmp_path / "root").exists()
