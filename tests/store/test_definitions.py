"""Definitions as they are stored."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.store.definitions import (
    DamagedDefinitionError,
    decode_definition,
    encode_definition,
)
from tests.store.conftest import Define


def test_definition_is_decoded_as_it_was(define: Define) -> None:
    assert decode_definition(encode_definition(define("s"))) == define("s")


@pytest.mark.parametrize(
    "stored",
    [b"", b"{", b"{}", b'{"name": "\xff"}', b'{"name": 1}', b"[" * 100_000, None, 7],
    ids=["empty", "cut", "no name", "no text", "wrong type", "too deep", "NULL", "integer"],
)
def test_one_error_for_whatever_is_no_definition(stored: Any) -> None:
    with pytest.raises(DamagedDefinitionError):
        decode_definition(stored)
