"""Archive of Spark's loaded classes (class data sharing), which halves the start time of Java.

The archive is in the user's cache directory. If it does not match, Java starts without it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import pyspark

from penstock.errors import SettingError
from penstock.spark.cache import cache_directory
from penstock.spark.pyspark_internals import end_java

_ARCHIVE_OPTIONS = ("SharedArchiveFile", "ArchiveClassesAtExit", "-Xshare")


class ClassArchive:
    """The class archive for one start of Java. `options` returns Java's options for it.

    With `writes`, Java writes the archive when it ends, see `write`.
    """

    def __init__(self, environment: Mapping[str, str], *, writes: bool = False) -> None:
        self._environment = environment
        self._writes = writes
        self._path = Path()

    @property
    def _unfinished(self) -> Path:
        return self._path.with_suffix(f".{os.getpid()}")

    def options(self, java_home: Path) -> list[str]:
        user_options = self._environment.get("SPARK_SUBMIT_OPTS", "")
        if any(option in user_options for option in _ARCHIVE_OPTIONS):
            if self._writes:
                raise SettingError(
                    f"SPARK_SUBMIT_OPTS is {user_options!r}: expected no options for class archives"
                )
            return []
        try:
            directory = cache_directory(self._environment) / "classes"
            self._path = directory / f"{_identify(java_home)}.jsa"
            if self._writes:
                directory.mkdir(parents=True, exist_ok=True)
        except (OSError, RuntimeError) as error:
            if self._writes:
                raise SettingError(f"the cache directory cannot be used: {error}") from None
            return []
        if self._writes:
            return _quote("-XX:ArchiveClassesAtExit", self._unfinished)
        return _quote("-XX:SharedArchiveFile", self._path) if self._path.is_file() else []

    def write(self) -> Path:
        """Ends Java, which then writes the archive; SettingError if it cannot write archives."""
        end_java()
        try:
            _sync(self._unfinished)
        except FileNotFoundError:
            raise SettingError(
                "this Java cannot archive classes: its own archive lib/server/classes.jsa is "
                "missing"
            ) from None
        self._unfinished.rename(self._path)
        # Remove unfinished archives, and archives of earlier versions of Java and Spark.
        for other in self._path.parent.iterdir():
            if other != self._path:
                other.unlink(missing_ok=True)
        return self._path


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _quote(option: str, path: Path) -> list[str]:
    # Without warnings about an archive that does not match.
    return [f'{option}="{path}"', "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def _identify(java_home: Path) -> str:
    """Returns a key of the installed Java and Spark."""
    release = java_home / "release"
    jars = Path(pyspark.__path__[0], "jars")
    parts = (
        os.fsencode(java_home),
        release.read_bytes() if release.is_file() else b"",
        os.fsencode(jars),
        pyspark.__version__.encode(),
        str(jars.stat().st_mtime_ns).encode(),
    )
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
