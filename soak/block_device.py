"""A block device that loses unflushed writes in a power cut, with an ext4 file system on it.

A FUSE file system with a single file is the device. The kernel's loop driver turns that file into
a block device, and a flush of the block device into an fsync of the file. So this process sees
every write and every flush in order, like dm-log-writes, and needs only the kernel modules FUSE
and loop. A power cut keeps all flushed writes, and a random subset of the sectors of later writes.

    python -m soak.block_device FILE SIZE [IMAGE]     serves until the file is unmounted
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from soak.small_disk import mount, unmount

_SECTOR_BYTES = 512
_MAX_WRITE = 1 << 20
_COMMAND_SECONDS = 60.0
_CUT_SECONDS = 0.5

# From linux/fuse.h.
_IN_HEADER = struct.Struct("<IIQQIIIHH")
_OUT_HEADER = struct.Struct("<IiQ")
_IO = struct.Struct("<QQI")
_WRITE_HEADER_BYTES = 40
_FORGET, _GETATTR, _SETATTR, _OPEN, _READ, _WRITE, _STATFS, _RELEASE = 2, 3, 4, 14, 15, 16, 17, 18
_FSYNC, _FLUSH, _INIT, _INTERRUPT, _DESTROY, _BATCH_FORGET = 20, 25, 26, 36, 38, 42
_BIG_WRITES, _MAX_PAGES = 1 << 5, 1 << 22


class RecordedImage:
    """The contents of the device, and the writes since its last flush."""

    def __init__(self, contents: bytearray) -> None:
        self._live = contents
        self._flushed = bytearray(contents)
        self._pending: list[tuple[int, bytes]] = []
        self._changed = threading.Condition()
        # The number of unflushed writes at which to cut, and the contents and writes at the cut.
        self._cut_at: int | None = None
        self._at_cut: tuple[bytearray, list[tuple[int, bytes]]] | None = None

    def __len__(self) -> int:
        return len(self._live)

    def read(self, position: int, size: int) -> bytes:
        return bytes(self._live[position : position + size])

    def write(self, position: int, data: bytes) -> None:
        with self._changed:
            self._live[position : position + len(data)] = data
            self._pending.append((position, data))
            if self._cut_at is not None and len(self._pending) >= self._cut_at:
                self._cut_now()

    def flush(self) -> None:
        with self._changed:
            for position, data in self._pending:
                self._flushed[position : position + len(data)] = data
            self._pending.clear()

    def _cut_now(self) -> None:
        """Records the state in the writing thread, because the next request may be a flush."""
        self._cut_at = None
        self._at_cut = bytearray(self._flushed), list(self._pending)
        self._changed.notify_all()

    def cut(self, random: Random, wait_seconds: float = _CUT_SECONDS) -> tuple[bytearray, int, int]:
        """Cuts the power; returns contents, number of unflushed writes, number of lost sectors.

        Waits briefly for unflushed writes, because a cut without them loses nothing.
        """
        with self._changed:
            self._cut_at = random.choice((1, 1, 2, 3, 5, 20))
            self._changed.wait_for(lambda: self._at_cut is not None, wait_seconds)
            if self._at_cut is None:
                self._cut_now()
            assert self._at_cut is not None
            (survivor, pending), self._at_cut = self._at_cut, None
        # A disk may have written all sectors, none or some.
        share = random.choice((0.0, 0.3, 0.7, 0.95, 1.0))
        lost = 0
        for position, data in pending:
            for start in range(0, len(data), _SECTOR_BYTES):
                sector = data[start : start + _SECTOR_BYTES]
                if random.random() < share:
                    survivor[position + start : position + start + len(sector)] = sector
                else:
                    lost += 1
        return survivor, len(pending), lost


class FuseFile:
    """Serves an image as the only file of a FUSE file system, mounted on an empty file."""

    def __init__(self, image: RecordedImage, path: Path) -> None:
        self._image = image
        self._answers: dict[int, Callable[[bytes], bytes]] = {
            _INIT: self._initialize,
            _GETATTR: self._attributes,
            _SETATTR: self._attributes,
            _OPEN: lambda _: struct.pack("<QII", 1, 0, 0),
            _READ: self._read,
            _WRITE: self._write,
            _FSYNC: self._sync,
            _STATFS: self._describe,
            _RELEASE: lambda _: b"",
            _FLUSH: lambda _: b"",
            _DESTROY: lambda _: b"",
        }
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        user, group = os.getuid(), os.getgid()
        options = f"fd={self._device},rootmode=100600,user_id={user},group_id={group}"
        mount("soak", path, "fuse", options)

    def serve(self) -> None:
        """Serves requests until the file is unmounted."""
        while True:
            try:
                request = os.read(self._device, _MAX_WRITE + 8192)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                if error.errno == errno.ENODEV:
                    return
                raise
            size, operation, unique, *_ = _IN_HEADER.unpack_from(request)
            if operation in (_FORGET, _BATCH_FORGET, _INTERRUPT):
                continue
            code, answer = self._answer(operation, request[_IN_HEADER.size : size])
            # The kernel may have canceled the request.
            with contextlib.suppress(OSError):
                header = _OUT_HEADER.pack(_OUT_HEADER.size + len(answer), code, unique)
                os.write(self._device, header + answer)
            if operation == _DESTROY:
                return

    def _answer(self, operation: int, body: bytes) -> tuple[int, bytes]:
        answer = self._answers.get(operation)
        return (-errno.ENOSYS, b"") if answer is None else (0, answer(body))

    def _initialize(self, body: bytes) -> bytes:
        _, _, read_ahead, _ = struct.unpack_from("<IIII", body)
        flags = _BIG_WRITES | _MAX_PAGES
        pages = _MAX_WRITE // 4096
        return struct.pack(
            "<IIIIHHIIHHI28x", 7, 31, read_ahead, flags, 16, 12, _MAX_WRITE, 1, pages, 0, 0
        )

    def _read(self, body: bytes) -> bytes:
        _, position, size = _IO.unpack_from(body)
        return self._image.read(position, size)

    def _write(self, body: bytes) -> bytes:
        _, position, size = _IO.unpack_from(body)
        self._image.write(position, body[_WRITE_HEADER_BYTES : _WRITE_HEADER_BYTES + size])
        return struct.pack("<II", size, 0)

    def _sync(self, _: bytes) -> bytes:
        self._image.flush()
        return b""

    def _describe(self, _: bytes) -> bytes:
        blocks = len(self._image) // 4096
        return struct.pack("<QQQQQIIII24x", blocks, 0, 0, 0, 0, 4096, 255, 4096, 0)

    def _attributes(self, _: bytes) -> bytes:
        size = len(self._image)
        valid_seconds = 3600
        return struct.pack("<QII", valid_seconds, 0, 0) + struct.pack(
            "<6Q10I", 1, size, size // 512, 0, 0, 0, 0, 0, 0, 0o100600, 1, 0, 0, 0, 4096, 0
        )


def _serve_commands(image: RecordedImage) -> None:
    """Executes commands from standard input: `cut SEED FILE` writes the contents after a cut."""
    for line in sys.stdin:
        _, seed, path = line.rstrip("\n").split(" ", 2)
        survivor, writes, lost = image.cut(Random(seed))
        Path(path).write_bytes(survivor)
        print(f"{writes} {lost}", flush=True)


def main() -> None:
    path, size = Path(sys.argv[1]), int(sys.argv[2])
    contents = bytearray(Path(sys.argv[3]).read_bytes()) if len(sys.argv) > 3 else bytearray(size)
    image = RecordedImage(contents)
    device = FuseFile(image, path)
    threading.Thread(target=_serve_commands, args=(image,), daemon=True).start()
    print("ready", flush=True)
    device.serve()


class Ext4Disk:
    """An ext4 file system on a recorded block device, whose power can be cut."""

    def __init__(self, scratch: Path, size: int) -> None:
        self.directory = scratch / "ext4"
        self._scratch = scratch
        self._size = size
        self._device = scratch / "device"
        self._image = scratch / "image"
        self._loop = ""
        self._server: subprocess.Popen[str] | None = None
        self._is_mounted = False
        self.unflushed_writes = 0
        self.lost_sectors = 0

    def create(self) -> None:
        self._scratch.mkdir(parents=True, exist_ok=True)
        with self._image.open("wb") as image:
            image.truncate(self._size)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))
        self.mount()

    def mount(self) -> None:
        """Starts the device and mounts it. After a cut, ext4 replays its journal."""
        self.directory.mkdir(exist_ok=True)
        self._device.touch()
        self._server = subprocess.Popen(
            [
                *(sys.executable, "-m", "soak.block_device"),
                *(str(self._device), str(self._size), str(self._image)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._read_line()
        self._loop = _run("losetup", "--find", "--show", str(self._device)).strip()
        mount(self._loop, self.directory, "ext4", "")
        self._is_mounted = True

    def cut(self, seed: int) -> None:
        """Saves the state for the next `mount`. Writes continue until `unmount`, and are lost."""
        assert self._server is not None
        assert self._server.stdin is not None
        self._server.stdin.write(f"cut {seed} {self._image}\n")
        self._server.stdin.flush()
        writes, lost = self._read_line().split()
        self.unflushed_writes += int(writes)
        self.lost_sectors += int(lost)

    def _read_line(self) -> str:
        assert self._server is not None
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        if not line:
            raise OSError("the block device ended")
        return line

    def unmount(self) -> None:
        """Unmounts and stops the device. Writes since the cut are lost."""
        if self._is_mounted:
            self._is_mounted = False
            unmount(self.directory)
        if self._loop:
            loop, self._loop = self._loop, ""
            _detach(loop)
        server, self._server = self._server, None
        if server is not None:
            with contextlib.suppress(OSError):
                unmount(self._device)
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
            for stream in (server.stdin, server.stdout):
                assert stream is not None
                stream.close()


def _detach(loop: str) -> None:
    deadline = time.monotonic() + _COMMAND_SECONDS
    while subprocess.run(
        ["losetup", "--detach", loop], check=False, capture_output=True
    ).returncode:
        if time.monotonic() > deadline:
            raise OSError(f"{loop} cannot be detached")
        time.sleep(0.05)


def _run(*command: str) -> str:
    try:
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_COMMAND_SECONDS
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", "") or error
        raise OSError(f"{command[0]}: {detail}") from None


def find_obstacle(scratch: Path) -> str:
    """Returns why power cuts on ext4 are not possible here, or an empty text if they are."""
    disk = Ext4Disk(scratch, 8 * 1024 * 1024)
    try:
        disk.create()
    except OSError as error:
        return str(error)
    else:
        return ""
    finally:
        with contextlib.suppress(OSError):
            disk.unmount()


if __name__ == "__main__":
    main()
