"""The settings: one declaration for names, defaults, limits and descriptions.

The environment overrides `penstock.toml`, and a flag overrides both. Settings of the original
Stream Manager keep their variables; all others have `PENSTOCK_<NAME>`.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from msgspec import Meta

from penstock.discovery import CLIENT_TABLE, default_root, find_config, read_config
from penstock.errors import SettingError
from penstock.model.limits import NAME_PATTERN
from penstock.model.sizes import parse_size
from penstock.model.validation import find_problem


class LogLevel(StrEnum):
    TRACE = "TRACE"
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"


class LoopbackAccess(StrEnum):
    NONE = "none"
    STATISTICS = "statistics"
    MESSAGES = "messages"


class LogFormat(StrEnum):
    HUMAN = "human"
    JSON = "json"


def _doc(text: str, **limits: Any) -> Meta:
    return Meta(description=text, **limits)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    root: Annotated[str, _doc("the directory of the streams; an absolute path")] = ""
    host: Annotated[str, _doc("the address to listen on; without TLS only a loopback address")] = (
        "127.0.0.1"
    )
    port: Annotated[int, _doc("the TCP port for clients; 0 picks a free one", ge=0, le=65_535)] = (
        8088
    )
    authenticate_client: Annotated[
        bool, _doc("whether clients need a token; if not, every local program has full access")
    ] = True

    exporter_max_bandwidth: (
        Annotated[
            int, _doc("the max average bandwidth of all exports, in kilobits per second", ge=1)
        ]
        | None
    ) = None
    exporter_thread_pool_size: Annotated[
        int, _doc("the max number of concurrent exports of a pipeline task", ge=1, le=1024)
    ] = 5
    exporter_s3_destination_multipart_upload_min_part_size_bytes: Annotated[
        int, _doc("the min size of a part of a multipart upload", ge=5_242_880, le=5 * 1024**3)
    ] = 5_242_880
    exporter_kinesis_inter_call_delay_ms: Annotated[
        int, _doc("the pause between PutRecords calls if shards are unknown", ge=0, le=3_600_000)
    ] = 1000
    read_only_dirs: Annotated[
        str,
        _doc(
            "the directories that S3 tasks may read, separated by commas; by default, every "
            "directory that the pipeline's user may read"
        ),
    ] = ""
    log_level: Annotated[LogLevel, _doc("the min level of log lines")] = LogLevel.INFO

    log_format: Annotated[LogFormat, _doc("the format of log lines")] = LogFormat.HUMAN
    tls_certificate: Annotated[
        str, _doc("a PEM file with the certificate; with `tls_key` it enables TLS")
    ] = ""
    tls_key: Annotated[str, _doc("the PEM file with the certificate's private key")] = ""
    local_port: (
        Annotated[
            int,
            _doc("the port of a second listener on 127.0.0.1, without TLS", ge=0, le=65_535),
        ]
        | None
    ) = None
    unix_socket: Annotated[str, _doc("the path of an additional Unix socket")] = ""
    http_port: (
        Annotated[
            int,
            _doc(
                "the port of the dashboard, `/metrics` and `/healthz`; 0 picks a free one, and "
                "`penstock up` uses 8089 by default",
                ge=0,
                le=65_535,
            ),
        ]
        | None
    ) = None
    http_host: Annotated[
        str,
        _doc(
            "the address of the dashboard; an address other than loopback requires TLS "
            "(`tls_certificate` and `tls_key`)"
        ),
    ] = "127.0.0.1"
    http_loopback_access: Annotated[
        LoopbackAccess,
        _doc(
            "the dashboard data for programs on this machine without a token: `none`; "
            "`statistics`, without messages and S3 tasks; `messages`, all data; changes need a "
            "token; without effect if `authenticate_client` is false"
        ),
    ] = LoopbackAccess.STATISTICS
    spark_page: Annotated[
        bool,
        _doc(
            "whether a pipeline on this machine serves Spark's web UI on a free loopback port, "
            "with a link on the dashboard"
        ),
    ] = True
    sync_interval_ms: Annotated[
        int,
        _doc(
            "the interval at which the broker syncs the segments of all streams",
            ge=10,
            le=3_600_000,
        ),
    ] = 1000
    export_gather_ms: Annotated[
        int,
        _doc(
            "how long messages are gathered before they are exported; exports of priority 1 to 3, "
            "full batches and the first message after an idle time of this length are exported at "
            "once",
            ge=0,
            le=60_000,
        ),
    ] = 1000
    reclaim_exported: Annotated[
        bool,
        _doc(
            "whether a full RejectNewData stream evicts messages that all enabled exports exported"
        ),
    ] = True
    dead_letter_stream: Annotated[
        str,
        _doc("the stream for messages that a destination rejects; created on demand"),
    ] = ""
    kinesis_partition_key: Annotated[
        str,
        _doc(
            "the partition key of a record: `random`, `stream-name`, or `field:` and the path of "
            "a JSON field, with dots between levels; a message without the field gets a random key",
            pattern=r"\A(random|stream-name|field:.+)\Z",
        ),
    ] = "random"
    kinesis_large_records: Annotated[
        bool,
        _doc("whether Kinesis accepts records and calls of 10 MiB, not 1 MiB and 5 MiB"),
    ] = False
    channels: Annotated[
        str, _doc("the directory of channels, by default `channels` in the root")
    ] = ""
    s3_tasks_at_once: Annotated[
        int,
        _doc(
            "the max number of concurrent S3 tasks of a stream; with more than one they may "
            "finish in another order",
            ge=1,
            le=64,
        ),
    ] = 1
    s3_parts_at_once: Annotated[
        int, _doc("the max number of parts of a file that are sent concurrently", ge=1, le=64)
    ] = 4
    s3_key_time_zone: Annotated[
        str,
        _doc(
            "the time zone of `!{timestamp:…}` in the keys of S3 objects, such as `Europe/Berlin`"
        ),
    ] = "UTC"
    s3_delete_uploaded_files: Annotated[
        bool, _doc("whether the files of S3 tasks are deleted after the upload")
    ] = False
    min_free_disk: Annotated[
        int,
        _doc(
            "the disk space to keep free, such as `8MiB`; with less, appends to streams in files "
            "are rejected; 0 allows appends until the disk is full",
            ge=0,
            le=1 << 50,
        ),
    ] = 8 * 1024 * 1024
    max_connections: Annotated[int, _doc("the max number of connections", ge=1, le=1_000_000)] = (
        8192
    )
    max_streams: Annotated[int, _doc("the max number of message streams", ge=1, le=1_000_000)] = (
        10_000
    )
    max_frame_bytes: Annotated[
        int,
        _doc(
            "the max size of a request, and of all large requests together", ge=65_536, le=1 << 30
        ),
    ] = 1 << 30
    max_response_bytes: Annotated[
        int,
        _doc(
            "a read stops at this size if it has its min number of messages", ge=65_536, le=1 << 30
        ),
    ] = 64 * 1024 * 1024
    max_unsent_response_bytes: Annotated[
        int,
        _doc(
            "the memory of all connections for large responses that are incomplete or unsent; a "
            "read that does not fit returns fewer messages, or waits",
            ge=1024 * 1024,
            le=1 << 40,
        ),
    ] = 128 * 1024 * 1024
    unsent_response_timeout_ms: Annotated[
        int,
        _doc(
            "a connection is closed if its client reads no byte of a pending response for this "
            "time",
            ge=1000,
            le=3_600_000,
        ),
    ] = 60_000
    handshake_timeout_ms: Annotated[
        int, _doc("the timeout of the handshake of a client", ge=100, le=600_000)
    ] = 10_000
    stop_timeout_ms: Annotated[
        int, _doc("how long a stop waits for clients to read their responses", ge=0, le=600_000)
    ] = 5_000

    @property
    def root_path(self) -> Path:
        return Path(self.root)

    @property
    def read_only_directories(self) -> tuple[str, ...]:
        """The directories in `read_only_dirs`."""
        return tuple(filter(None, map(str.strip, self.read_only_dirs.split(","))))

    @property
    def uses_tls(self) -> bool:
        return bool(self.tls_certificate)


# Variables of the original Stream Manager; other settings have only PENSTOCK_<NAME>.
_ORIGINAL_VARIABLES = {
    "root": ("STREAM_MANAGER_STORE_ROOT_DIR",),
    "port": ("STREAM_MANAGER_SERVER_PORT",),
    "authenticate_client": ("STREAM_MANAGER_AUTHENTICATE_CLIENT",),
    "exporter_max_bandwidth": ("STREAM_MANAGER_EXPORTER_MAX_BANDWIDTH",),
    "exporter_thread_pool_size": (
        "STREAM_MANAGER_EXPORTER_THREAD_POOL_SIZE",
        "STREAM_MANAGER_THREAD_POOL_SIZE",
    ),
    "exporter_s3_destination_multipart_upload_min_part_size_bytes": (
        "STREAM_MANAGER_EXPORTER_S3_DESTINATION_MULTIPART_UPLOAD_MIN_PART_SIZE_BYTES",
    ),
    "exporter_kinesis_inter_call_delay_ms": (
        "STREAM_MANAGER_EXPORTER_KINESIS_INTER_CALL_DELAY_MS",
    ),
    "read_only_dirs": ("STREAM_MANAGER_READ_ONLY_DIRS",),
    "log_level": ("LOG_LEVEL",),
}


# Sizes that may have a unit.
_SIZES = ("min_free_disk",)

# Variables that are not settings: for the configuration file and for clients.
_OTHER_VARIABLES = {"PENSTOCK_CONFIG", "PENSTOCK_TLS_CA"}

# A placeholder of a Greengrass recipe, which stays if the configuration has no such key. Like an
# empty variable, it means that the setting is not set.
_NO_VALUE = re.compile(r"\{configuration:[^{}]*\}")


def variables_of(name: str) -> tuple[str, ...]:
    """The environment variables of a setting, the preferred one first."""
    return (*_ORIGINAL_VARIABLES.get(name, ()), f"PENSTOCK_{name.upper()}")


def original_variables(name: str) -> tuple[str, ...]:
    """The documented variables of a setting: the original ones, or else PENSTOCK_<NAME>."""
    return _ORIGINAL_VARIABLES.get(name) or variables_of(name)


class _SettingValue(NamedTuple):
    """A value, and the name of its source for error messages."""

    value: Any
    source: str


def load_settings(
    environment: Mapping[str, str],
    flags: Mapping[str, Any],
    config: Path | None = None,
) -> Settings:
    """Loads settings from all sources; a SettingError names the invalid and the allowed values."""
    values: dict[str, _SettingValue] = {}
    values.update(_from_file(find_config(environment, config)))
    values.update(_from_environment(environment))
    values.update(
        (name, _SettingValue(value, f"--{name.replace('_', '-')}"))
        for name, value in flags.items()
        if value is not None
    )
    plain = {name: found.value for name, found in values.items()}
    if isinstance(plain.get("log_level"), str):
        plain["log_level"] = plain["log_level"].upper()
    for name in _SIZES:
        if isinstance(plain.get(name), str):
            try:
                plain[name] = parse_size(plain[name])
            except ValueError as error:
                raise SettingError(f"{values[name].source} is {error}") from None
    try:
        settings = msgspec.convert(plain, Settings, strict=False)
    except msgspec.ValidationError as error:
        problem = find_problem(error, plain, Settings)
        source = values[problem.path].source
        expected = _simplify(problem.path, problem.expected)
        raise SettingError(f"{source} is {problem.shown}: {expected}") from None
    if not settings.root:
        settings = msgspec.structs.replace(settings, root=str(default_root()))
    sources = {name: found.source for name, found in values.items()}
    _check_together(settings, sources)
    return settings


def _simplify(name: str, expected: str) -> str:
    """Replaces type names, which mean nothing to users: every variable is text."""
    if name == "kinesis_partition_key":
        return "expected random, stream-name, or field: and a name"
    expected = re.sub(r"int( \| null)?, got str", "a whole number", expected)
    expected = re.sub(r"bool, got \w+", "true or false", expected)
    return re.sub(r"str, got array", "one text, with commas as separators", expected)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Warnings about unknown PENSTOCK_ variables, with similar names of settings."""
    known = {variable for name in Settings.__struct_fields__ for variable in variables_of(name)}
    known |= _OTHER_VARIABLES
    return [
        # A high cutoff, because all names have the same prefix.
        f"{variable} is not a setting{_suggest(variable, known, cutoff=0.8)}"
        for variable in sorted(environment)
        if variable.startswith("PENSTOCK_") and variable not in known
    ]


