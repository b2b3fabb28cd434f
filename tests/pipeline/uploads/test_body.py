"""What a call carries of a file."""

from __future__ import annotations

import base64
import io
import os
import zlib
from pathlib import Path

import pytest

from penstock.pipeline.uploads.body import Body
from penstock.pipeline.uploads.input_files import AllowedDirectories, InputError, InputFile

LARGE = 16 * 1024 * 1024 + 5


def open_file(path: Path, content: bytes) -> InputFile:
    path.write_bytes(content)
    return AllowedDirectories((), None).open(str(path))


def digest_of(content: bytes) -> str:
    return base64.b64encode(zlib.crc32(content).to_bytes(4, "big")).decode()


def test_a_small_one_is_in_memory(tmp_path: Path) -> None:
    with open_file(tmp_path / "a", b"0123456789") as file:
        body = Body(file, 2, 5)
    assert (body.content, body.size, body.digest) == (b"23456", 5, digest_of(b"23456"))
    assert body.problem is None


def test_a_large_one_is_a_window_to_the_file(tmp_path: Path) -> None:
    content = os.urandom(LARGE + 20)
    with open_file(tmp_path / "a", content) as file:
        body = Body(file, 10, LARGE)
        window = body.content
        assert not isinstance(window, bytes)
        assert body.digest == digest_of(content[10 : 10 + LARGE])
        assert window.seek(0, io.SEEK_END) == LARGE
        assert window.read(5) == b""
        assert window.seek(3) == 3
        assert window.read(4) == content[13:17]
        assert window.tell() == 7
        assert window.seek(-2, io.SEEK_CUR) == 5
        assert window.read() == content[15 : 10 + LARGE]


def test_why_a_large_one_cannot_be_read_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with open_file(path, bytes(LARGE)) as file:
        body = Body(file, 0, LARGE)
        os.truncate(path, 100)
        window = body.content
        assert not isinstance(window, bytes)
        with pytest.raises(InputError):
            window.read()
        assert isinstance(body.problem, InputError)


def test_a_large_one_can_be_read_into_a_buffer(tmp_path: Path) -> None:
    content = (bytes(range(256)) * (LARGE // 256 + 1))[:LARGE]
    with open_file(tmp_path / "a", content) as file:
        window = Body(file, 2, LARGE - 2).content
        assert isinstance(window, io.RawIOBase)
        buffer = bytearray(1000)
        assert window.readinto(buffer) == 1000
        assert buffer == content[2:1002]
        window.seek(-3, io.SEEK_END)
        assert window.readinto(buffer) == 3
        assert buffer[:3] == content[-3:]
        assert window.readinto(buffer) == 0


def test_a_large_one_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    class EnoughError(Exception):
        pass

    asked = 0

    def go_on() -> None:
        nonlocal asked
        asked += 1
        if asked > 20:
            raise EnoughError

    with open_file(tmp_path / "a", bytes(LARGE)) as file:
        body = Body(file, 0, LARGE, go_on)
        window = body.content
        assert not isinstance(window, bytes)
        with pytest.raises(EnoughError):
            list(iter(lambda: window.read(65_536), b""))
        assert isinstance(body.problem, EnoughError)


def test_a_large_one_is_read_from_its_start_for_each_call(tmp_path: Path) -> None:
    path = tmp_path / "a"
    content = os.urandom(LARGE)
    with open_file(path, content) as file:
        body = Body(file, 0, LARGE)
        window = body.content
        assert not isinstance(window, bytes)
        os.truncate(path, 100)
        with pytest.raises(InputError):
            window.read()
        path.write_bytes(content)
        body.rewind()
        assert body.problem is None
        assert window.read() == content
