"""Files in a broker's root that other programs read: address, first token and lock.

The broker writes them; clients and commands read them. This module also finds the default root and
the configuration file.
"""

from __future__ import annotations

import fcntl
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import SettingError

ADDRESS_FILE = "broker.json"
TOKEN_FILE = "token"  # noqa: S105 - a file's name, not a secret
LOCK_FILE = "lock"
CONFIG_FILE = "penstock.toml"
# The table for clients in the configuration file; the rest of the file is for the broker.
CLIENT_TABLE = "client"


class Address(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """The addresses of a running broker."""

    pid: int
    # The id of this run of the broker. A program that can read it here is on the same machine.
    instance: str = ""
    host: str
    port: int
    tls: bool = False
    # The path of the broker's certificate, which local programs trust.
    tls_certificate: str | None = None
    # Listeners without TLS.
    local_port: int | None = None
    unix_socket: str | None = None
    authenticate_client: bool = True
    # The URL of the dashboard, which is also the base of metrics and health.
    http_url: str | None = None

    @property
    def local_host(self) -> str:
        return connectable_host(self.host)


_decode_address = msgspec.json.Decoder(Address).decode


def connectable_host(host: str) -> str:
    """The host that local programs connect to: a broker may listen on all addresses."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104


def default_root() -> Path:
    return Path.home() / ".penstock"


def find_config(environment: Mapping[str, str], config: Path | None = None) -> Path | None:
    """The given file, or PENSTOCK_CONFIG, or penstock.toml in the working directory, or None."""
    if config is None and environment.get("PENSTOCK_CONFIG"):
        config = Path(environment["PENSTOCK_CONFIG"])
    if config is not None:
        if not config.is_file():
            raise SettingError(f"the configuration file {config} does not exist")
        return config
    return Path(CONFIG_FILE) if Path(CONFIG_FILE).is_file() else None


def read_config(path: Path | None) -> dict[str, Any]:
    """The content of a configuration file; empty if there is no file."""
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"{path} cannot be read: {error}") from None


def write_address(root: Path, address: Address) -> None:
    path = root / ADDRESS_FILE
    # Replaced atomically: readers find the old file or the new one.
    written = path.with_suffix(".new")
    written.write_bytes(msgspec.json.encode(address) + b"\n")
    written.chmod(0o600)
    written.replace(path)


def read_address(root: Path) -> Address | None:
    """The address of the broker that serves this root; None if there is no broker.

    Raises OSError or ValueError if there is a broker and its address cannot be read.
    """
    # A killed broker leaves its address file, but no lock.
    if not is_served(root):
        return None
    try:
        address = _decode_address((root / ADDRESS_FILE).read_bytes())
        owner = (root / LOCK_FILE).read_text().strip()
    except FileNotFoundError:
        return None  # the broker is starting or stopping
    # A starting broker may not have replaced the address of a killed one.
    return address if owner == str(address.pid) else None


def read_token(root: Path) -> str:
    return (root / TOKEN_FILE).read_text().strip()


def is_served(root: Path) -> bool:
    """Whether a broker holds the lock of this root."""
    try:
        descriptor = os.open(root / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # A shared lock does not conflict with the check of another program.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def is_root_of(root: str, instance: str) -> bool:
    """Whether this directory belongs to the running broker with this id.

    The same path on another machine may be the root of another broker, which has another id.
    """
    try:
        address = (Path(root) / ADDRESS_FILE).read_bytes()
        return msgspec.json.decode(address, type=Address).instance == instance
    except (OSError, msgspec.DecodeError):
        return False