def _suggest(wrong: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    near = difflib.get_close_matches(wrong, sorted(known), n=2, cutoff=cutoff)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _from_file(path: Path | None) -> Iterator[tuple[str, _SettingValue]]:
    for name, value in read_config(path).items():
        if name == CLIENT_TABLE:
            continue
        if name not in Settings.__struct_fields__:
            hint = _suggest(name, Settings.__struct_fields__)
            raise SettingError(f"{path}: there is no setting {name}{hint}")
        yield name, _SettingValue(value, f"{name} in {path}")


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, _SettingValue]]:
    for name in Settings.__struct_fields__:
        for variable in variables_of(name):
            value = environment.get(variable, "").strip()
            if value and not _NO_VALUE.fullmatch(value):
                yield name, _SettingValue(value, variable)
                break


def _check_together(settings: Settings, sources: Mapping[str, str]) -> None:
    if not settings.root.startswith("/"):
        raise SettingError(
            f"{sources['root']} is {settings.root!r}: expected an absolute path, starting with /"
        )
    if bool(settings.tls_certificate) != bool(settings.tls_key):
        raise SettingError("tls_certificate and tls_key require each other: set both or none")
    for name in ("tls_certificate", "tls_key"):
        path = getattr(settings, name)
        if path and not Path(path).is_file():
            raise SettingError(f"{sources[name]} is {path!r}: there is no such file")
    for name, host in (("host", settings.host), ("http_host", settings.http_host)):
        if not is_loopback(host):
            _check_listener(f"{sources[name]} is {host!r}", settings)
    stream = settings.dead_letter_stream
    if stream and not (len(stream) <= 255 and re.match(NAME_PATTERN, stream)):
        raise SettingError(
            f"{sources['dead_letter_stream']} is {stream!r}: expected the name of a stream, up to "
            "255 letters, digits, spaces or any of _ , . -"
        )
    if settings.channels and not settings.channels.startswith("/"):
        raise SettingError(
            f"{sources['channels']} is {settings.channels!r}: expected an absolute path"
        )
    _check_uploads(settings, sources)


