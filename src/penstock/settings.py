"""The settings: one declaration for names, defaults, limits and what each is for.

A value comes from `penstock.toml`, is overridden by the environment, and that by a flag. Values
that the original Stream Manager knows keep their variable names; the others are `PENSTOCK_*`.
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
    root: Annotated[str, _doc("where streams are stored; an absolute path")] = ""
    host: Annotated[str, _doc("the address to listen on; without TLS only a loopback one")] = (
        "127.0.0.1"
    )
    port: Annotated[int, _doc("the TCP port for clients; 0 picks a free one", ge=0, le=65_535)] = (
        8088
    )
    authenticate_client: Annotated[
        bool, _doc("whether clients need a token; if not, every local program may do everything")
    ] = True

    exporter_max_bandwidth: (
        Annotated[int, _doc("kilobits a second that all exports together may use on average", ge=1)]
        | None
    ) = None
    exporter_thread_pool_size: Annotated[
        int, _doc("how many exports a task of the pipeline delivers at once", ge=1, le=1024)
    ] = 5
    exporter_s3_destination_multipart_upload_min_part_size_bytes: Annotated[
        int, _doc("the smallest part of a multipart upload", ge=5_242_880, le=5 * 1024**3)
    ] = 5_242_880
    exporter_kinesis_inter_call_delay_ms: Annotated[
        int, _doc("pause between PutRecords calls where the shards are unknown", ge=0, le=3_600_000)
    ] = 1000
    read_only_dirs: Annotated[
        str,
        _doc(
            "directories that S3 tasks may read from, separated by commas; if none, all that the "
            "pipeline's user may read"
        ),
    ] = ""
    log_level: Annotated[LogLevel, _doc("how much is logged")] = LogLevel.INFO

    log_format: Annotated[LogFormat, _doc("how it is logged")] = LogFormat.HUMAN
    tls_certificate: Annotated[
        str, _doc("a PEM file; with it and `tls_key` the listener speaks TLS")
    ] = ""
    tls_key: Annotated[str, _doc("the PEM file with the certificate's private key")] = ""
    local_port: (
        Annotated[
            int,
            _doc("a second, plain listener on 127.0.0.1, beside one with TLS", ge=0, le=65_535),
        ]
        | None
    ) = None
    unix_socket: Annotated[str, _doc("the path of a Unix socket to listen on as well")] = ""
    http_port: (
        Annotated[
            int,
            _doc(
                "the port for the dashboard, `/metrics` and `/healthz`; 0 picks a free one, and "
                "`penstock up` takes 8089 where none is set",
                ge=0,
                le=65_535,
            ),
        ]
        | None
    ) = None
    http_host: Annotated[
        str,
        _doc(
            "the address for the same; on another one than loopback it speaks TLS, by "
            "`tls_certificate` and `tls_key`"
        ),
    ] = "127.0.0.1"
    http_loopback_access: Annotated[
        LoopbackAccess,
        _doc(
            "what the dashboard shows to programs on this machine that have no token: `none`; "
            "`statistics`, all but messages and S3 tasks; `messages`, all; changes always need a "
            "token"
        ),
    ] = LoopbackAccess.STATISTICS
    spark_page: Annotated[
        bool,
        _doc(
            "whether a pipeline on this machine has Spark's own page, on a free port of loopback, "
            "to which the dashboard has a link"
        ),
    ] = True
    sync_interval_ms: Annotated[
        int, _doc("how often streams without flush on write are synced", ge=10, le=3_600_000)
    ] = 1000
    export_gather_ms: Annotated[
        int,
        _doc(
            "how long messages that follow closely on others are gathered before they are "
            "exported; exports of priority 1 to 3, full batches and the first message after a "
            "pause leave at once",
            ge=0,
            le=60_000,
        ),
    ] = 1000
    reclaim_exported: Annotated[
        bool, _doc("whether a full RejectNewData stream drops what its enabled exports have sent")
    ] = True
    dead_letter_stream: Annotated[
        str,
        _doc("the stream for messages that a destination never takes; made when it is needed"),
    ] = ""
    kinesis_partition_key: Annotated[
        str,
        _doc(
            "what decides the shard of a record: `random`, `stream-name`, or `field:` and the "
            "name of a JSON field, with dots between levels; where it is missing, the key is "
            "random",
            pattern=r"\A(random|stream-name|field:.+)\Z",
        ),
    ] = "random"
    kinesis_large_records: Annotated[
        bool,
        _doc("whether Kinesis takes 10 MiB in a record and in a call, not 1 MiB and 5 MiB"),
    ] = False
    channels: Annotated[
        str, _doc("where channels are kept, by default in `channels` below the root")
    ] = ""
    s3_tasks_at_once: Annotated[
        int,
        _doc(
            "how many S3 tasks of one stream are carried out at once; with more than one they may "
            "finish in another order",
            ge=1,
            le=64,
        ),
    ] = 1
    s3_parts_at_once: Annotated[
        int, _doc("how many parts of a file are sent at once", ge=1, le=64)
    ] = 4
    s3_key_time_zone: Annotated[
        str,
        _doc(
            "the time zone of `!{timestamp:…}` in the keys of S3 objects, such as `Europe/Berlin`"
        ),
    ] = "UTC"
    s3_delete_uploaded_files: Annotated[
        bool, _doc("whether the files of S3 tasks are deleted once they were uploaded")
    ] = False
    min_free_disk: Annotated[
        int,
        _doc(
            "bytes of the disk that appends leave free, such as `8MiB`; with less, appends to "
            "streams in files are refused, and 0 refuses none before the disk is full",
            ge=0,
            le=1 << 50,
        ),
    ] = 8 * 1024 * 1024
    max_connections: Annotated[int, _doc("connections at once", ge=1, le=1_000_000)] = 8192
    max_streams: Annotated[
        int, _doc("message streams at once; a create beyond is refused", ge=1, le=1_000_000)
    ] = 10_000
    max_frame_bytes: Annotated[
        int, _doc("the largest request, and the memory for large ones", ge=65_536, le=1 << 30)
    ] = 1 << 30
    max_response_bytes: Annotated[
        int,
        _doc("a read stops at this size once it has its minimum", ge=65_536, le=1 << 30),
    ] = 64 * 1024 * 1024
    max_unsent_response_bytes: Annotated[
        int,
        _doc(
            "the memory for large answers that are built or that clients have not taken yet, over "
            "all connections; a read that does not fit returns fewer messages, or waits",
            ge=1024 * 1024,
            le=1 << 40,
        ),
    ] = 128 * 1024 * 1024
    unsent_response_timeout_ms: Annotated[
        int,
        _doc(
            "a connection is closed when its client takes no byte of a pending answer for so long",
            ge=1000,
            le=3_600_000,
        ),
    ] = 60_000
    handshake_timeout_ms: Annotated[
        int, _doc("how long a client may take to introduce itself", ge=100, le=600_000)
    ] = 10_000
    stop_timeout_ms: Annotated[
        int, _doc("how long a stop waits for clients to take their answers", ge=0, le=600_000)
    ] = 5_000

    @property
    def root_path(self) -> Path:
        return Path(self.root)

    @property
    def read_only_directories(self) -> tuple[str, ...]:
        """Those of `read_only_dirs`, one by one."""
        return tuple(filter(None, map(str.strip, self.read_only_dirs.split(","))))

    @property
    def uses_tls(self) -> bool:
        return bool(self.tls_certificate)


# The settings of the original, under its names; all others are PENSTOCK_<NAME>.
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

# Of clients, and of the file that the settings stand in.
_OTHER_VARIABLES = {"PENSTOCK_CONFIG", "PENSTOCK_TLS_CA"}

# An empty variable is how many a deployment tool says that it is not set. Greengrass leaves the
# words of a recipe as they are where the configuration has no such key.
_NO_VALUE = re.compile(r"\{configuration:[^{}]*\}")


def variables_of(name: str) -> tuple[str, ...]:
    """The environment variables that set it, the preferred one first."""
    return (*_ORIGINAL_VARIABLES.get(name, ()), f"PENSTOCK_{name.upper()}")


def original_variables(name: str) -> tuple[str, ...]:
    """The variables to tell people: those of the original, or our own where it has none."""
    return _ORIGINAL_VARIABLES.get(name) or variables_of(name)


class _SettingValue(NamedTuple):
    """A value and what the user calls the place where it stands."""

    value: Any
    source: str


def load_settings(
    environment: Mapping[str, str],
    flags: Mapping[str, Any],
    config: Path | None = None,
) -> Settings:
    """The settings from all their sources; SettingError names what is wrong and what is allowed."""
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
        expected = _say_plainly(problem.path, problem.expected)
        raise SettingError(f"{source} is {problem.shown}: {expected}") from None
    if not settings.root:
        settings = msgspec.structs.replace(settings, root=str(default_root()))
    sources = {name: found.source for name, found in values.items()}
    _check_together(settings, sources)
    return settings


def _say_plainly(name: str, expected: str) -> str:
    """What stands in a variable is text, whatever it should be: its type says nothing to people."""
    if name == "kinesis_partition_key":
        return "expected random, stream-name, or field: and a name"
    expected = re.sub(r"int( \| null)?, got str", "a whole number", expected)
    expected = re.sub(r"bool, got \w+", "true or false", expected)
    return re.sub(r"str, got array", "one text, with commas between its parts", expected)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables that look like settings of ours and are none, each with what may be meant."""
    known = {variable for name in Settings.__struct_fields__ for variable in variables_of(name)}
    known |= _OTHER_VARIABLES
    return [
        # Their beginning is the same, and makes all of them a little alike.
        f"{variable} is no setting{_suggest(variable, known, alike=0.8)}"
        for variable in sorted(environment)
        if variable.startswith("PENSTOCK_") and variable not in known
    ]


