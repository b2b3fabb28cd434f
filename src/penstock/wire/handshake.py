"""Chooses the protocol version of a connection."""

from __future__ import annotations

import re

from penstock.errors import ConnectFailedException, ResponseStatusCode
from penstock.wire.requests import ConnectRequest

SUPPORTED_VERSIONS = ("1.0.0", "1.1.0")
EXTENSIONS_VERSION = 1

_VERSION = re.compile(r"\d{1,9}\.\d{1,9}\.\d{1,9}")


def choose_version(request: ConnectRequest) -> str:
    """Returns the client's preferred version, or the highest one that both ends support."""
    offered = (request.protocol_version, *request.other_supported_protocol_versions)
    for version in offered:
        if not _VERSION.fullmatch(version):
            raise ConnectFailedException(
                f"protocol version {version!r} is not of the form 1.1.0",
                ResponseStatusCode.InvalidProtocolVersion,
                request.request_id,
            )
    if request.protocol_version in SUPPORTED_VERSIONS:
        return request.protocol_version
    common = set(offered).intersection(SUPPORTED_VERSIONS)
    if not common:
        raise ConnectFailedException(
            f"protocol version {request.protocol_version} is not supported; "
            f"this server supports {' and '.join(SUPPORTED_VERSIONS)}",
            ResponseStatusCode.UnsupportedProtocolVersion,
            request.request_id,
        )
    return max(common)
