"""Frames: a header of 5 bytes and a payload."""

from __future__ import annotations

import pytest

from penstock.wire.frames import HEADER, LENGTH, MAX_FRAME_BYTES, encode_frame


@pytest.mark.parametrize(
    ("operation", "payload", "frame"),
    [
        (4, b"\xa0", "00000002 04 a0"),
        (17, b"", "00000001 11"),
        (69, b"\x01\x02\x03", "00000004 45 010203"),
        (-1, b"\xa0", "00000002 ff a0"),
    ],
)
def test_length_includes_operation_and_payload(operation: int, payload: bytes, frame: str) -> None:
    assert encode_frame(operation, payload) == bytes.fromhex(frame)


def test_lengths_and_operations_are_signed_and_big_endian() -> None:
    assert LENGTH.unpack(bytes.fromhex("fffffffe")) == (-2,)
    assert HEADER.unpack(bytes.fromhex("00000100 80")) == (256, -128)


def test_max_frame_size_is_that_of_the_aws_clients() -> None:
    assert MAX_FRAME_BYTES == 1 << 30
