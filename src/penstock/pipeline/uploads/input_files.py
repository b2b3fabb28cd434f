"""The input files of S3 tasks: access checks, and detection of changes.

A client that may append to a stream with an S3 export chooses files that this process reads and
sends. Processes that can write to the directories may replace files and links at any time.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import reprlib
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote_to_bytes

from penstock.model.channel_file import CHANNELS_DIRECTORY
from penstock.pipeline.delivery import UploadedFile

logger = logging.getLogger(__name__)

# The clock of file times advances every 4 to 10 milliseconds: a file that has just changed may
# change again while its times stay the same.
MIN_AGE_NANOSECONDS = 20_000_000
_WAIT_SECONDS = 0.005
_MAX_WAITS = 6

# O_PATH needs no permission to list the directory. Only Linux has it.
_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking, because opening a named pipe waits for a writer otherwise.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_FILE_URL = re.compile("file:(?://([^/]*))?(.*)", re.IGNORECASE | re.DOTALL)

_REASONS = {
    errno.ENOENT: "does not exist",
    errno.ENOTDIR: "does not exist: a part of its path is not a directory",
    errno.EACCES: "may not be accessed by the user of the pipeline",
    errno.EPERM: "may not be accessed by the user of the pipeline",
    errno.ELOOP: "has too many symbolic links in its path, or a loop of them",
}
# Paths and URLs in messages are quoted, because they may have any bytes, and shortened.
_quoting = reprlib.Repr()
_quoting.maxstring = 300
# Errors of this process or of a network file system: a retry may succeed.
_TRANSIENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT)


class InputFileError(Exception):
    """A file that cannot be uploaded. Users see the text."""


def find_path(input_url: str) -> str:
    """The path of an inputUrl, which is the URL of a local file or an absolute path."""
    host, path = "", input_url
    try:
        if url := _FILE_URL.fullmatch(input_url):
            host = url[1] or ""
            path = os.fsdecode(unquote_to_bytes(url[2]))
        is_valid = b"\0" not in os.fsencode(path)
    except UnicodeError:
        is_valid = False
    if host.lower() not in ("", "localhost"):
        reason = f"the file is on another machine, {_quoting.repr(host)}"
    elif not is_valid:
        reason = "it has characters that a path cannot have"
    elif not path.startswith("/"):
        reason = "this is not an absolute path"
    else:
        return path
    raise InputFileError(
        f"inputUrl is {_quoting.repr(input_url)}: {reason}; expected file:/path, file:///path, "
        "file://localhost/path, or a path that starts with /"
    )


@contextmanager
def _explaining(path: str) -> Iterator[None]:
    """Turns refusals and errors of the file system into an InputFileError that names the path."""
    try:
        yield
    except InputFileError as error:
        reason = str(error)
    except RecursionError:  # of `realpath`
        reason = _REASONS[errno.ELOOP]
    except OSError as error:
        if error.errno in _TRANSIENT:
            raise
        reason = _REASONS.get(error.errno or 0, f"cannot be accessed: {error.strerror}")
    else:
        return
    raise InputFileError(f"{_quoting.repr(path)} {reason}") from None


class AllowedDirectories:
    """Opens and deletes files in the given directories, or in all directories if none are given.

    Files in the broker's directory, which include the token and the catalog, are never opened,
    except for channel files. Hard links to them are not opened either.
    """

    def __init__(
        self,
        directories: Sequence[str],
        root: str | None,
        clock: Callable[[], int] = time.time_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._directories = tuple(directories)
        self._root = root
        self._clock = clock
        self._sleep = sleep

    def open(self, input_url: str) -> InputFile:
        """Opens a file. Raises InputFileError, or OSError if a retry may help."""
        path = find_path(input_url)
        with _explaining(path), self._opening(path) as (file, name, directory):
            opened = os.fstat(file)
            # The link count comes from the name: if the name was removed after opening, the count
            # of the open file no longer includes it.
            try:
                named = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                named = None
            if named is None or not os.path.samestat(named, opened) or named.st_nlink > 1:
                self._check_hard_links(opened)
            status = self._wait_for_stable_times(file)
            return InputFile(path, os.dup(file), status)

    def delete(self, path: str, fingerprint: str) -> None:
        """Deletes a file. Raises InputFileError, also if it has another fingerprint."""
        with _explaining(path), self._opening(path) as (file, name, directory):
            if _fingerprint(os.fstat(file)) != fingerprint:
                raise InputFileError("has changed since it was uploaded")
            os.unlink(name, dir_fd=directory)

    @contextmanager
    def _opening(self, path: str) -> Iterator[tuple[int, str, int]]:
        """Opens a file; yields its descriptor, its name and the descriptor of its directory.

        Each name of the resolved path is opened without following links. So other processes cannot
        redirect the path after the check. If the kernel resolved the path, `/proc/<process>/root`
        would lead to the files of other containers.
        """
        place = Path(os.path.realpath(path))
        # First, so that no error reveals whether a file outside the allowed directories exists.
        self._check_place(place)
        # Raises errors of the path that `realpath` ignores. A device may act when it is opened.
        _check_kind(os.stat(path))  # noqa: PTH116 - `Path` drops a slash at the end
        descriptors = [os.open("/", _DIRECTORY)]
        try:
            for parent in place.parts[1:-1]:
                descriptors.append(os.open(parent, _DIRECTORY, dir_fd=descriptors[-1]))
                os.close(descriptors.pop(0))
            descriptors.append(os.open(place.name, _FILE, dir_fd=descriptors[-1]))
            directory, file = descriptors
            _check_kind(os.fstat(file))
            yield file, place.name, directory
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _check_place(self, place: Path) -> None:
        # Resolved each time: a directory may be mounted later, or be a link that changes.
        allowed = [os.path.realpath(directory) for directory in self._directories]
        if allowed and not any(place.is_relative_to(directory) for directory in allowed):
            raise InputFileError(
                "is not in an allowed directory after all links are followed; allowed by "
                f"STREAM_MANAGER_READ_ONLY_DIRS: {', '.join(self._directories)}"
            )
        if self._root is None:
            return
        root = Path(os.path.realpath(self._root))
        if place.is_relative_to(root) and not place.is_relative_to(root / CHANNELS_DIRECTORY):
            raise InputFileError(
                f"is in {self._root}, the broker's directory: only its channels may be uploaded"
            )

    def _check_hard_links(self, status: os.stat_result) -> None:
        """Rejects hard links: they give a broker's file another name in an allowed directory."""
        if self._root is None or not Path(self._root).exists():
            return
        root = os.path.realpath(self._root)
        if status.st_dev == Path(root).stat().st_dev and status.st_ino in _inodes_in(root):
            raise InputFileError(
                f"is a hard link to a file in {self._root}, the broker's directory"
            )

    def _wait_for_stable_times(self, descriptor: int) -> os.stat_result:
        """Returns the status when its times are old enough to show a change, or after a timeout."""
        for _ in range(_MAX_WAITS):
            status = os.fstat(descriptor)
            ages = [self._clock() - each for each in (status.st_mtime_ns, status.st_ctime_ns)]
            # Times in the future were set by a program: waiting does not help.
            if not any(0 <= age < MIN_AGE_NANOSECONDS for age in ages):
                return status
            self._sleep(_WAIT_SECONDS)
        return os.fstat(descriptor)


