"""Opening files: the opened file is at the checked place, even if the path changes meanwhile."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.pipeline.uploads.input_files import AllowedDirectories, InputFileError


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory whose path has no links, with a file in another directory in it."""
    here = Path(os.path.realpath(tmp_path))
    (here / "d").mkdir()
    (here / "d" / "file").write_bytes(b"inside")
    return here


class CheckedPlaces(AllowedDirectories):
    """Records the checked places; an action follows the first check."""

    def __init__(self, act: Callable[[], object] = lambda: None) -> None:
        super().__init__((), None)
        self.places: list[str] = []
        self._act = act

    def _check_place(self, place: Path) -> None:
        self.places.append(str(place))
        if len(self.places) == 1:
            self._act()

    def read(self, path: Path | str) -> bytes:
        with self.open(str(path)) as file:
            return file.read_at(0, file.size)


def place_of(path: Path | str) -> str:
    checked = CheckedPlaces()
    assert checked.read(path) == b"inside"
    (place,) = checked.places
    return place


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = len(list(Path("/dev/fd").iterdir()))
    yield
    # Descriptors of earlier tests may be closed meanwhile.
    assert len(list(Path("/dev/fd").iterdir())) <= before


# Places


@pytest.mark.parametrize(
    "path", ["d/file", "d//file", "./d/./file", "d/../d/file", "d/../../{name}/d/file"]
)
def test_place_has_no_dots(here: Path, path: str) -> None:
    assert place_of(f"{here}/{path.format(name=here.name)}") == f"{here}/d/file"
    assert place_of(f"/..{here}/d/file") == f"{here}/d/file"
    assert place_of(f"/{here}/d/file") == f"{here}/d/file"


def test_place_has_no_links(here: Path) -> None:
    (here / "deep" / "er").mkdir(parents=True)
    for name, target in {
        "absolute": f"{here}/d/file",
        "relative": "d/file",
        "directory": "d/",
        "here": ".",
        "chain": "here/absolute",
        "deep/er/up": "../../d",
    }.items():
        (here / name).symlink_to(target)

    for path in (
        "absolute",
        "relative",
        "directory/file",
        "here/here/d/file",
        "chain",
        "deep/er/up/file",
        # `..` is relative to the target of the link, as in the kernel.
        "deep/er/up/../relative",
    ):
        assert place_of(here / path) == f"{here}/d/file"


def test_names_may_have_any_bytes(here: Path) -> None:
    name = os.fsdecode(b"a \xff\n(deleted)")
    (here / "d" / "file").rename(here / name)

    assert place_of(here / name) == f"{here}/{name}"


def test_directory_without_permission_to_list_is_traversed(here: Path) -> None:
    (here / "d").chmod(0o100)

    assert place_of(here / "d" / "file") == f"{here}/d/file"


# Refusals

_NOT_A_DIRECTORY = "does not exist: a part of its path is not a directory"


@pytest.mark.parametrize(
    ("path", "reason", "place"),
    [
        ("nothing", "does not exist", "nothing"),
        ("nothing/../d/file", "does not exist", "d/file"),
        ("d/file/x", _NOT_A_DIRECTORY, "d/file/x"),
        ("d/file/", _NOT_A_DIRECTORY, "d/file"),
        ("d/file/..", _NOT_A_DIRECTORY, "d"),
        ("link/x", "does not exist", "nothing/x"),
        ("n" * 256, os.strerror(errno.ENAMETOOLONG), "n" * 256),
    ],
)
def test_missing_file_is_refused_after_the_check_of_its_place(
    here: Path, path: str, reason: str, place: str
) -> None:
    (here / "link").symlink_to(here / "nothing")
    checked = CheckedPlaces()

    with pytest.raises(InputFileError) as caught:
        checked.open(f"{here}/{path}")

    assert str(caught.value).endswith(f" {reason}")
    assert checked.places == [f"{here}/{place}"]


def test_loop_of_links_is_refused(here: Path) -> None:
    (here / "a").symlink_to("b")
    (here / "b").symlink_to(here / "a")

    with pytest.raises(InputFileError, match="too many symbolic links"):
        CheckedPlaces().open(f"{here}/a")


@pytest.mark.parametrize("count", [41, 5000])
def test_long_chain_of_links_is_refused(here: Path, count: int) -> None:
    (here / "0").symlink_to("d/file")
    for number in range(1, count):
        (here / str(number)).symlink_to(str(number - 1))

    assert place_of(here / "39") == f"{here}/d/file"
    with pytest.raises(InputFileError, match="too many symbolic links"):
        CheckedPlaces().open(f"{here}/{count - 1}")


def test_other_kinds_are_refused(here: Path) -> None:
    os.mkfifo(here / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(here / "socket"))
    (here / "link").symlink_to("pipe")

    for path, kind in {
        here: "a directory, not a file",
        here / "d" / "..": "a directory, not a file",
        Path("/"): "a directory, not a file",
        here / "pipe": "not a regular file",
        here / "link": "not a regular file",
        here / "socket": "not a regular file",
        Path("/dev/null"): "not a regular file",
    }.items():
        with pytest.raises(InputFileError, match=f" is {kind}$"):
            CheckedPlaces().open(str(path))