def _suggest(wrong: str, known: Iterable[str], alike: float = 0.6) -> str:
    near = difflib.get_close_matches(wrong, sorted(known), n=2, cutoff=alike)
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
            f"{sources['root']} is {settings.root!r}: expected an absolute path, one that "
            "starts with /"
        )
    if bool(settings.tls_certificate) != bool(settings.tls_key):
        raise SettingError("tls_certificate and tls_key belong together: set both or none")
    for name in ("tls_certificate", "tls_key"):
        path = getattr(settings, name)
        if path and not Path(path).is_file():
            raise SettingError(f"{sources[name]} is {path!r}: there is no such file")
    for name, host in (("host", settings.host), ("http_host", settings.http_host)):
        if not is_loopback(host):
            _check_listener(f"{sources[name]} is {host!r}", settings)
    letters = settings.dead_letter_stream
    if letters and not (len(letters) <= 255 and re.match(NAME_PATTERN, letters)):
        raise SettingError(
            f"{sources['dead_letter_stream']} is {letters!r}: expected the name of a stream, up to "
            "255 letters, digits, spaces or any of _ , . -"
        )
    if settings.channels and not settings.channels.startswith("/"):
        raise SettingError(
            f"{sources['channels']} is {settings.channels!r}: expected an absolute path"
        )
    _check_uploads(settings, sources)


def _check_listener(what: str, settings: Settings) -> None:
    """One that other machines can reach."""
    if not settings.uses_tls:
        raise SettingError(
            f"{what}: a listener on another address than loopback (127.0.0.1, ::1, localhost) "
            "needs TLS; set tls_certificate and tls_key (PENSTOCK_TLS_CERTIFICATE, "
            "PENSTOCK_TLS_KEY)"
        )
    if not settings.authenticate_client:
        raise SettingError(
            f"{what}: a listener on another address than loopback needs authenticate_client = "
            "true (STREAM_MANAGER_AUTHENTICATE_CLIENT)"
        )


def _check_uploads(settings: Settings, sources: Mapping[str, str]) -> None:
    if settings.read_only_dirs.strip() and not settings.read_only_directories:
        # Who wrote this wanted to allow little, and no directory at all would allow everything.
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
            "time zone that is known here, such as Europe/Berlin; the package tzdata has them all"
        )


def _is_time_zone(name: str) -> bool:
    # The one that needs no list of time zones, which small systems do not have.
    if name == "UTC":
        return True
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        # The last two are for names that lead to something else among the files of the list.
        return False
    return True


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