def _check_listener(setting: str, settings: Settings) -> None:
    """Checks a listener that other machines can reach."""
    if not settings.uses_tls:
        raise SettingError(
            f"{setting}: an address other than loopback (127.0.0.1, ::1, localhost) requires TLS; "
            "set tls_certificate and tls_key (PENSTOCK_TLS_CERTIFICATE, PENSTOCK_TLS_KEY)"
        )
    if not settings.authenticate_client:
        raise SettingError(
            f"{setting}: an address other than loopback requires authenticate_client = true "
            "(STREAM_MANAGER_AUTHENTICATE_CLIENT)"
        )


def _check_uploads(settings: Settings, sources: Mapping[str, str]) -> None:
    if settings.read_only_dirs.strip() and not settings.read_only_directories:
        # Only separators. An empty list would allow every directory.
        raise SettingError(
            f"{sources['read_only_dirs']} is {settings.read_only_dirs!r}: expected absolute paths, "
            "separated by commas"
        )
    for directory in settings.read_only_directories:
        if not directory.startswith("/"):
            raise SettingError(
                f"{sources['read_only_dirs']} has {directory!r}: expected absolute paths, "
                "separated by commas"
            )
    if not _is_time_zone(settings.s3_key_time_zone):
        raise SettingError(
            f"{sources['s3_key_time_zone']} is {settings.s3_key_time_zone!r}: expected UTC, or a "
            "time zone of this machine, such as Europe/Berlin; the package tzdata has all zones"
        )


def _is_time_zone(name: str) -> bool:
    # UTC works without a time zone database, which small systems do not have.
    if name == "UTC":
        return True
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        # ZoneInfo raises ValueError or OSError for other files of the database.
        return False
    return True


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
