"""The command: what it says, and how it fails."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from penstock import __version__

from .command import penstock, penstock_process


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


def test_a_wrong_variable_is_told_in_a_line(tmp_path: Path) -> None:
    finished = penstock_process("serve", STREAM_MANAGER_SERVER_PORT="eighty")

    assert finished.code == 2
    assert finished.error_lines == [
        "penstock: STREAM_MANAGER_SERVER_PORT is 'eighty': expected int, got str"
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
