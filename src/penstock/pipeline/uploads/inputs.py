"""The files of S3 tasks: where they are, which of them may be read, and that they stay the same.

Who may append to a stream with an S3 export chooses files that this process reads and sends away.
So it is decided here what may be read, and none of it rests on the good will of those who write to
the directories: links, `..`, pipes and what is replaced in the middle of it are all looked at.

An object is what the file was when it was opened, or it does not come to be: `InputFile.check`
finds out whether the file has changed since.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self
from urllib.parse import unquote_to_bytes

from penstock.model.channel import CHANNELS_DIRECTORY
from penstock.pipeline.settlements import UploadedFile
from penstock.pipeline.uploads.opening import NotAFileError, delete_file, open_file

logger = logging.getLogger(__name__)

# The times of a file are those of the kernel's clock, which ticks every 4 to 10 milliseconds: a
# file that has just changed may change again and keep its times. One that was left alone for so
# long cannot.
SETTLED_NANOSECONDS = 20_000_000
_WAIT_SECONDS = 0.005
_MAX_WAITS = 6

# Characters of a path or a URL in a message.
_MAX_SHOWN = 300

_REASONS = {
    errno.ENOENT: "does not exist",
    errno.ENOTDIR: "does not exist: a part of its path is not a directory",
    errno.EACCES: "may not be read by the user that the pipeline runs as",
    errno.EPERM: "may not be read by the user that the pipeline runs as",
    errno.ELOOP: "leads in a circle, or through too many symbolic links",
}
# These say something about this process or about the way to the file, and nothing about it.
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT)


class InputError(Exception):
    """A file that cannot be uploaded; its text tells a person why."""


def find_path(input_url: str) -> str:
    """The path that the inputUrl of a task stands for: a URL of a local file, or a path itself."""
    path = input_url
    if is_url := path[:5].lower() == "file:":
        path = path[5:]
        if path.startswith("//"):
            host, slash, rest = path[2:].partition("/")
            if host.lower() not in ("", "localhost"):
                raise _refusal(input_url, f"the file would be on another machine, {_show(host)}")
            path = slash + rest
    try:
        if is_url:
            path = os.fsdecode(unquote_to_bytes(path))
        os.fsencode(path)
    except UnicodeError:
        raise _refusal(input_url, "it has characters that no path has") from None
    if not path.startswith("/"):
        raise _refusal(input_url, "this is no absolute path of a file")
    if "\0" in path:
        raise _refusal(input_url, "no path has a zero byte")
    return path


def _refusal(input_url: str, reason: str) -> InputError:
    return InputError(
        f"inputUrl is {_show(input_url)}: {reason}; expected file:/path, file:///path, "
        "file://localhost/path, or a path that starts with /"
    )


def _show(text: str) -> str:
    """In quotes, and without what is no text: names of files may have any bytes."""
    shown = repr(text)
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"


class Enclosure:
    """Which files may be read.

    They are in the directories, or anywhere if there are none. What is in the broker's own
    directory is never read, but for its channels: the token and the catalog are there. Neither are
    hard links to these files.
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

    def open(self, path: str) -> InputFile:
        """InputError if there is no such file, or if it may not be read.

        OSError if this process has no memory or no descriptors left: the file may be all right.
        """
        with _explaining(path):
            descriptor = open_file(path, self._check_place, self._check_links)
            try:
                return InputFile(path, descriptor, self._wait_until_settled(descriptor))
            except BaseException:
                os.close(descriptor)
                raise

    def delete(self, path: str, fingerprint: str) -> None:
        """InputError if it cannot be deleted, or is not the one with this fingerprint."""

        def check(status: os.stat_result) -> None:
            if _fingerprint(status) != fingerprint:
                raise InputError("has changed since it was uploaded")

        with _explaining(path):
            delete_file(path, self._check_place, check)

    def _check_place(self, place: str) -> None:
        # Directories are looked up each time: one may be mounted later, or be a link that is moved.
        if self._directories and not any(
            _is_in(place, os.path.realpath(directory)) for directory in self._directories
        ):
            raise InputError(
                "is not in a directory that files may be uploaded from, after all links are "
                f"followed; these are {', '.join(self._directories)} "
                "(STREAM_MANAGER_READ_ONLY_DIRS)"
            )
        if self._root is None:
            return
        root = os.path.realpath(self._root)
        if _is_in(place, root) and not _is_in(place, str(Path(root, CHANNELS_DIRECTORY))):
            raise InputError(
                f"is in the directory of the broker, {self._root}, from which only channels are "
                "uploaded"
            )

    def _check_links(self, status: os.stat_result) -> None:
        """A hard link gives a file of the broker another name, in a directory that is allowed."""
        if self._root is None or not Path(self._root).exists():
            return
        root = os.path.realpath(self._root)
        if status.st_dev == Path(root).stat().st_dev and status.st_ino in _inodes_of(root):
            raise InputError(
                f"is a hard link to a file of the broker, in {self._root}, from which only "
                "channels are uploaded"
            )

    def _wait_until_settled(self, descriptor: int) -> os.stat_result:
        """Its status, once its times would show another change.

        A file that is not left alone is not waited for: it will be found changed in any case.
        """
        for _ in range(_MAX_WAITS):
            status = os.fstat(descriptor)
            now = self._clock()
            # Times in the future were set on purpose, or the clock was: waiting does not help.
            if not any(
                0 <= now - changed < SETTLED_NANOSECONDS
                for changed in (status.st_mtime_ns, status.st_ctime_ns)
            ):
                return status
            self._sleep(_WAIT_SECONDS)
        return os.fstat(descriptor)


