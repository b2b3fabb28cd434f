"""Checks file descriptors, ports, TLS and the Unix socket."""

from __future__ import annotations

import errno
import os
import resource
import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from penstock.broker.descriptors import HOW_TO_RAISE, plan_budget
from penstock.cli.checks.check import Check, Outcome, State, fail, ok, skip, warn
from penstock.cli.checks.context import CONNECT_SECONDS, CheckContext
from penstock.cli.main import DEFAULT_HTTP_PORT
from penstock.discovery import read_address

# With fewer free descriptors, a broker is about to refuse connections.
_MIN_FREE_DESCRIPTORS = 8
_EXPIRY_DAYS = 30
# The size of the path in a Unix socket address, including its final zero.
_UNIX_PATH_BYTES = 108


class _Hint(NamedTuple):
    """The options and variables that set the address of a listener."""

    host: str
    port: str


_PORT_HINT = _Hint("--host or PENSTOCK_HOST", "--port or STREAM_MANAGER_SERVER_PORT")
_HTTP_PORT_HINT = _Hint("PENSTOCK_HTTP_HOST", "--http-port or PENSTOCK_HTTP_PORT")


def check_descriptors(context: CheckContext) -> Outcome:
    max_connections = context.settings.max_connections
    address = read_address(context.settings.root_path)
    if address is not None:
        try:
            limit = resource.prlimit(address.pid, resource.RLIMIT_NOFILE)[0]
            used = len(list(Path(f"/proc/{address.pid}/fd").iterdir()))
        except OSError:
            pass  # the broker belongs to another user or another container
        else:
            return judge_descriptors(limit, max_connections, used)
    return judge_descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[1], max_connections)


def judge_descriptors(limit: int, max_connections: int, used: int | None = None) -> Outcome:
    """Whether a limit is high enough. `used` is the count of a running broker."""
    if limit == resource.RLIM_INFINITY:
        return ok("no limit")
    budget = plan_budget(limit, max_connections)
    found = f"{limit} allow {budget.connections} connections and {budget.segments} open segments"
    if used is not None:
        found = f"{found}; the broker uses {used}"
        if used > limit - _MIN_FREE_DESCRIPTORS:
            return fail(found, f"close connections, or {HOW_TO_RAISE} and restart the broker")
    if budget.connections < max_connections:
        return warn(
            f"{found}, and max_connections is {max_connections}",
            f"{HOW_TO_RAISE}, or lower max_connections (PENSTOCK_MAX_CONNECTIONS)",
        )
    return ok(found)


def check_port(context: CheckContext) -> Outcome:
    settings = context.settings
    address = read_address(settings.root_path)
    if address is not None:
        return ok(f"the broker of this root listens on {address.host}:{address.port}")
    listeners = [(settings.host, settings.port)]
    if settings.local_port is not None:
        listeners.append(("127.0.0.1", settings.local_port))
    for host, port in listeners:
        problem = _try_listen(host, port, _PORT_HINT)
        if problem is not None:
            return problem
    return ok(", ".join(f"{host}:{port or 'any port'}" for host, port in listeners) + " is free")


def check_dashboard(context: CheckContext) -> Outcome:
    settings = context.settings
    address = read_address(settings.root_path)
    if address is not None:
        return ok(address.http_url) if address.http_url else skip("this broker has no dashboard")
    port = DEFAULT_HTTP_PORT if settings.http_port is None else settings.http_port
    problem = _try_listen(settings.http_host, port, _HTTP_PORT_HINT)
    if problem is None:
        return ok(f"{settings.http_host}:{port or 'any port'} is free")
    if settings.http_port is None:
        # Then only `penstock up` uses this port.
        return problem._replace(state=State.warn)
    return problem


def _try_listen(host: str, port: int, hint: _Hint) -> Outcome | None:
    place = f"{host}:{port}"
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return fail(
                f"{place} is taken by another program",
                f"find it with `ss -ltnp 'sport = :{port}'`, or choose another with {hint.port}",
            )
        if error.errno == errno.EACCES:
            return fail(f"{place} needs superuser rights", "choose a port above 1023")
        return fail(
            f"{place}: {error.strerror or error}",
            f"choose an address of this machine with {hint.host}",
        )
    return None


def check_tls(context: CheckContext) -> Outcome:
    settings = context.settings
    if not settings.uses_tls:
        return skip("not configured")
    try:
        end = read_certificate_end(settings.tls_certificate, settings.tls_key)
    except ssl.SSLCertVerificationError as error:
        return fail(f"{settings.tls_certificate}: {error.verify_message}", "renew the certificate")
    except (OSError, ValueError) as error:
        return fail(
            f"{settings.tls_certificate}, {settings.tls_key}: {error}",
            "set tls_certificate and tls_key to a PEM certificate and its key",
        )
    found = f"{settings.tls_certificate} is valid until {datetime.fromtimestamp(end, UTC):%Y-%m-%d}"
    if end < context.epoch_seconds + _EXPIRY_DAYS * 86_400:
        return warn(found, "renew the certificate")
    return ok(found)


def read_certificate_end(certificate: str, key: str) -> float:
    """The expiry of a certificate; SSLError or OSError if the key does not match.

    Python's ssl decodes only certificates of peers, so this performs a handshake in memory.
    """
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A broker cannot prompt for a password: encrypted keys are refused.
    server_context.load_cert_chain(certificate, key, password=lambda: "")
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client_context.load_verify_locations(certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    while waiting:
        end = waiting.pop(0)
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(end)
    accepted = client.getpeercert()
    assert accepted is not None
    return float(ssl.cert_time_to_seconds(str(accepted["notAfter"])))


def check_unix_socket(context: CheckContext) -> Outcome:
    settings = context.settings
    if not settings.unix_socket:
        return skip("not configured")
    path = Path(settings.unix_socket)
    other = "choose another path with --unix-socket or PENSTOCK_UNIX_SOCKET"
    if len(os.fsencode(path)) >= _UNIX_PATH_BYTES:
        return fail(f"{path} has {len(os.fsencode(path))} bytes: the maximum is 107", other)
    if not path.parent.is_dir():
        return fail(f"{path.parent} does not exist", f"create it, or {other}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return fail(f"{path.parent} is not writable", other)
    if path.exists() and not path.is_socket():
        return fail(f"{path} exists and is not a socket", f"remove it, or {other}")
    address = read_address(settings.root_path)
    if path.exists() and (address is None or address.unix_socket != str(path.absolute())):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other_end:
            other_end.settimeout(CONNECT_SECONDS)
            if other_end.connect_ex(str(path)) == 0:
                return fail(f"{path} is used by another program", other)
    return ok(str(path))


CHECKS: dict[str, Check] = {
    "file descriptors": check_descriptors,
    "port": check_port,
    "dashboard": check_dashboard,
    "TLS": check_tls,
    "Unix socket": check_unix_socket,
}
