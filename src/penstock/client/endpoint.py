"""Finds the server's address, its token and its TLS settings.

The order is: an address passed by the program, a root passed by the program, the environment, the
table `[client]` of penstock.toml, and the broker of the default root. Each connection repeats the
search, because a restarted broker may listen on another port.
"""

from __future__ import annotations

import difflib
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from penstock.discovery import (
    CLIENT_TABLE,
    Address,
    default_root,
    find_config,
    read_address,
    read_config,
    read_token,
)
from penstock.errors import SettingError
from penstock.model.validation import convert, find_problem

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8088

# True for the system's trusted certificates, a PEM file with trusted certificates, or a context.
Tls: TypeAlias = bool | str | Path | ssl.SSLContext

_HOST_VARIABLE = "STREAM_MANAGER_SERVER_HOST"
_PORT_VARIABLE = "STREAM_MANAGER_SERVER_PORT"
_TOKEN_VARIABLE = "AWS_CONTAINER_AUTHORIZATION_TOKEN"  # noqa: S105 - a variable's name
_TLS_VARIABLE = "PENSTOCK_TLS_CA"
_PEM_END = "-----END CERTIFICATE-----"
_ROOT_VARIABLES = ("STREAM_MANAGER_STORE_ROOT_DIR", "PENSTOCK_ROOT")


class Endpoint(NamedTuple):
    host: str
    port: int
    unix_socket: str | None = None
    tls: ssl.SSLContext | None = None
    token: str = ""
    # The broker's root, if the root selected the endpoint.
    root: Path | None = None

    def __str__(self) -> str:
        return f"unix:{self.unix_socket}" if self.unix_socket else f"{self.host}:{self.port}"


class ClientSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[client]` of penstock.toml."""

    host: str | None = None
    port: Annotated[int, Meta(ge=1, le=65_535)] | None = None
    unix_socket: str | None = None
    token: str | None = None
    tls_ca: str | None = None


class EndpointOptions(NamedTuple):
    """The options with which a program selects a server; None for an option that is not set."""

    host: str | None = None
    port: int | str | None = None
    unix_socket: str | None = None
    token: str | None = None
    tls: Tls | None = None
    root: str | Path | None = None
    config: str | Path | None = None

    def find(self, environment: Mapping[str, str]) -> Endpoint:
        """Finds the server; raises SettingError for an invalid setting.

        Raises ConnectionError if no broker serves a root that was set: it does not use another
        broker instead.
        """
        config = find_config(environment, Path(self.config) if self.config else None)
        table = read_config(config)
        settings = _client_settings(table.get(CLIENT_TABLE, {}), config)
        configured_root = Path(self.root) if self.root else find_root(environment, table)
        root = configured_root or default_root()
        address = _try_address(root)
        tls = self.tls
        if tls is None:
            tls = environment.get(_TLS_VARIABLE) or settings.tls_ca or None
        endpoint = self._explicit(environment, settings) or _endpoint_of_root(
            root, address, bool(tls)
        )
        if endpoint is None and configured_root is not None:
            raise ConnectionRefusedError(f"no stream manager serves {root}")
        endpoint = endpoint or Endpoint(DEFAULT_HOST, DEFAULT_PORT)
        is_local = address is not None and _listens_on(address, endpoint)
        token = self.token
        if token is None:
            token = environment.get(_TOKEN_VARIABLE) or settings.token
        if token is None:
            # The root's token is sent only to the broker of that root.
            token = try_token(root) if is_local else ""
        context = None
        if tls and not endpoint.unix_socket:
            context = _make_context(tls)
        elif tls is None and address is not None and is_local and _needs_tls(address, endpoint):
            context = _pinned_context(address)
        return endpoint._replace(tls=context, token=token)

    def _explicit(
        self, environment: Mapping[str, str], settings: ClientSettings
    ) -> Endpoint | None:
        """Returns the address that is set; None if the root selects the broker."""
        if self.unix_socket:
            return Endpoint("", 0, self.unix_socket)
        if self.host or self.port is not None:
            port = _port_from(environment) if self.port is None else _checked_port(self.port)
            return Endpoint(self.host or DEFAULT_HOST, port or settings.port or DEFAULT_PORT)
        if self.root:
            return None
        host, port = environment.get(_HOST_VARIABLE), _port_from(environment)
        if not host and port is None:
            if settings.unix_socket:
                return Endpoint("", 0, settings.unix_socket)
            host, port = settings.host, settings.port
        if not host and port is None:
            return None
        return Endpoint(host or DEFAULT_HOST, port or DEFAULT_PORT)


def _client_settings(table: object, config: Path | None) -> ClientSettings:
    try:
        return convert(table, ClientSettings)
    except msgspec.ValidationError as error:
        if isinstance(table, dict):
            for name in table.keys() - set(ClientSettings.__struct_fields__):
                near = difflib.get_close_matches(name, ClientSettings.__struct_fields__, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise SettingError(
                    f"{config}: there is no setting {CLIENT_TABLE}.{name}{hint}"
                ) from None
        problem = find_problem(error, table, ClientSettings)
        name = f"{CLIENT_TABLE}.{problem.path}" if problem.path else CLIENT_TABLE
        expected = problem.expected.replace("int | null, got str", "a whole number, unquoted")
        raise SettingError(f"{name} in {config} is {problem.shown}: {expected}") from None


def find_root(environment: Mapping[str, str], table: Mapping[str, object]) -> Path | None:
    """Returns the root of the environment, or of the configuration file's `table`."""
    for variable in _ROOT_VARIABLES:
        if environment.get(variable):
            return Path(environment[variable])
    root = table.get("root")
    return Path(root) if isinstance(root, str) and root else None


def _port_from(environment: Mapping[str, str]) -> int | None:
    # Deployment tools set the variable to "" for no value. A broker uses 0 for any free port.
    text = environment.get(_PORT_VARIABLE, "").strip()
    if text in ("", "0"):
        return None
    return _checked_port(text, _PORT_VARIABLE)


def _checked_port(port: object, name: str = "port") -> int:
    if isinstance(port, str) and port.isdecimal():
        port = int(port)
    if not isinstance(port, int) or not 1 <= port <= 65_535:
        raise SettingError(f"{name} is {port!r}: expected a port, 1 to 65535")
    return port


def _try_address(root: Path) -> Address | None:
    try:
        return read_address(root)
    except (OSError, ValueError):
        return None  # the file is not readable for this user


def try_token(root: Path) -> str:
    """Reads the token of the root's broker; empty if it is not readable."""
    try:
        return read_token(root)
    except (OSError, UnicodeDecodeError):
        return ""


def _endpoint_of_root(root: Path, address: Address | None, wants_tls: bool) -> Endpoint | None:
    """Returns a local endpoint of the root's broker, preferably without TLS."""
    if address is None:
        return None
    if address.tls and not wants_tls:
        if address.local_port:
            return Endpoint(DEFAULT_HOST, address.local_port, root=root)
        if address.unix_socket:
            return Endpoint("", 0, address.unix_socket, root=root)
    return Endpoint(address.local_host, address.port, root=root)


def _listens_on(address: Address, endpoint: Endpoint) -> bool:
    """Whether the broker with this address listens on the endpoint."""
    if endpoint.unix_socket:
        return address.unix_socket is not None and Path(endpoint.unix_socket).absolute() == Path(
            address.unix_socket
        )
    if endpoint.port == address.local_port:
        return endpoint.host in (DEFAULT_HOST, "localhost")
    loopback = {DEFAULT_HOST, "localhost"}
    hosts = loopback if address.local_host in loopback else {address.local_host}
    return endpoint.port == address.port and endpoint.host in hosts


def _needs_tls(address: Address, endpoint: Endpoint) -> bool:
    return address.tls and not endpoint.unix_socket and endpoint.port != address.local_port


def _make_context(tls: Tls) -> ssl.SSLContext:
    if isinstance(tls, ssl.SSLContext):
        return tls
    context = ssl.create_default_context()
    if not isinstance(tls, bool):
        try:
            context.load_verify_locations(tls)
        except (OSError, ssl.SSLError) as error:
            raise SettingError(f"{tls} is not a PEM file with certificates: {error}") from None
    return context


def _pinned_context(address: Address) -> ssl.SSLContext:
    """Returns a context that trusts only the certificate of this machine's broker."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The certificate is pinned, so its host names do not matter.
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        # The first certificate is the broker's own; the rest are its issuers'.
        first, end, _ = Path(address.tls_certificate or "").read_text().partition(_PEM_END)
        context.load_verify_locations(cadata=first + end)
    except (OSError, TypeError, ValueError):
        context = ssl.create_default_context()
    return context


def connect_error(error: OSError, endpoint: Endpoint) -> OSError:
    """Converts a system error during a connect to an error that names the endpoint."""
    # The event loop adds text to the error of the system.
    code = error.errno if isinstance(error, ConnectionError) else None
    reason = os.strerror(code) if code else error.strerror or str(error) or type(error).__name__
    if isinstance(error, TimeoutError):
        return TimeoutError(f"no stream manager answers on {endpoint}: timed out")
    if isinstance(error, ssl.SSLError):
        return ConnectionError(f"TLS connection to {endpoint} failed: {reason}")
    kind = ConnectionRefusedError if isinstance(error, ConnectionRefusedError) else ConnectionError
    return kind(f"no stream manager answers on {endpoint}: {reason}")
