"""Opening a file by its path, with certainty about where it lies.

The path is walked here, one name after the other, each from the directory that was opened before.
No step follows a symbolic link: its text is read, and walked like the rest. So the place that comes
out is the place of what is opened, whatever others rename or replace in the meantime. To let the
kernel find the file and to ask it afterwards for the place would not do: by `/proc/<process>/root`
it finds files of other containers, whose places look like places of ours.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

# As many as Linux follows.
_MAX_LINKS = 40

# A directory that may be passed through needs not be one that may be listed. O_PATH asks for no
# more; systems that do not have it ask for both.
_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# What was a file a moment ago may have become a named pipe, whose opening would wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotAFileError(Exception):
    """Something else is there; its text says what, such as `a directory`."""


def open_file(
    path: str,
    permit: Callable[[str], None],
    permit_linked: Callable[[os.stat_result], None] = lambda _: None,
) -> int:
    """A descriptor for reading; OSError if there is no such file, NotAFileError if it is no file.

    `permit` is called with the place, which is the path without links and dots, and raises if
    nothing may be opened there. It is called first, so that a forbidden file that exists looks like
    one that does not.
    `permit_linked` is called for a file that has, or may have, other names (hard links), which can
    be anywhere on the same file system. It raises if one of them may not be opened.
    """

    with _reach(path, permit) as (name, mode, directory):

        def check_links(opened: os.stat_result) -> None:
            # One call returns the name's file and its link count: the name may be gone by now, and
            # a link count of 1 then belongs to another name.
            try:
                named = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                named = None
            if named is None or not os.path.samestat(named, opened) or named.st_nlink > 1:
                permit_linked(opened)

        return _open(name, mode, directory, check_links)


def delete_file(
    path: str, permit: Callable[[str], None], check: Callable[[os.stat_result], None]
) -> None:
    """Errors are those of `open_file`. `check` raises if another file is there by now."""
    with _reach(path, permit) as (name, mode, directory):
        os.close(_open(name, mode, directory, check))
        os.unlink(name, dir_fd=directory)


@contextmanager
def _reach(path: str, permit: Callable[[str], None]) -> Iterator[tuple[str, int, int]]:
    """The last name of a path, its mode, and the directory that it is in."""
    directories = [os.open("/", _DIRECTORY)]
    try:
        yield _walk(path, directories, permit)
    finally:
        for descriptor in directories:
            os.close(descriptor)


def _walk(path: str, directories: list[int], permit: Callable[[str], None]) -> tuple[str, int, int]:
    """`directories` are "/" and, opened, those of `names`, each in the one before it."""
    names: list[str] = []
    # The next one is the last.
    ahead = path.split("/")[::-1]
    links = 0
    while ahead:
        name = ahead.pop()
        if name == ".." and names:
            names.pop()
            os.close(directories.pop())
        if name in ("", ".", ".."):
            continue
        try:
            mode = os.stat(name, dir_fd=directories[-1], follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                target = os.readlink(name, dir_fd=directories[-1])
                if target.startswith("/"):
                    names.clear()
                    while len(directories) > 1:
                        os.close(directories.pop())
                ahead.extend(target.split("/")[::-1])
            elif stat.S_ISDIR(mode):
                directories.append(os.open(name, _DIRECTORY, dir_fd=directories[-1]))
                names.append(name)
            elif ahead:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            else:
                permit(_join([*names, name]))
                return name, mode, directories[-1]
        except OSError:
            permit(_join([*names, name, *reversed(ahead)]))
            raise
    permit(_join(names))
    raise NotAFileError("a directory")


def _open(name: str, mode: int, directory: int, check: Callable[[os.stat_result], None]) -> int:
    # Before it is opened as well: to open a device may be to start it.
    _check_kind(mode)
    descriptor = os.open(name, _FILE, dir_fd=directory)
    try:
        opened = os.fstat(descriptor)
        _check_kind(opened.st_mode)
        check(opened)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_kind(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise NotAFileError(_KINDS.get(stat.S_IFMT(mode), "no file"))


def _join(names: Sequence[str]) -> str:
    return os.path.normpath("/" + "/".join(names))
