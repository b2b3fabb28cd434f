"""Opening files: what is opened is what was permitted, whatever others do to the path meanwhile."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.pipeline.uploads.opening import NotAFileError, open_file


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory whose path has no links, with a file in another directory in it."""
    here = Path(os.path.realpath(tmp_path))
    (here / "d").mkdir()
    (here / "d" / "file").write_bytes(b"inside")
    return here


class Asked(list[str]):
    """The places that somebody was asked about, who does something the first time."""

    def __init__(self, act: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._act = act

    def __call__(self, place: str) -> None:
        self.append(place)
        if len(self) == 1:
            self._act()


def content(path: Path | str, asked: Asked | None = None) -> bytes:
    descriptor = open_file(str(path), Asked() if asked is None else asked)
    try:
        return os.read(descriptor, 1000)
    finally:
        os.close(descriptor)


def place_of(path: Path | str) -> str:
    asked = Asked()
    assert content(path, asked) == b"inside"
    (place,) = asked
    return place


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = len(list(Path("/dev/fd").iterdir()))
    yield
    # What tests before this one have left may be closed meanwhile.
    assert len(list(Path("/dev/fd").iterdir())) <= before


# Places


@pytest.mark.parametrize(
    "path", ["d/file", "d//file", "./d/./file", "d/../d/file", "d/../../{name}/d/file"]
)
def test_a_place_has_no_dots(here: Path, path: str) -> None:
    assert place_of(f"{here}/{path.format(name=here.name)}") == f"{here}/d/file"
    assert place_of(f"/..{here}/d/file") == f"{here}/d/file"


def test_a_place_has_no_links(here: Path) -> None:
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
        # From where the link leads to, as the kernel does it.
        "deep/er/up/../relative",
    ):
        assert place_of(here / path) == f"{here}/d/file"


def test_names_may_have_any_bytes(here: Path) -> None:
    name = os.fsdecode(b"a \xff\n(deleted)")
    (here / "d" / "file").rename(here / name)

    assert place_of(here / name) == f"{here}/{name}"


def test_a_directory_that_may_not_be_listed_may_be_passed(here: Path) -> None:
    (here / "d").chmod(0o100)

    assert place_of(here / "d" / "file") == f"{here}/d/file"


# What there is not


@pytest.mark.parametrize(
    ("path", "number", "place"),
    [
        ("nothing", errno.ENOENT, "nothing"),
        ("nothing/../d/file", errno.ENOENT, "d/file"),
        ("d/file/x", errno.ENOTDIR, "d/file/x"),
        ("d/file/", errno.ENOTDIR, "d/file"),
        ("d/file/..", errno.ENOTDIR, "d"),
        ("link/x", errno.ENOENT, "nothing/x"),
        ("n" * 256, errno.ENAMETOOLONG, "n" * 256),
    ],
)
def test_what_is_not_there_is_an_error_after_its_place_was_permitted(
    here: Path, path: str, number: int, place: str
) -> None:
    (here / "link").symlink_to(here / "nothing")
    asked = Asked()

    with pytest.raises(OSError, match="Errno") as caught:
        open_file(f"{here}/{path}", asked)

    assert caught.value.errno == number
    assert asked == [f"{here}/{place}"]


def test_links_that_lead_in_a_circle_end(here: Path) -> None:
    (here / "a").symlink_to("b")
    (here / "b").symlink_to(here / "a")

    with pytest.raises(OSError, match="symbolic links") as caught:
        open_file(f"{here}/a", Asked())

    assert caught.value.errno == errno.ELOOP


def test_what_is_no_file_is_not_opened(here: Path) -> None:
    os.mkfifo(here / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(here / "socket"))
    (here / "link").symlink_to("pipe")

    for path, kind in {
        here: "a directory",
        here / "d" / "..": "a directory",
        Path("/"): "a directory",
        here / "pipe": "a named pipe",
        here / "link": "a named pipe",
        here / "socket": "a socket",
        Path("/dev/null"): "a device",
    }.items():
        with pytest.raises(NotAFileError) as caught:
            open_file(str(path), Asked())
        assert str(caught.value) == kind


