"""The archive of Spark's classes: written by the first Java, used by the next ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.spark.class_archive import ClassArchive
from penstock.spark.java import find_java

# Like Java: it ends when its standard input does, and writes a file then.
WRITER = "import sys; sys.stdin.read(); open(sys.argv[1], 'w').write('classes')"
HANGING = "import time; time.sleep(3600)"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "java"
    (home / "lib" / "server").mkdir(parents=True)
    (home / "lib" / "server" / "classes.jsa").touch()
    return home


def make(tmp_path: Path, **variables: str) -> ClassArchive:
    return ClassArchive({"XDG_CACHE_HOME": str(tmp_path / "cache"), **variables})


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "penstock" / "classes").glob("*"))


def file_of(options: list[str]) -> Path:
    return Path(options[0].partition("=")[2].strip('"'))


def run(program: str, *words: object) -> SimpleNamespace:
    """A gateway of py4j, as far as it is used."""
    command = [sys.executable, "-c", program, *map(str, words)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    return SimpleNamespace(shutdown=lambda: None, proc=process)


def test_first_java_writes_what_the_next_one_uses(tmp_path: Path, home: Path) -> None:
    first = make(tmp_path)
    options = first.options(home)
    assert options[0].startswith("-XX:ArchiveClassesAtExit=")
    first.finish(run(WRITER, file_of(options)))
    (archive,) = files(tmp_path)
    assert archive.read_text() == "classes"

    second = make(tmp_path)
    assert second.options(home)[0] == f'-XX:SharedArchiveFile="{archive}"'
    # Its Java goes on.
    second.finish(None)
    assert files(tmp_path) == [archive]


def test_java_that_is_replaced_has_another_archive(tmp_path: Path, home: Path) -> None:
    first = make(tmp_path)
    first.finish(run(WRITER, file_of(first.options(home))))
    (home / "release").write_text('JAVA_VERSION="18"')
    assert make(tmp_path).options(home)[0].startswith("-XX:ArchiveClassesAtExit=")


def test_java_that_takes_too_long_is_not_asked_again(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.class_archive._WRITE_SECONDS", 0.1)
    archive = make(tmp_path)
    archive.options(home)
    gateway = run(HANGING)
    archive.finish(gateway)
    assert gateway.proc.wait() < 0
    assert [path.suffix for path in files(tmp_path)] == [".failed"]
    assert make(tmp_path).options(home) == []


def test_java_that_writes_nothing_is_asked_again(tmp_path: Path, home: Path) -> None:
    archive = make(tmp_path)
    archive.options(home)
    archive.finish(run("import sys; sys.stdin.read()"))
    assert files(tmp_path) == []
    assert make(tmp_path).options(home) != []


def test_file_of_a_killed_process_is_removed(tmp_path: Path, home: Path) -> None:
    killed = make(tmp_path)
    written = file_of(killed.options(home))
    process = subprocess.Popen(["true"])
    process.wait()
    left = written.with_name(written.name.replace(str(os.getpid()), str(process.pid)))
    left.touch()
    written.touch()
    make(tmp_path).options(home)
    assert files(tmp_path) == [written]


def test_java_without_an_archive_of_its_own_gets_no_options(tmp_path: Path, home: Path) -> None:
    (home / "lib" / "server" / "classes.jsa").unlink()
    assert make(tmp_path).options(home) == []


@pytest.mark.parametrize("chosen", ["-Xshare:off", "-XX:SharedArchiveFile=/x"])
def test_choice_of_the_user_counts(tmp_path: Path, home: Path, chosen: str) -> None:
    assert make(tmp_path, SPARK_SUBMIT_OPTS=chosen).options(home) == []


def test_cache_that_cannot_be_written_is_no_error(tmp_path: Path, home: Path) -> None:
    (tmp_path / "cache").touch()
    assert make(tmp_path).options(home) == []


def test_real_java_starts_with_what_it_wrote(tmp_path: Path) -> None:
    home = find_java(os.environ).home
    if not (home / "lib" / "server" / "classes.jsa").is_file():
        pytest.skip("this Java has no archive of its own classes")
    archive = make(tmp_path)

    java = [str(home / "bin" / "java"), *(each.replace('"', "") for each in archive.options(home))]
    process = subprocess.Popen([*java, "-version"], stdin=subprocess.PIPE)
    archive.finish(SimpleNamespace(shutdown=lambda: None, proc=process))
    (written,) = files(tmp_path)
    options = [each.replace('"', "") for each in make(tmp_path).options(home)]
    assert options[0] == f"-XX:SharedArchiveFile={written}"
    subprocess.run([home / "bin" / "java", *options, "-Xshare:on", "-version"], check=True)