def _check_kind(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise InputFileError("is a directory, not a file")
    if not stat.S_ISREG(status.st_mode):
        raise InputFileError("is not a regular file")


def _inodes_in(root: str) -> Iterator[int]:
    """The inodes of the broker's files, except channel files."""
    channels = str(Path(root, CHANNELS_DIRECTORY))
    directories = [root]
    while directories:
        # The broker removes directories of deleted streams at the same time.
        with suppress(FileNotFoundError), os.scandir(directories.pop()) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    yield entry.inode()
                elif entry.path != channels:
                    directories.append(entry.path)


def delete_files(files: Iterable[UploadedFile], directories: Sequence[str]) -> None:
    """Deletes uploaded files that have not changed since; logs a warning for other files."""
    allowed = AllowedDirectories(directories, root=None)
    for uploaded in files:
        try:
            allowed.delete(uploaded.path, uploaded.fingerprint)
        except (InputFileError, OSError) as error:
            logger.warning("cannot delete an uploaded file: %s", error)


class InputFile(io.FileIO):
    """A file that is open for reading, by several threads at once."""

    def __init__(self, path: str, descriptor: int, status: os.stat_result) -> None:
        super().__init__(descriptor)
        self.path = path
        self.size = status.st_size
        self.fingerprint = _fingerprint(status)

    def read_at(self, start: int, length: int) -> bytes:
        """Reads exactly these bytes. Raises InputFileError if the file is shorter."""
        content = b""
        with _explaining(self.path):
            while missing := length - len(content):
                piece = os.pread(self.fileno(), missing, start + len(content))
                if not piece:
                    raise InputFileError("changed during the upload: it became shorter")
                content += piece
        return content

    def check(self) -> None:
        """Raises InputFileError if the path leads to another file, or the file has changed."""
        with _explaining(self.path):
            opened = os.fstat(self.fileno())
            try:
                found = Path(self.path).stat()
            except FileNotFoundError:
                raise InputFileError("was deleted or moved during the upload") from None
            # Before the fingerprint, which the removal of a name changes as well.
            if not os.path.samestat(found, opened):
                raise InputFileError("was replaced by another file during the upload")
            if _fingerprint(opened) != self.fingerprint:
                raise InputFileError("changed during the upload")


def _fingerprint(status: os.stat_result) -> str:
    # Programs such as rsync and tar set the modification time, but no program can set the change
    # time. A chmod or another hard link changes it too, which counts as a change of the file: an
    # unnecessary failure is visible, an object made of two versions is not.
    # Without the device number, which a restart may change.
    values = status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    return "-".join(map(str, values))
