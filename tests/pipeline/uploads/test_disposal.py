"""Uploaded files that a setting says to delete."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.pipeline.settlements import UploadedFile
from penstock.pipeline.uploads.disposal import delete_files
from penstock.pipeline.uploads.inputs import Enclosure


def uploaded(path: Path, content: bytes = b"x") -> UploadedFile:
    path.write_bytes(content)
    with Enclosure((), None).open(str(path)) as file:
        return UploadedFile(0, str(path), file.fingerprint)


def test_uploaded_files_are_deleted(tmp_path: Path) -> None:
    files = [uploaded(tmp_path / name) for name in ("a", "b")]
    delete_files(files, [str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_changed_file_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a"
    files = [uploaded(path), uploaded(tmp_path / "b")]
    path.write_bytes(b"more")
    delete_files(files, [])
    assert [it.name for it in tmp_path.iterdir()] == ["a"]
    assert "changed" in caplog.text


def test_missing_file_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a"
    files = [uploaded(path), uploaded(tmp_path / "b")]
    path.unlink()
    delete_files(files, [])
    assert not list(tmp_path.iterdir())


def test_link_in_place_of_a_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "others").mkdir()
    file = uploaded(tmp_path / "files" / "a")
    (tmp_path / "files" / "a").rename(tmp_path / "others" / "a")
    (tmp_path / "files").rmdir()
    (tmp_path / "files").symlink_to(tmp_path / "others")
    delete_files([file], [str(tmp_path / "nowhere")])
    assert (tmp_path / "others" / "a").exists()
