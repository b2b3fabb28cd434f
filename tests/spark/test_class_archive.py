"""The archive of Spark's classes: written once, used by the next Java."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import SettingError
from penstock.spark.class_archive import ClassArchive


def make(tmp_path: Path, *, writes: bool = False, **variables: str) -> ClassArchive:
    return ClassArchive({"XDG_CACHE_HOME": str(tmp_path), **variables}, writes=writes)


def path_in(options: list[str]) -> Path:
    return Path(options[0].partition("=")[2].strip('"'))


def write(tmp_path: Path, home: Path) -> Path:
    """Creates an archive as Java and `write` do."""
    unfinished = path_in(make(tmp_path, writes=True).options(home))
    archive = unfinished.with_suffix(".jsa")
    unfinished.touch()
    unfinished.rename(archive)
    return archive


def test_existing_archive_is_used(tmp_path: Path) -> None:
    assert make(tmp_path).options(tmp_path) == []
    archive = write(tmp_path, tmp_path)
    assert make(tmp_path).options(tmp_path)[0] == f'-XX:SharedArchiveFile="{archive}"'
    assert make(tmp_path, writes=True).options(tmp_path)[0].startswith("-XX:ArchiveClassesAtExit=")


def test_replaced_java_does_not_use_the_archive(tmp_path: Path) -> None:
    write(tmp_path, tmp_path)
    (tmp_path / "release").write_text('JAVA_VERSION="18"')
    assert make(tmp_path).options(tmp_path) == []


@pytest.mark.parametrize("chosen", ["-Xshare:off", "-XX:SharedArchiveFile=/x"])
def test_archive_options_of_the_user_take_precedence(tmp_path: Path, chosen: str) -> None:
    write(tmp_path, tmp_path)
    assert make(tmp_path, SPARK_SUBMIT_OPTS=chosen).options(tmp_path) == []
    with pytest.raises(SettingError, match="expected no options for class archives"):
        make(tmp_path, writes=True, SPARK_SUBMIT_OPTS=chosen).options(tmp_path)


def test_unusable_cache_is_an_error_only_for_writing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert make(tmp_path / "file").options(tmp_path) == []
    with pytest.raises(SettingError, match="the cache directory cannot be used"):
        make(tmp_path / "file", writes=True).options(tmp_path)
