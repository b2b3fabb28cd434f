"""The subject of the checks: this machine, the settings, the broker and its store."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from penstock.cli.main import settings_from
from penstock.cli.target import BrokerTarget
from penstock.client.client_protocol import ServerInfo
from penstock.discovery import is_served
from penstock.errors import (
    MessageStoreReadErrorException,
    ResourceNotFoundException,
    ResponseStatusCode,
    SettingError,
    StoreError,
    StreamManagerException,
)
from penstock.model import MessageStreamDefinition
from penstock.model.statistics import DiskStatistics, StreamStatistics
from penstock.settings import Settings
from penstock.store.catalog import Catalog
from penstock.store.definitions import DamagedDefinitionError, decode_definition
from penstock.store.schema import CATALOG_FILE

CONNECT_SECONDS = 2.0
_REQUEST_SECONDS = 3.0


class Contact(NamedTuple):
    """The result of a connection to the broker."""

    address: str = ""
    server: ServerInfo | None = None
    definitions: tuple[MessageStreamDefinition, ...] = ()
    # Exports, as `stream/identifier`, whose last delivery succeeded.
    working: frozenset[str] = frozenset()
    # The damage that the broker reports: a text for each damaged stream.
    damage: tuple[str, ...] = ()
    # The disk of the broker's root; None if the server does not report it.
    disk: DiskStatistics | None = None
    error: str = ""
    is_refused: bool = False


class Inventory(NamedTuple):
    """The contents of the catalog of a root. Empty if there is no catalog."""

    exists: bool = False
    definitions: tuple[MessageStreamDefinition, ...] = ()
    stored_bytes: int = 0
    error: str = ""


class CheckContext:
    """The subject of the checks. Slow parts are loaded once, when a check needs them."""

    def __init__(self, target: BrokerTarget) -> None:
        self.target = target
        self.environment: Mapping[str, str] = os.environ
        self.epoch_seconds = time.time()

    @cached_property
    def settings(self) -> Settings:
        """The settings of the broker on this machine; SettingError if they are wrong."""
        # With --host, --port is the port of that broker, not of the one on this machine.
        port = self.target.port if self.target.host is None else None
        return settings_from(self.target.config, root=self.target.root, port=port)

    @cached_property
    def contact(self) -> Contact:
        return _contact_broker(self.target)

    @cached_property
    def inventory(self) -> Inventory:
        try:
            return _read_inventory(self.settings.root_path)
        except SettingError:
            return Inventory()

    @property
    def is_served(self) -> bool:
        try:
            return is_served(self.settings.root_path)
        except SettingError:
            return False


def _contact_broker(target: BrokerTarget) -> Contact:
    try:
        with target.connect_briefly(CONNECT_SECONDS, _REQUEST_SECONDS) as client:
            definitions = []
            for name in client.list_streams():
                try:
                    definitions.append(client.describe_message_stream(name).definition)
                except (MessageStoreReadErrorException, ResourceNotFoundException):
                    continue
            statistics = client.statistics() if client.server.has_extensions else None
            streams = statistics.streams if statistics else []
            return Contact(
                client.address,
                client.server,
                tuple(definitions),
                _find_working(streams),
                _describe_damage(streams),
                statistics.disk if statistics else None,
            )
    except (StreamManagerException, OSError, SettingError) as error:
        is_refused = (
            isinstance(error, StreamManagerException)
            and error.status == ResponseStatusCode.Unauthorized
        )
        return Contact(error=str(error) or type(error).__name__, is_refused=is_refused)


def _describe_damage(streams: Sequence[StreamStatistics]) -> tuple[str, ...]:
    return tuple(
        f"stream {stream.name!r} has {stream.damaged_messages} damaged messages ({stream.damage})"
        for stream in streams
        if stream.damaged_messages
    )


def _find_working(streams: Sequence[StreamStatistics]) -> frozenset[str]:
    return frozenset(
        f"{stream.name}/{export.identifier}"
        for stream in streams
        for export in stream.exports
        if export.exported_messages and not export.error_message
    )


def _read_inventory(root: Path) -> Inventory:
    path = root / CATALOG_FILE
    try:
        if not path.exists():
            return Inventory()
        with closing(Catalog(path)) as catalog:
            definitions = [decode_definition(row.definition) for row in catalog.streams()]
    except (sqlite3.Error, StoreError, OSError, DamagedDefinitionError) as error:
        return Inventory(exists=True, error=str(error))
    return Inventory(True, tuple(definitions), _measure(root))


def _measure(root: Path) -> int:
    """Measures the files, because the catalog lacks the sizes of the newest segments."""
    size = 0
    for path in root.glob("streams/*/*.data"):
        # The broker may remove a segment at any time.
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size
