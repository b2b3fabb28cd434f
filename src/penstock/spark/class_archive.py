"""Spark's classes as Java has loaded them once: with this archive Java starts in half the time.

Java calls it class data sharing. The archive lies in the user's cache directory. The first Java
writes it when it ends; a Java that it does not fit starts without it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark

from penstock.spark.cache import cache_directory

logger = logging.getLogger(__name__)

_MIN_FREE_BYTES = 1024**3
# Java may take so long to write it.
_WRITE_SECONDS = 10.0
_USERS_CHOICES = ("SharedArchiveFile", "ArchiveClassesAtExit", "-Xshare")


class ClassArchive:
    """For one Java: `options` before it starts, and `finish` in place of its end."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._archive = Path()
        # The file that this Java writes; None if it writes none.
        self._new: Path | None = None

    def options(self, java_home: Path) -> list[str]:
        """Options for Java; none if it has no archive of its own classes to build on."""
        chosen = self._environment.get("SPARK_SUBMIT_OPTS", "")
        if any(word in chosen for word in _USERS_CHOICES):
            return []
        if not (java_home / "lib" / "server" / "classes.jsa").is_file():
            return []
        try:
            self._archive = (
                cache_directory(self._environment) / "classes" / f"{_key(java_home)}.jsa"
            )
            option = self._choose()
        except (OSError, RuntimeError) as error:
            logger.debug("Spark's classes are not archived: %s", error)
            return []
        # What does not fit is not worth a warning.
        return [option, "-Xlog:cds=off", "-Xlog:cds+dynamic=off"] if option else []

    def _choose(self) -> str:
        if self._archive.is_file():
            return f'-XX:SharedArchiveFile="{self._archive}"'
        if self._failure.exists():
            return ""
        directory = self._archive.parent
        directory.mkdir(parents=True, exist_ok=True)
        for abandoned in directory.glob("*.new"):
            if not _is_alive(abandoned.suffixes[-2].removeprefix(".")):
                abandoned.unlink(missing_ok=True)
        if shutil.disk_usage(directory).free < _MIN_FREE_BYTES or not os.access(directory, os.W_OK):
            return ""
        self._new = self._archive.with_suffix(f".{os.getpid()}.new")
        return f'-XX:ArchiveClassesAtExit="{self._new}"'

    @property
    def _failure(self) -> Path:
        """Exists if this machine is too slow to write an archive: each attempt delays a start."""
        return self._archive.with_suffix(".failed")

    def finish(self, gateway: Any) -> None:
        """Ends Java if it is to write the archive, and keeps what it wrote."""
        if self._new is None:
            return
        try:
            gateway.shutdown()
            # Java ends when nothing can be written to it any more.
            gateway.proc.stdin.close()
            gateway.proc.wait(_WRITE_SECONDS)
            self._new.rename(self._archive)
        except subprocess.TimeoutExpired:
            gateway.proc.kill()
            self._failure.touch()
        except OSError as error:
            logger.debug("Spark's classes are not archived: %s", error)
        finally:
            self._new.unlink(missing_ok=True)


def _key(java_home: Path) -> str:
    """Differs for another Java and another Spark."""
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


def _is_alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
