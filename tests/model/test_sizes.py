"""Sizes: accepted and rejected texts."""

from __future__ import annotations

import pytest

from penstock.model.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("10B", 10),
        ("64KiB", 65_536),
        ("256MiB", 268_435_456),
        ("256 mib", 268_435_456),
        ("1GB", 1_000_000_000),
        ("1.5kb", 1500),
        ("0.5KiB", 512),
        (" 2TiB ", 2 << 40),
    ],
)
def test_size_is_a_number_and_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "12q", "1M", "-1", "1,5KB", "1 2", "1KB2KB", "٣", "."])
def test_invalid_size_is_rejected_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size: expected .* 256MiB"):
        parse_size(text)


def test_size_must_be_a_whole_number_of_bytes() -> None:
    with pytest.raises(ValueError, match=r"'1\.3KiB' is not a whole number of bytes"):
        parse_size("1.3KiB")
