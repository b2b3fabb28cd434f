"""Connects to a broker that may restart, and creates streams that may already exist."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from penstock.client.blocking import StreamManagerClient
from penstock.errors import StreamManagerException
from penstock.model import ExportConfig, ExportDefinition, MessageStreamDefinition

# Before each attempt to connect.
_PAUSE_SECONDS = 0.2
_TIMEOUT_SECONDS = 5.0


def keep_connected(
    root: Path, stopping: threading.Event, work: Callable[[StreamManagerClient], None]
) -> None:
    """Calls `work` with a client, and repeats it after a disconnect, until the event is set."""
    while not stopping.wait(_PAUSE_SECONDS):
        with (
            contextlib.suppress(OSError, StreamManagerException),
            StreamManagerClient(
                root=root, request_timeout=_TIMEOUT_SECONDS, reconnect_timeout=0
            ) as client,
        ):
            work(client)


def ensure_stream(client: StreamManagerClient, wanted: MessageStreamDefinition) -> None:
    """Creates the stream, or adds missing exports to an existing one.

    Other fields stay unchanged: the user may have changed them, or paused an export.
    """
    if wanted.name not in client.list_streams():
        client.create_message_stream(wanted)
        return
    found = client.describe_message_stream(wanted.name).definition
    missing = find_missing_exports(found.export_definition, wanted.export_definition)
    for kind, config in missing:
        others = getattr(found.export_definition, kind) or ()
        setattr(found.export_definition, kind, [*others, config])
    if missing:
        client.update_message_stream(found)


def find_missing_exports(
    found: ExportDefinition, wanted: ExportDefinition
) -> list[tuple[str, ExportConfig]]:
    """Returns the wanted exports with new identifiers, each with its kind."""
    known = {config.identifier for config in found.configs()}
    return [it for it in wanted.configs_by_kind() if it[1].identifier not in known]
