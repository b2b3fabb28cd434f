"""Files that were uploaded, and are not needed any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.pipeline.settlements import UploadedFile
from penstock.pipeline.uploads.disposal import delete_files
from penstock.pipeline.uploads.inputs import Enclosure


def uploaded(path: Path, content: bytes = b"x") -> UploadedFile:
    path.write_bytes(content)
    with Enclosure((), None).open(str(path)) as file:
        return UploadedFile(str(path), file.fingerprint)


def test_what_was_uploaded_is_deleted(tmp_path: Path) -> None:
    files = [uploaded(tmp_path / name) for name in ("a", "b")]
    delete_files(files, [str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_what_has_changed_since_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a"
    files = [uploaded(path), uploaded(tmp_path / "b")]
    path.write_bytes(b"more")
    delete_files(files, [])
    assert [it.name for it in tmp_path.iterdir()] == ["a"]
    assert "changed" in caplog.text


def test_what_is_gone_already_is_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "a"
    files = [uploaded(path), uploaded(tmp_path / "b")]
    path.unlink()
    delete_files(files, [])
    assert not list(tmp_path.iterdir())


def test_a_link_in_place_of_a_directory_does_not_lead_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "others").mkdir()
    file = uploaded(tmp_path / "files" / "a")
    (tmp_path / "files" / "a").rename(tmp_path / "others" / "a")
    (tmp_path / "files").rmdir()
    (tmp_path / "files").symlink_to(tmp_path / "others")
    delete_files([file], [str(tmp_path / "nowhere")])
    assert (tmp_path / "others" / "a").exists()
