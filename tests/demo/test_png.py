"""PNG files, taken apart again by the rules of the format."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from penstock.demo.png import encode_png


def chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    position = 8
    while position < len(png):
        (length,) = struct.unpack_from(">I", png, position)
        body = png[position + 4 : position + 8 + length]
        (checksum,) = struct.unpack_from(">I", png, position + 8 + length)
        assert checksum == zlib.crc32(body)
        yield body[:4], body[4:]
        position += 12 + length


def decode_png(png: bytes) -> list[bytes]:
    """The rows of a picture of three unfiltered bytes a pixel."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    (first, header), (second, data), (third, end) = chunks(png)
    assert (first, second, third, end) == (b"IHDR", b"IDAT", b"IEND", b"")
    width, height, *kind = struct.unpack(">IIBBBBB", header)
    assert kind == [8, 2, 0, 0, 0]
    pixels = zlib.decompress(data)
    step = 1 + 3 * width
    assert len(pixels) == step * height
    assert {pixels[place] for place in range(0, len(pixels), step)} == {0}
    return [pixels[place + 1 : place + step] for place in range(0, len(pixels), step)]


def test_what_is_encoded_is_decoded_pixel_by_pixel() -> None:
    rows = [bytes(range(9)), bytes(range(100, 109))]

    assert decode_png(encode_png(rows)) == rows


def test_the_bytes_are_those_of_a_known_file() -> None:
    red = encode_png([b"\xff\0\0"])

    assert red[:33].hex() == ("89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de")
    assert red[-12:].hex() == "0000000049454e44ae426082"