@contextmanager
def _explaining(path: str) -> Iterator[None]:
    """Turns refusals and errors of the file system into an InputError that names the path."""
    try:
        yield
    except InputError as error:
        reason = str(error)
    except NotAFileError as error:
        reason = f"is {error}, not a file"
    except OSError as error:
        if error.errno in _PASSING:
            raise
        reason = _REASONS.get(error.errno or 0, f"cannot be opened: {error.strerror}")
    else:
        return
    raise InputError(f"{_show(path)} {reason}")


def _inodes_of(root: str) -> Iterator[int]:
    """The inodes of the broker's files, except those of channels."""
    directories = [root]
    while directories:
        # The broker removes directories of deleted streams meanwhile.
        with suppress(FileNotFoundError), os.scandir(directories.pop()) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    yield entry.inode()
                elif entry.path != os.path.join(root, CHANNELS_DIRECTORY):  # noqa: PTH118
                    directories.append(entry.path)


def _is_in(place: str, directory: str) -> bool:
    return place == directory or place.startswith(directory.rstrip("/") + "/")


def delete_files(files: Iterable[UploadedFile], directories: Sequence[str]) -> None:
    """Deletes uploaded files that have not changed since; a warning is logged for the others."""
    enclosure = Enclosure(directories, root=None)
    for uploaded in files:
        try:
            enclosure.delete(uploaded.path, uploaded.fingerprint)
        except (InputError, OSError) as error:
            logger.warning("a file that was uploaded is not deleted: %s", error)


class InputFile:
    """A file that is open for reading. Threads may read at once; none may after it is closed."""

    def __init__(self, path: str, descriptor: int, status: os.stat_result) -> None:
        self.path = path
        self.size = status.st_size
        self.fingerprint = _fingerprint(status)
        self._file = os.fdopen(descriptor, "rb", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, start: int, length: int) -> bytes:
        """All of these bytes; InputError if the file ends before."""
        pieces = []
        while length:
            try:
                # The kernel gives no more than 2 GiB at once, and parts may have 5.
                piece = os.pread(self._file.fileno(), length, start)
            except OSError as error:
                if error.errno in _PASSING:
                    raise
                raise InputError(f"{_show(self.path)} cannot be read: {error.strerror}") from None
            if not piece:
                raise InputError(
                    f"{_show(self.path)} changed while it was uploaded: it has become shorter"
                )
            pieces.append(piece)
            start += len(piece)
            length -= len(piece)
        return b"".join(pieces)

    def check(self) -> None:
        """InputError if what is at the path is no longer what was opened."""
        try:
            opened = os.fstat(self._file.fileno())
            found = Path(self.path).stat()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                problem = "is gone: it was deleted or moved while it was uploaded"
            else:
                problem = f"can no longer be reached: {error.strerror}"
        else:
            # The path first: a file that is removed changes as well, as it has a name less.
            if not os.path.samestat(found, opened):
                problem = "was replaced by another file while it was uploaded"
            elif _fingerprint(opened) != self.fingerprint:
                problem = "changed while it was uploaded"
            else:
                return
        raise InputError(f"{_show(self.path)} {problem}")


def _fingerprint(status: os.stat_result) -> str:
    # Programs set the time of a file's content back, as rsync and tar do; the time of its last
    # change of any kind they cannot set. That one also moves with a chmod or another hard link,
    # which then pass for changes. It is the smaller harm: the user is told, and can ask again. Of a
    # change that stays unseen nobody is told, and the object is half the old file, half the new.
    # The number of the device is left out: it may be another one after a restart.
    values = status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    return "-".join(map(str, values))
