"""What lies in the root of a broker for other programs: its address, its first token, its lock.

Also where the root and the configuration file are when nobody says so. The broker writes, clients
and commands read.
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
# The table of the configuration file that is for clients; all else is for the broker.
CLIENT_TABLE = "client"


class Address(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """Where a broker listens, as it wrote it down when it started."""

    pid: int
    # Of this run of the broker: who is told the same is on the same machine.
    instance: str = ""
    host: str
    port: int
    tls: bool = False
    # The certificate that it shows, by which a program on this machine knows it.
    tls_certificate: str | None = None
    # Plain listeners beside one with TLS.
    local_port: int | None = None
    unix_socket: str | None = None
    authenticate_client: bool = True
    # The page for people; metrics and health are below it.
    http_url: str | None = None

    @property
    def local_host(self) -> str:
        return connectable_host(self.host)


_decode_address = msgspec.json.Decoder(Address).decode


def connectable_host(host: str) -> str:
    """The host to connect to from this machine: one may listen on all addresses at once."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104


def default_root() -> Path:
    return Path.home() / ".penstock"


def find_config(environment: Mapping[str, str], config: Path | None = None) -> Path | None:
    """The configuration file: the one that is named, or that of this directory, or none."""
    if config is None and environment.get("PENSTOCK_CONFIG"):
        config = Path(environment["PENSTOCK_CONFIG"])
    if config is not None:
        if not config.is_file():
            raise SettingError(f"the configuration file {config} does not exist")
        return config
    return Path(CONFIG_FILE) if Path(CONFIG_FILE).is_file() else None


def read_config(path: Path | None) -> dict[str, Any]:
    """The tables of a configuration file; none if there is no file."""
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"{path} cannot be read: {error}") from None


def write_address(root: Path, address: Address) -> None:
    path = root / ADDRESS_FILE
    # Whoever looks meanwhile finds all of it, or what was there before.
    written = path.with_suffix(".new")
    written.write_bytes(msgspec.json.encode(address) + b"\n")
    written.chmod(0o600)
    written.replace(path)


def read_address(root: Path) -> Address | None:
    """The address of the broker that serves this root; None if none does.

    OSError or ValueError if there is one, and its address cannot be read.
    """
    # A broker that was killed leaves its address behind, but not the lock.
    if not is_served(root):
        return None
    try:
        address = _decode_address((root / ADDRESS_FILE).read_bytes())
        owner = (root / LOCK_FILE).read_text().strip()
    except FileNotFoundError:
        return None  # it has just begun, or is about to end
    # One that has just begun may not have replaced the address of one that was killed.
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
        # Shared: two that only look do not take each other for a broker.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def is_root_of(root: str, instance: str) -> bool:
    """Whether this directory belongs to the broker with this id, which runs now.

    A copy of the directory, or one with the same path on another machine, has another id.
    """
    try:
        address = (Path(root) / ADDRESS_FILE).read_bytes()
        return msgspec.json.decode(address, type=Address).instance == instance
    except (OSError, msgspec.DecodeError):
        return False
