from __future__ import annotations

from pathlib import Path

import pytest

from penstock.store.files import Disk


def test_written_bytes_can_be_read_from_any_position(tmp_path: Path) -> None:
    disk = Disk()
    file = disk.create(tmp_path / "f")
    disk.write(file, b"hello world", 0)
    disk.write(file, b"W", 6)
    assert disk.read(file, 100, 0) == b"hello World"
    assert disk.read(file, 5, 6) == b"World"
    assert disk.read(file, 5, 50) == b""
    disk.close(file)


def test_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    disk = Disk()
    disk.close(disk.create(tmp_path / "f"))
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    disk.make_directory(tmp_path / "d")
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700


def test_create_rejects_an_existing_file(tmp_path: Path) -> None:
    disk = Disk()
    disk.close(disk.create(tmp_path / "f"))
    with pytest.raises(FileExistsError):
        disk.create(tmp_path / "f")


def test_replace_leaves_no_temporary_file(tmp_path: Path) -> None:
    disk = Disk()
    disk.replace(tmp_path / "f.json", b"one")
    disk.replace(tmp_path / "f.json", b"two")
    assert [path.name for path in tmp_path.iterdir()] == ["f.json"]
    assert (tmp_path / "f.json").read_bytes() == b"two"
