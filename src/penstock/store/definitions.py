"""Encodes and decodes stream definitions, for the catalog and the copy beside the segments."""

from __future__ import annotations

import msgspec

from penstock.model import MessageStreamDefinition, to_wire

_decoder = msgspec.json.Decoder(MessageStreamDefinition)


class DamagedDefinitionError(Exception):
    """The stored bytes are not a definition."""


def encode_definition(definition: MessageStreamDefinition) -> bytes:
    return msgspec.json.encode(to_wire(definition))


def decode_definition(stored: bytes) -> MessageStreamDefinition:
    """Decodes a definition; raises DamagedDefinitionError for other bytes."""
    try:
        definition = _decoder.decode(stored)
    # Text that is not UTF-8 raises ValueError, a damaged column TypeError.
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise DamagedDefinitionError(str(error)) from None
    if definition.name is None:
        raise DamagedDefinitionError("it has no name")
    return definition