def test_refused_place_is_not_opened(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise InputFileError("refused")

    opened: list[object] = []
    monkeypatch.setattr(os, "open", lambda *call, **_: opened.append(call))
    for path in ("d/file", "nothing", "d"):
        with pytest.raises(InputFileError, match="refused"):
            CheckedPlaces(refuse).open(str(here / path))
    assert opened == []


# Changes between the check and opening


@pytest.mark.parametrize("directory", ["d", "top"])
def test_directory_replaced_by_a_link_is_not_followed(here: Path, directory: str) -> None:
    for name, content in {"top/d": b"inside", "secrets": b"secret", "secrets/d": b"secret"}.items():
        (here / name).mkdir(parents=True, exist_ok=True)
        (here / name / "file").write_bytes(content)
    path = here / "d" / "file" if directory == "d" else here / "top" / "d" / "file"

    def swap() -> None:
        (here / directory).rename(here / "old")
        (here / directory).symlink_to("secrets")

    with pytest.raises(InputFileError):
        CheckedPlaces(swap).open(str(path))
    assert path.read_bytes() == b"secret"


def test_file_replaced_by_a_link_is_not_followed(here: Path) -> None:
    (here / "secret").write_bytes(b"secret")

    def swap() -> None:
        (here / "d" / "file").unlink()
        (here / "d" / "file").symlink_to("../secret")

    with pytest.raises(InputFileError, match="symbolic links"):
        CheckedPlaces(swap).open(str(here / "d" / "file"))


@pytest.mark.parametrize("has_been_checked", [False, True])
def test_file_replaced_by_a_named_pipe_is_refused_at_once(
    here: Path, monkeypatch: pytest.MonkeyPatch, has_been_checked: bool
) -> None:
    def swap() -> None:
        (here / "d" / "file").unlink()
        os.mkfifo(here / "d" / "file")

    if has_been_checked:
        # Between the check of its kind and opening.
        open_descriptor = os.open

        def swap_and_open(path: str, *arguments: int, **options: int) -> int:
            if path == "file":
                swap()
            return open_descriptor(path, *arguments, **options)

        monkeypatch.setattr(os, "open", swap_and_open)
    checked = CheckedPlaces() if has_been_checked else CheckedPlaces(swap)
    with pytest.raises(InputFileError, match="is not a regular file"):
        checked.open(str(here / "d" / "file"))


# Other containers


@contextmanager
def another_container(command: str) -> Iterator[int]:
    """A process with a mount namespace of its own, in which a command has run."""
    with subprocess.Popen(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", f"{command} && echo done && cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != b"done\n":
            pytest.skip("this machine allows no mount namespaces")
        yield process.pid
        process.stdin.close()


def test_file_of_another_container_is_not_opened(here: Path) -> None:
    (here / "secrets").mkdir()
    (here / "secrets" / "file").write_bytes(b"secret")
    (here / "d" / "file").unlink()
    with another_container(f"mount --bind {here}/secrets {here}/d") as process:
        path = f"/proc/{process}/root{here}/d/file"
        checked = CheckedPlaces()

        # The kernel finds it, and names a place in a directory that is empty here.
        with Path(path).open("rb") as found:
            assert found.read() == b"secret"
            assert str(Path(f"/proc/self/fd/{found.fileno()}").readlink()) == f"{here}/d/file"
        with pytest.raises(InputFileError, match="does not exist"):
            checked.open(path)

    assert checked.places == [f"{here}/d/file"]


# Hard links


class CheckedLinks(AllowedDirectories):
    """Records the inodes of files whose hard links are checked."""

    def __init__(self) -> None:
        super().__init__((), None)
        self.inodes: list[int] = []

    def _check_hard_links(self, status: os.stat_result) -> None:
        self.inodes.append(status.st_ino)


def test_hard_links_are_checked_for_files_that_have_them(here: Path) -> None:
    (here / "linked").write_text("linked")
    (here / "alone").write_text("alone")
    (here / "other").hardlink_to(here / "linked")
    checked = CheckedLinks()
    for name in ("linked", "alone", "other"):
        with checked.open(f"{here}/{name}"):
            pass
    assert checked.inodes == [(here / "linked").stat().st_ino] * 2


def test_link_removed_after_opening_is_checked(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "secret").write_text("secret")
    (here / "link").hardlink_to(here / "secret")
    fstat = os.fstat

    def unlink_first(descriptor: int) -> os.stat_result:
        (here / "link").unlink(missing_ok=True)
        return fstat(descriptor)

    monkeypatch.setattr(os, "fstat", unlink_first)
    checked = CheckedLinks()
    with checked.open(f"{here}/link"):
        pass
    assert checked.inodes == [(here / "secret").stat().st_ino]
    assert (here / "secret").stat().st_nlink == 1
