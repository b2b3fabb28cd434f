from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.spark.cache import cached_directory, write_program


def fill(directory: Path) -> None:
    write_program(directory / "hello", ["echo hello"])


def test_directory_is_created_once(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    made = cached_directory("tools/one", "hello", fill, environment)
    assert made == tmp_path / "penstock" / "tools" / "one"
    assert subprocess.check_output([made / "hello"], text=True) == "hello\n"

    def fill_again(_: Path) -> None:
        pytest.fail("the directory exists")

    assert cached_directory("tools/one", "hello", fill_again, environment) == made


def test_directory_of_a_concurrent_process_is_used(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}

    def fill_late(directory: Path) -> None:
        cached_directory("tools/one", "hello", fill, environment)
        fill(directory)

    made = cached_directory("tools/one", "hello", fill_late, environment)
    assert [path.name for path in made.parent.iterdir()] == ["one"]


def test_failed_creation_leaves_no_files(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        fill(directory)
        raise PermissionError("not here")

    with pytest.raises(PermissionError):
        cached_directory("tools/one", "hello", fail, {"XDG_CACHE_HOME": str(tmp_path)})
    assert list((tmp_path / "penstock" / "tools").iterdir()) == []


def test_unwritable_cache_is_replaced_by_a_temporary_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    made = cached_directory("tools/one", "hello", fill, {"XDG_CACHE_HOME": str(tmp_path / "file")})
    assert subprocess.check_output([made / "hello"], text=True) == "hello\n"
    assert tmp_path not in made.parents
