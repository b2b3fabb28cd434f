"""Encoding and decoding of stored definitions."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.store.definitions import (
    DamagedDefinitionError,
    decode_definition,
    encode_definition,
)
from tests.store.conftest import Define


def test_definition_round_trip(define: Define) -> None:
    assert decode_definition(encode_definition(define("s"))) == define("s")


@pytest.mark.parametrize(
    "stored",
    [b"", b"{", b"{}", b'{"name": "\xff"}', b'{"name": 1}', b"[" * 100_000, None, 7],
    ids=["empty", "truncated", "no name", "not UTF-8", "wrong type", "too deep", "NULL", "integer"],
)
def test_invalid_definition_raises_damaged_definition_error(stored: Any) -> None:
    with pytest.raises(DamagedDefinitionError):
        decode_definition(stored)