def test_what_is_not_permitted_is_not_opened(here: Path) -> None:
    def refuse(place: str) -> None:
        raise PermissionError(place)

    for path in ("d/file", "nothing", "d"):
        with pytest.raises(PermissionError):
            open_file(str(here / path), refuse)


# What changes in the middle


def test_a_directory_that_becomes_a_link_leads_nowhere_else(here: Path) -> None:
    (here / "secrets").mkdir()
    (here / "secrets" / "file").write_bytes(b"secret")

    def swap() -> None:
        (here / "d").rename(here / "old")
        (here / "d").symlink_to("secrets")

    assert content(here / "d" / "file", Asked(swap)) == b"inside"
    assert (here / "d" / "file").read_bytes() == b"secret"


def test_a_directory_above_that_becomes_a_link_leads_nowhere_else(here: Path) -> None:
    (here / "top" / "d").mkdir(parents=True)
    (here / "top" / "d" / "file").write_bytes(b"inside")
    (here / "secrets" / "d").mkdir(parents=True)
    (here / "secrets" / "d" / "file").write_bytes(b"secret")

    def swap() -> None:
        (here / "top").rename(here / "old")
        (here / "top").symlink_to("secrets")

    assert content(here / "top" / "d" / "file", Asked(swap)) == b"inside"


def test_a_file_that_becomes_a_link_is_not_opened(here: Path) -> None:
    (here / "secret").write_bytes(b"secret")

    def swap() -> None:
        (here / "d" / "file").unlink()
        (here / "d" / "file").symlink_to("../secret")

    with pytest.raises(OSError, match="symbolic links"):
        open_file(str(here / "d" / "file"), Asked(swap))


def test_a_file_that_becomes_a_named_pipe_keeps_nobody_waiting(here: Path) -> None:
    def swap() -> None:
        (here / "d" / "file").unlink()
        os.mkfifo(here / "d" / "file")

    with pytest.raises(NotAFileError, match="a named pipe"):
        open_file(str(here / "d" / "file"), Asked(swap))


# Other containers


@contextmanager
def another_container(command: str) -> Iterator[int]:
    """A process whose file system another command has changed, for itself alone."""
    with subprocess.Popen(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", f"{command} && echo done && cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != b"done\n":
            pytest.skip("this machine lets nobody have a file system of their own")
        yield process.pid
        process.stdin.close()


def test_a_file_of_another_container_is_not_taken_for_ours(here: Path) -> None:
    (here / "secrets").mkdir()
    (here / "secrets" / "file").write_bytes(b"secret")
    (here / "d" / "file").unlink()
    with another_container(f"mount --bind {here}/secrets {here}/d") as process:
        path = f"/proc/{process}/root{here}/d/file"
        asked = Asked()

        # The kernel would find it, and say that it is in a directory that is empty for us.
        with Path(path).open("rb") as found:
            assert found.read() == b"secret"
            assert str(Path(f"/proc/self/fd/{found.fileno()}").readlink()) == f"{here}/d/file"
        with pytest.raises(FileNotFoundError):
            open_file(path, asked)

    assert asked == [f"{here}/d/file"]


# Hard links


def test_other_names_are_checked_for_files_that_have_them(here: Path) -> None:
    (here / "linked").write_text("linked")
    (here / "alone").write_text("alone")
    (here / "other").hardlink_to(here / "linked")
    checked: list[int] = []
    for name in ("linked", "alone", "other"):
        os.close(open_file(f"{here}/{name}", Asked(), lambda status: checked.append(status.st_ino)))
    assert checked == [(here / "linked").stat().st_ino] * 2


def test_a_link_removed_after_opening_is_checked(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "secret").write_text("secret")
    (here / "link").hardlink_to(here / "secret")
    fstat = os.fstat

    def unlink_first(descriptor: int) -> os.stat_result:
        (here / "link").unlink(missing_ok=True)
        return fstat(descriptor)

    def refuse(status: os.stat_result) -> None:
        assert status.st_nlink == 1
        raise PermissionError

    monkeypatch.setattr(os, "fstat", unlink_first)
    with pytest.raises(PermissionError):
        open_file(f"{here}/link", Asked(), refuse)
