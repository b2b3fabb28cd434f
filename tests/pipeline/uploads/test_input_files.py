"""The input files of S3 tasks: access checks, and detection of changes."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.pipeline.delivery import UploadedFile
from penstock.pipeline.uploads.input_files import (
    MIN_AGE_NANOSECONDS,
    AllowedDirectories,
    InputFile,
    InputFileError,
    delete_files,
    find_path,
)
from tests.permissions import as_unprivileged_user, public_directory
from tests.support import wait_until

EVERYWHERE = AllowedDirectories((), None)


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(InputFileError) as caught:
        act()
    return str(caught.value)


def content(allowed: AllowedDirectories, path: Path | str) -> bytes:
    with allowed.open(str(path)) as file:
        return file.read_at(0, file.size)


# Paths


@pytest.mark.parametrize(
    ("input_url", "path"),
    [
        ("file:/data/x.csv", "/data/x.csv"),
        ("file:///data/x.csv", "/data/x.csv"),
        ("file://localhost/data/x.csv", "/data/x.csv"),
        ("FILE://LocalHost/data/X.csv", "/data/X.csv"),
        ("file:////data/x.csv", "//data/x.csv"),
        ("file:/data/a%20b%C3%BC%2Fc", "/data/a bü/c"),
        ("file:/data/ü b", "/data/ü b"),
        ("file:/data/%FF", "/data/\udcff"),
        ("file:/data/100%", "/data/100%"),
        ("file:%2Fdata/x.csv", "/data/x.csv"),
        ("file:/data/what?#1", "/data/what?#1"),
        ("/data/x.csv", "/data/x.csv"),
        ("/data/a%20b ü", "/data/a%20b ü"),
        ("/data/file:/x", "/data/file:/x"),
        ("/", "/"),
    ],
)
def test_path_is_found_in_a_url_or_a_path(input_url: str, path: str) -> None:
    assert find_path(input_url) == path


@pytest.mark.parametrize(
    ("input_url", "reason"),
    [
        ("", "not an absolute path"),
        ("data/x.csv", "not an absolute path"),
        ("./x.csv", "not an absolute path"),
        ("~/x.csv", "not an absolute path"),
        (" /x.csv", "not an absolute path"),
        ("file:", "not an absolute path"),
        ("file:x.csv", "not an absolute path"),
        ("file://", "not an absolute path"),
        ("file://localhost", "not an absolute path"),
        ("file://gateway/x.csv", "on another machine, 'gateway'"),
        ("file://x.csv", "on another machine, 'x.csv'"),
        ("file://localhost:80/x", "on another machine"),
        ("http://localhost/x.csv", "not an absolute path"),
        ("s3://bucket/x.csv", "not an absolute path"),
        ("/data/\0", "characters that a path cannot have"),
        ("file:/data/%00", "characters that a path cannot have"),
        ("/data/\ud800", "characters that a path cannot have"),
        ("file:/data/\ud800", "characters that a path cannot have"),
    ],
)
def test_error_of_an_invalid_input_url_names_the_allowed_forms(input_url: str, reason: str) -> None:
    said = refusal(lambda: find_path(input_url))

    assert said.startswith(f"inputUrl is {input_url!r}: ")
    assert reason in said
    assert said.endswith(
        "expected file:/path, file:///path, file://localhost/path, or a path that starts with /"
    )
    said.encode()


def test_long_urls_are_shortened_in_messages() -> None:
    assert len(refusal(lambda: find_path("x" * 100_000))) < 600


# Kinds of files


def test_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")

    with EVERYWHERE.open(str(path)) as file:
        assert (file.path, file.size) == (str(path), 10)
        assert file.read_at(0, 10) == b"0123456789"
        assert file.read_at(3, 4) == b"3456"
        assert file.read_at(10, 0) == b""
        file.check()


def test_empty_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert content(EVERYWHERE, tmp_path / "file") == b""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing", "does not exist"),
        ("file/x", "does not exist: a part of its path is not a directory"),
        ("directory", "is a directory, not a file"),
        ("pipe", "is not a regular file"),
        ("to-pipe", "is not a regular file"),
        ("socket", "is not a regular file"),
        ("loop", "has too many symbolic links in its path, or a loop of them"),
        ("dangling", "does not exist"),
        ("n" * 300, "cannot be accessed: File name too long"),
    ],
)
def test_other_kinds_are_refused(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    for link, target in {"to-pipe": "pipe", "loop": "loop", "dangling": "missing"}.items():
        (tmp_path / link).symlink_to(target)
    path = str(tmp_path / name)

    assert refusal(lambda: EVERYWHERE.open(path))[-len(reason) - 1 :] == f" {reason}"


def test_device_is_refused() -> None:
    assert refusal(lambda: EVERYWHERE.open("/dev/zero")) == "'/dev/zero' is not a regular file"


def test_file_without_permission_is_refused() -> None:
    with public_directory() as directory:
        (directory / "closed").mkdir()
        for name in ("file", "open", "closed/file"):
            (directory / name).write_bytes(b"content")
        (directory / "file").chmod(0)
        (directory / "open").chmod(0o644)
        (directory / "closed").chmod(0)

        with as_unprivileged_user():
            assert content(EVERYWHERE, directory / "open") == b"content"
            for name in ("file", "closed/file", "closed/missing"):
                path = str(directory / name)
                assert refusal(lambda path=path: EVERYWHERE.open(path)) == (  # type: ignore[misc]
                    f"'{path}' may not be accessed by the user of the pipeline"
                )
        # Otherwise the directory could not be removed.
        (directory / "closed").chmod(0o700)


def test_lack_of_descriptors_is_not_an_error_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()

    def fail(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(OSError, match="Too many open files"):
        EVERYWHERE.open(str(tmp_path / "file"))


# Directories


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """Two directories that may be read, and one that may not."""
    for name in ("in/deep", "also", "out"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "in-other").mkdir()
    (tmp_path / "in-other" / "file").write_text("in-other")
    return tmp_path


def test_files_in_allowed_directories_are_read(house: Path) -> None:
    allowed = AllowedDirectories((f"{house}/in/", f"{house}/also"), None)
    (house / "in" / "up").symlink_to("../also/file")
    (house / "also" / "around").symlink_to(house / "in" / "deep")
    (house / "out" / "back").symlink_to(house / "in")

    assert content(allowed, house / "in" / "deep" / "file") == b"in/deep"
    assert content(allowed, house / "also" / "file") == b"also"
    assert content(allowed, f"{house}/in/deep/../../also/file") == b"also"
    # Links are followed if they lead to an allowed directory.
    assert content(allowed, house / "in" / "up") == b"also"
    assert content(allowed, house / "also" / "around" / "file") == b"in/deep"
    assert content(allowed, house / "out" / "back" / "deep" / "file") == b"in/deep"


@pytest.mark.parametrize(
    "path",
    [
        "out/file",
        "out/missing",
        "out",
        "in-other/file",
        "in/../out/file",
        "in/to-file",
        "in/to-directory/file",
        "in/to-directory/missing",
        "in/to-above/out/file",
        "in/to-nothing",
    ],
)
def test_other_files_are_refused_whether_they_exist_or_not(house: Path, path: str) -> None:
    allowed = AllowedDirectories((f"{house}/in", f"{house}/also"), None)
    for name, target in {
        "to-file": "../out/file",
        "to-directory": str(house / "out"),
        "to-above": "..",
        "to-nothing": "../out/missing",
    }.items():
        (house / "in" / name).symlink_to(target)

    assert refusal(lambda: allowed.open(f"{house}/{path}")) == (
        f"'{house}/{path}' is not in an allowed directory after all links are followed; allowed by "
        f"STREAM_MANAGER_READ_ONLY_DIRS: {house}/in, {house}/also"
    )


def test_allowed_directory_may_be_a_link_and_may_be_created_later(house: Path) -> None:
    allowed = AllowedDirectories((f"{house}/link", f"{house}/later"), None)
    assert "does not exist" in refusal(lambda: allowed.open(f"{house}/later/file"))

    (house / "link").symlink_to("in")
    (house / "later").mkdir()
    (house / "later" / "file").write_text("later")

    assert content(allowed, house / "link" / "deep" / "file") == b"in/deep"
    assert content(allowed, house / "in" / "deep" / "file") == b"in/deep"
    assert content(allowed, house / "later" / "file") == b"later"


def test_root_directory_allows_all_files(house: Path) -> None:
    assert content(AllowedDirectories(("/",), None), house / "out" / "file") == b"out"


def test_swapped_directories_are_not_followed(house: Path) -> None:
    allowed = AllowedDirectories((f"{house}/in",), None)
    (house / "in" / "link").symlink_to(house / "out")
    is_over = threading.Event()

    def swap() -> None:
        directory, link, aside = (house / "in" / name for name in ("deep", "link", "aside"))
        while not is_over.is_set():
            directory.rename(aside)
            link.rename(directory)
            directory.rename(link)
            aside.rename(directory)

    read: list[bytes] = []
    refused: list[str] = []

    def has_seen_enough() -> bool:
        for _ in range(50):
            try:
                read.append(content(allowed, house / "in" / "deep" / "file"))
            except InputFileError as error:
                refused.append(str(error))
        return len(read) > 20 and any("allowed directory" in text for text in refused)

    with ThreadPoolExecutor() as threads:
        swapping = threads.submit(swap)
        try:
            wait_until(has_seen_enough)
        finally:
            is_over.set()
        swapping.result()
    assert set(read) == {b"in/deep"}


# Files of the broker


def test_only_channels_of_the_broker_are_read(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "channels" / "c").mkdir(parents=True)
    (root / "channels-of-others").mkdir()
    (tmp_path / "root-of-others").mkdir()
    for path in (
        root / "token",
        root / "channels" / "c" / "file",
        root / "channels-of-others" / "file",
        tmp_path / "root-of-others" / "file",
    ):
        path.write_text(path.name)
    (tmp_path / "link").symlink_to(root / "token")
    (tmp_path / "linked-root").symlink_to(root)

    for given in (str(root), f"{root}/", f"{tmp_path}/linked-root"):
        for allowed in (
            AllowedDirectories((), given),
            AllowedDirectories((str(tmp_path), str(root)), given),
        ):
            for name in (
                "root/token",
                "root/missing",
                "root",
                "link",
                "linked-root/token",
                "root/channels/../token",
                "root/channels-of-others/file",
            ):
                said = refusal(lambda e=allowed, n=name: e.open(f"{tmp_path}/{n}"))  # type: ignore[misc]
                assert said == (
                    f"'{tmp_path}/{name}' is in {given}, the broker's directory: only its channels "
                    "may be uploaded"
                )
            assert content(allowed, root / "channels" / "c" / "file") == b"file"
            assert content(allowed, tmp_path / "linked-root" / "channels" / "c" / "file")
            assert content(allowed, tmp_path / "root-of-others" / "file") == b"file"


def test_hard_links_to_files_of_the_broker_are_refused(tmp_path: Path) -> None:
    root, inputs = tmp_path / "root", tmp_path / "inputs"
    segment = root / "streams" / "0123456789abcdef" / "0.data"
    channel = root / "channels" / "c" / "file"
    for path in (root / "token", segment, channel, inputs / "own"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    for number, path in enumerate((root / "token", segment)):
        (inputs / f"link-{number}").hardlink_to(path)
    (inputs / "channel").hardlink_to(channel)
    (inputs / "other-name").hardlink_to(inputs / "own")

    for directories in ((), (str(inputs),)):
        allowed = AllowedDirectories(directories, str(root))
        for number in range(2):
            said = refusal(lambda e=allowed, n=number: e.open(f"{inputs}/link-{n}"))  # type: ignore[misc]
            assert said == (
                f"'{inputs}/link-{number}' is a hard link to a file in {root}, the broker's "
                "directory"
            )
        assert content(allowed, inputs / "own") == b"own"
        assert content(allowed, inputs / "channel") == b"file"
    # Files of a root that is on another machine cannot be linked to.
    assert content(AllowedDirectories((), str(tmp_path / "missing")), inputs / "own") == b"own"


def test_link_in_place_of_the_channels_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root" / "data").mkdir(parents=True)
    (tmp_path / "root" / "data" / "file").touch()
    (tmp_path / "root" / "channels").symlink_to("data")

    said = refusal(
        lambda: AllowedDirectories((), f"{tmp_path}/root").open(f"{tmp_path}/root/channels/file")
    )
    assert "the broker's directory" in said


# Changes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    return path


@pytest.fixture
def file(path: Path) -> Iterator[InputFile]:
    with EVERYWHERE.open(str(path)) as file:
        yield file


CHANGED = "changed during the upload"


def test_reading_is_not_a_change(path: Path, file: InputFile) -> None:
    path.read_bytes()
    os.utime(path.parent)
    (path.parent / "other").touch()

    file.check()
    with EVERYWHERE.open(str(path)) as again:
        assert again.fingerprint == file.fingerprint


def test_change_of_the_same_size_is_found(path: Path, file: InputFile) -> None:
    with path.open("r+b") as other:
        other.write(b"x")

    assert refusal(file.check) == f"'{path}' {CHANGED}"
    with EVERYWHERE.open(str(path)) as again:
        assert again.fingerprint != file.fingerprint


def test_change_is_found_if_the_modification_time_is_set_back(path: Path, file: InputFile) -> None:
    before = path.stat()
    path.write_bytes(b"9876543210")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns

    assert refusal(file.check) == f"'{path}' {CHANGED}"


def test_growing_file_is_found_and_read_up_to_its_old_size(path: Path, file: InputFile) -> None:
    with path.open("ab") as other:
        other.write(b"more")

    assert file.read_at(0, file.size) == b"0123456789"
    assert refusal(file.check) == f"'{path}' {CHANGED}"


def test_shrinking_file_is_found_when_it_is_read(path: Path, file: InputFile) -> None:
    os.truncate(path, 5)

    assert file.read_at(0, 5) == b"01234"
    for start, length in ((0, 10), (5, 1), (9, 1)):
        said = refusal(lambda start=start, length=length: file.read_at(start, length))  # type: ignore[misc]
        assert said == f"'{path}' {CHANGED}: it became shorter"
    assert refusal(file.check) == f"'{path}' {CHANGED}"


def test_replaced_file_is_found(path: Path, file: InputFile) -> None:
    other = path.with_name("other")
    other.write_bytes(b"9876543210")
    other.replace(path)

    assert file.read_at(0, 10) == b"0123456789"
    assert refusal(file.check) == f"'{path}' was replaced by another file during the upload"


def test_file_replaced_by_a_link_is_found(path: Path, file: InputFile) -> None:
    other = path.with_name("other")
    other.write_bytes(b"9876543210")
    path.unlink()
    path.symlink_to(other)

    assert "was replaced" in refusal(file.check)


@pytest.mark.parametrize("is_moved", [True, False])
def test_removed_file_is_found(path: Path, file: InputFile, is_moved: bool) -> None:
    if is_moved:
        path.rename(path.with_name("other"))
    else:
        path.unlink()

    assert file.read_at(0, 10) == b"0123456789"
    assert refusal(file.check) == f"'{path}' was deleted or moved during the upload"


def test_path_that_becomes_a_loop_is_found(path: Path, file: InputFile) -> None:
    path.unlink()
    path.symlink_to(path)

    assert "loop" in refusal(file.check)


def test_failing_disk_is_reported(file: InputFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    assert refusal(lambda: file.read_at(0, 1)).endswith("cannot be accessed: Input/output error")


# Resolution of file times


def test_change_right_after_another_is_found(path: Path) -> None:
    for turn in range(20):
        path.write_bytes(b"%010d" % turn)
        with EVERYWHERE.open(str(path)) as file:
            path.write_bytes(b"%010d" % (turn + 1))
            assert refusal(file.check).endswith(CHANGED)


class Waiting:
    """A clock that advances with each sleep, and an action for each sleep."""

    def __init__(self, now: int, act: Callable[[], object] = lambda: None) -> None:
        self.now = now
        self.slept = 0.0
        self._act = act

    def __call__(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self._act()
        self.slept += seconds
        self.now += round(seconds * 1e9)

    def open(self, path: Path) -> None:
        with AllowedDirectories((), None, self, self.sleep).open(str(path)) as file:
            file.check()


@pytest.mark.parametrize(
    ("age_ms", "slept_ms"), [(0, 20), (3, 20), (5, 15), (19, 5), (20, 0), (1000, 0), (-1000, 0)]
)
def test_open_waits_until_times_would_show_a_change(path: Path, age_ms: int, slept_ms: int) -> None:
    os.utime(path, (0, 0))
    waiting = Waiting(path.stat().st_ctime_ns + age_ms * 1_000_000)
    waiting.open(path)

    assert round(waiting.slept * 1000) == slept_ms


def test_open_waits_for_the_modification_time(path: Path) -> None:
    later = path.stat().st_ctime_ns + 10**12
    os.utime(path, ns=(later, later))
    waiting = Waiting(later)
    waiting.open(path)
    assert round(waiting.slept * 1e9) == MIN_AGE_NANOSECONDS

    # Waiting does not help against times in the future.
    waiting = Waiting(later - 1)
    waiting.open(path)
    assert waiting.slept == 0


def test_wait_for_a_file_that_keeps_changing_is_limited(path: Path) -> None:
    def write() -> None:
        path.write_bytes(b"more")
        waiting.now = path.stat().st_ctime_ns

    waiting = Waiting(path.stat().st_ctime_ns, write)
    waiting.open(path)

    assert 0.02 < waiting.slept < 0.05


# Threads


def test_threads_read_concurrently(tmp_path: Path) -> None:
    data = os.urandom(1_000_000)
    (tmp_path / "file").write_bytes(data)

    with EVERYWHERE.open(str(tmp_path / "file")) as file, ThreadPoolExecutor(4) as threads:
        starts = range(0, len(data), 1000)
        assert b"".join(threads.map(lambda start: file.read_at(start, 1000), starts)) == data


def test_short_reads_are_joined(file: InputFile, monkeypatch: pytest.MonkeyPatch) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, start: pread(fd, min(length, 3), start))

    assert file.read_at(1, 9) == b"123456789"


def test_closed_file_cannot_be_read(path: Path) -> None:
    with EVERYWHERE.open(str(path)) as file:
        pass
    for act in (lambda: file.read_at(0, 10), file.check):
        with pytest.raises(ValueError, match="closed file"):
            act()


# Deletion


def uploaded(path: Path, content: bytes = b"x") -> UploadedFile:
    path.write_bytes(content)
    with EVERYWHERE.open(str(path)) as file:
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
