"""Settings from a file, from the environment and from flags, and errors of invalid ones."""

from __future__ import annotations

import importlib.util
import json
import zoneinfo
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import SettingError
from penstock.settings import (
    LogFormat,
    LogLevel,
    LoopbackAccess,
    Settings,
    is_loopback,
    load_settings,
    unknown_variables,
    variables_of,
)

S3_PART = "STREAM_MANAGER_EXPORTER_S3_DESTINATION_MULTIPART_UPLOAD_MIN_PART_SIZE_BYTES"


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/user")


def load(
    environment: Mapping[str, str] | None = None, toml: str | None = None, **flags: Any
) -> Settings:
    if toml is not None:
        Path("penstock.toml").write_text(toml)
    return load_settings(environment or {}, flags)


def refusal(
    environment: Mapping[str, str] | None = None, toml: str | None = None, **flags: Any
) -> str:
    with pytest.raises(SettingError) as caught:
        load(environment, toml, **flags)
    return str(caught.value)


@pytest.fixture
def certificate(tmp_path: Path) -> dict[str, str]:
    """Variables with the paths of two files, which are not read here."""
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).touch()
    return {
        "PENSTOCK_TLS_CERTIFICATE": str(tmp_path / "tls.crt"),
        "PENSTOCK_TLS_KEY": str(tmp_path / "tls.key"),
    }


def test_all_settings_have_defaults() -> None:
    settings = load()

    assert settings.root == "/home/user/.penstock"
    assert (settings.host, settings.port) == ("127.0.0.1", 8088)
    assert settings.authenticate_client
    assert settings.exporter_max_bandwidth is None
    assert settings.exporter_thread_pool_size == 5
    assert settings.exporter_s3_destination_multipart_upload_min_part_size_bytes == 5_242_880
    assert settings.exporter_kinesis_inter_call_delay_ms == 1000
    assert settings.log_level is LogLevel.INFO
    assert (settings.http_port, settings.http_host) == (None, "127.0.0.1")
    assert settings.http_loopback_access is LoopbackAccess.STATISTICS


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("STREAM_MANAGER_STORE_ROOT_DIR", "/data", "root", "/data"),
        ("STREAM_MANAGER_SERVER_PORT", "18088", "port", 18088),
        ("STREAM_MANAGER_SERVER_PORT", "0", "port", 0),
        ("STREAM_MANAGER_SERVER_PORT", " 18088 ", "port", 18088),
        ("STREAM_MANAGER_AUTHENTICATE_CLIENT", "false", "authenticate_client", False),
        ("STREAM_MANAGER_AUTHENTICATE_CLIENT", "true", "authenticate_client", True),
        ("STREAM_MANAGER_EXPORTER_MAX_BANDWIDTH", "512", "exporter_max_bandwidth", 512),
        ("STREAM_MANAGER_EXPORTER_THREAD_POOL_SIZE", "9", "exporter_thread_pool_size", 9),
        ("STREAM_MANAGER_THREAD_POOL_SIZE", "9", "exporter_thread_pool_size", 9),
        (
            S3_PART,
            "6000000",
            "exporter_s3_destination_multipart_upload_min_part_size_bytes",
            6_000_000,
        ),
        (
            "STREAM_MANAGER_EXPORTER_KINESIS_INTER_CALL_DELAY_MS",
            "0",
            "exporter_kinesis_inter_call_delay_ms",
            0,
        ),
        ("STREAM_MANAGER_READ_ONLY_DIRS", "/a, /b", "read_only_dirs", "/a, /b"),
        ("LOG_LEVEL", "TRACE", "log_level", LogLevel.TRACE),
        ("LOG_LEVEL", "debug", "log_level", LogLevel.DEBUG),
        ("PENSTOCK_ROOT", "/data", "root", "/data"),
        ("PENSTOCK_PORT", "1", "port", 1),
        ("PENSTOCK_HOST", "::1", "host", "::1"),
        ("PENSTOCK_LOG_FORMAT", "json", "log_format", LogFormat.JSON),
        ("PENSTOCK_LOCAL_PORT", "7", "local_port", 7),
        ("PENSTOCK_UNIX_SOCKET", "/run/p.sock", "unix_socket", "/run/p.sock"),
        ("PENSTOCK_HTTP_PORT", "0", "http_port", 0),
        ("PENSTOCK_HTTP_HOST", "::1", "http_host", "::1"),
        ("PENSTOCK_HTTP_LOOPBACK_ACCESS", "none", "http_loopback_access", LoopbackAccess.NONE),
        ("PENSTOCK_SPARK_PAGE", "false", "spark_page", False),
        ("PENSTOCK_SYNC_INTERVAL_MS", "10", "sync_interval_ms", 10),
        ("PENSTOCK_RECLAIM_EXPORTED", "false", "reclaim_exported", False),
        ("PENSTOCK_S3_TASKS_AT_ONCE", "64", "s3_tasks_at_once", 64),
        ("PENSTOCK_S3_PARTS_AT_ONCE", "1", "s3_parts_at_once", 1),
        ("PENSTOCK_S3_KEY_TIME_ZONE", "Europe/Berlin", "s3_key_time_zone", "Europe/Berlin"),
        ("PENSTOCK_S3_DELETE_UPLOADED_FILES", "true", "s3_delete_uploaded_files", True),
        ("PENSTOCK_MAX_CONNECTIONS", "2", "max_connections", 2),
        ("PENSTOCK_MAX_FRAME_BYTES", "65536", "max_frame_bytes", 65_536),
        ("PENSTOCK_MAX_RESPONSE_BYTES", "65536", "max_response_bytes", 65_536),
        ("PENSTOCK_HANDSHAKE_TIMEOUT_MS", "100", "handshake_timeout_ms", 100),
        ("PENSTOCK_STOP_TIMEOUT_MS", "0", "stop_timeout_ms", 0),
    ],
)
def test_every_variable_sets_its_setting(
    variable: str, text: str, name: str, value: object
) -> None:
    assert getattr(load({variable: text}), name) == value
    assert variable in variables_of(name)


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_every_setting_has_a_penstock_variable(name: str) -> None:
    assert variables_of(name)[-1] == f"PENSTOCK_{name.upper()}"


def test_empty_variable_is_ignored() -> None:
    empty = {variable: "" for name in Settings.__struct_fields__ for variable in variables_of(name)}

    assert load(empty) == load()
    assert load({"STREAM_MANAGER_SERVER_PORT": "", "PENSTOCK_PORT": "5"}).port == 5


def test_unresolved_placeholder_of_greengrass_is_ignored() -> None:
    left = {
        variable: f"{{configuration:/{variable}}}"
        for name in Settings.__struct_fields__
        for variable in variables_of(name)
    }

    assert load(left) == load()
    assert load({**left, "PENSTOCK_PORT": "5"}).port == 5


def test_original_variable_has_precedence() -> None:
    assert load({"STREAM_MANAGER_SERVER_PORT": "1", "PENSTOCK_PORT": "2"}).port == 1


def test_flags_override_variables_and_variables_override_the_file() -> None:
    toml = 'port = 1\nlog_level = "WARN"\nsync_interval_ms = 11'
    variables = {"STREAM_MANAGER_SERVER_PORT": "2", "LOG_LEVEL": "ERROR"}

    assert load(toml=toml).port == 1
    assert load(variables).port == 2
    settings = load(variables, port=3, log_level=None)
    assert (settings.port, settings.log_level, settings.sync_interval_ms) == (3, "ERROR", 11)


def test_configuration_file_can_be_named(tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    file.write_text("port = 5")
    Path("penstock.toml").write_text("port = 4")

    assert load().port == 4
    assert load({"PENSTOCK_CONFIG": str(file)}).port == 5
    assert load_settings({"PENSTOCK_CONFIG": "/nowhere"}, {}, config=file).port == 5


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("STREAM_MANAGER_STORE_ROOT_DIR", "data", "expected an absolute path"),
        ("STREAM_MANAGER_STORE_ROOT_DIR", "~/data", "expected an absolute path"),
        ("STREAM_MANAGER_SERVER_PORT", "x", "expected a whole number"),
        ("STREAM_MANAGER_SERVER_PORT", "65536", "expected int <= 65535"),
        ("STREAM_MANAGER_SERVER_PORT", "-1", "expected int >= 0"),
        ("STREAM_MANAGER_AUTHENTICATE_CLIENT", "maybe", "expected true or false"),
        ("STREAM_MANAGER_EXPORTER_MAX_BANDWIDTH", "0", "expected int >= 1"),
        ("STREAM_MANAGER_EXPORTER_MAX_BANDWIDTH", "fast", "expected a whole number"),
        ("STREAM_MANAGER_EXPORTER_THREAD_POOL_SIZE", "0", "expected int >= 1"),
        ("STREAM_MANAGER_THREAD_POOL_SIZE", "1025", "expected int <= 1024"),
        (S3_PART, "5242879", "expected int >= 5242880"),
        ("STREAM_MANAGER_EXPORTER_KINESIS_INTER_CALL_DELAY_MS", "-1", "expected int >= 0"),
        ("LOG_LEVEL", "LOUD", "expected one of TRACE, DEBUG, INFO, WARN, ERROR"),
        ("PENSTOCK_LOG_FORMAT", "xml", "expected one of human, json"),
        ("PENSTOCK_LOCAL_PORT", "65536", "expected int <= 65535"),
        ("PENSTOCK_HTTP_PORT", "65536", "expected int <= 65535"),
        ("PENSTOCK_HTTP_PORT", "eighty", "expected a whole number"),
        ("PENSTOCK_HTTP_HOST", "0.0.0.0", "requires TLS"),
        ("PENSTOCK_HTTP_HOST", "gateway.example", "requires TLS"),
        (
            "PENSTOCK_HTTP_LOOPBACK_ACCESS",
            "all",
            "expected one of none, statistics, messages",
        ),
        ("PENSTOCK_SPARK_PAGE", "maybe", "expected true or false"),
        ("PENSTOCK_SYNC_INTERVAL_MS", "9", "expected int >= 10"),
        ("PENSTOCK_RECLAIM_EXPORTED", "2", "expected true or false"),
        ("PENSTOCK_S3_TASKS_AT_ONCE", "0", "expected int >= 1"),
        ("PENSTOCK_S3_TASKS_AT_ONCE", "65", "expected int <= 64"),
        ("PENSTOCK_S3_PARTS_AT_ONCE", "0", "expected int >= 1"),
        ("PENSTOCK_S3_PARTS_AT_ONCE", "65", "expected int <= 64"),
        ("PENSTOCK_S3_KEY_TIME_ZONE", "Europe/Atlantis", "expected UTC, or a time zone"),
        ("PENSTOCK_S3_DELETE_UPLOADED_FILES", "perhaps", "expected true or false"),
        ("PENSTOCK_MAX_CONNECTIONS", "0", "expected int >= 1"),
        ("PENSTOCK_MAX_FRAME_BYTES", "1073741825", "expected int <= 1073741824"),
        ("PENSTOCK_MAX_RESPONSE_BYTES", "1", "expected int >= 65536"),
        ("PENSTOCK_HANDSHAKE_TIMEOUT_MS", "99", "expected int >= 100"),
        ("PENSTOCK_STOP_TIMEOUT_MS", "-1", "expected int >= 0"),
        ("PENSTOCK_HOST", "0.0.0.0", "requires TLS"),
        ("PENSTOCK_HOST", "gateway.example", "requires TLS"),
    ],
)
def test_invalid_value_is_rejected_with_its_source_and_the_allowed_values(
    variable: str, text: str, allowed: str
) -> None:
    message = refusal({variable: text})

    assert message.startswith(f"{variable} is {text!r}: ")
    assert allowed in message


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ('port = "x"', "port in penstock.toml is 'x': expected a whole number"),
        ("port = 70000", "port in penstock.toml is 70000: expected int <= 65535"),
        ("port = [1]", "port in penstock.toml is a list: expected int"),
        ("root = 5", "root in penstock.toml is 5: expected str"),
        ('root = "here"', "root in penstock.toml is 'here': expected an absolute path"),
        ('log_level = "LOUD"', "log_level in penstock.toml is 'LOUD': expected one of TRACE"),
        ("log_levl = 1", "there is no setting log_levl; did you mean log_level?"),
        ("handshake_timeout = 1", "did you mean handshake_timeout_ms?"),
        ("[server]\nport = 1", "penstock.toml: there is no setting server"),
        ("prot = 1", "there is no setting prot; did you mean root or port?"),
        ("quux = 1", "penstock.toml: there is no setting quux"),
        ('read_only_dirs = ["/data"]', "expected one text, with commas as separators"),
        ('kinesis_partition_key = "x"', "expected random, stream-name, or field: and a name"),
        ("port = ", "penstock.toml cannot be read: "),
    ],
)
def test_invalid_file_is_rejected_with_the_reason(toml: str, problem: str) -> None:
    assert problem in refusal(toml=toml)


def test_binary_file_is_rejected() -> None:
    Path("penstock.toml").write_bytes(b"\xff")

    assert "penstock.toml cannot be read" in refusal()


def test_invalid_flag_is_rejected() -> None:
    assert refusal(port=70_000) == "--port is 70000: expected int <= 65535"
    assert refusal(log_format="x").startswith("--log-format is 'x': expected one of")
    assert refusal(unix_socket=None, root="here").startswith("--root is 'here': ")


def test_named_file_must_exist() -> None:
    assert "/nowhere.toml does not exist" in refusal({"PENSTOCK_CONFIG": "/nowhere.toml"})


def test_certificate_requires_its_key(certificate: dict[str, str]) -> None:
    for name, value in certificate.items():
        assert "require each other" in refusal({name: value})
        missing = refusal({**certificate, name: "/nowhere"})
        assert missing == f"{name} is '/nowhere': there is no such file"


@pytest.mark.parametrize("variable", ["PENSTOCK_HOST", "PENSTOCK_HTTP_HOST"])
def test_other_addresses_require_tls_and_tokens(certificate: dict[str, str], variable: str) -> None:
    variables = {**certificate, variable: "0.0.0.0"}

    assert load(variables).uses_tls
    assert "requires authenticate_client" in refusal(
        {**variables, "STREAM_MANAGER_AUTHENTICATE_CLIENT": "false"}
    )


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_loopback_addresses_are_recognized(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


# Exports


def test_settings_of_exports_have_defaults() -> None:
    settings = load()

    assert (settings.dead_letter_stream, settings.channels) == ("", "")
    assert (settings.kinesis_partition_key, settings.kinesis_large_records) == ("random", False)


@pytest.mark.parametrize("key", ["random", "stream-name", "field:a", "field:a.b c"])
def test_valid_partition_key_is_accepted(key: str) -> None:
    assert load({"PENSTOCK_KINESIS_PARTITION_KEY": key}).kinesis_partition_key == key


@pytest.mark.parametrize("key", ["", "field:", "Random", "random\n", "the weather"])
def test_invalid_partition_key_is_rejected(key: str) -> None:
    assert "kinesis_partition_key" in refusal(toml=f"kinesis_partition_key = {json.dumps(key)}")


@pytest.mark.parametrize("name", ["a/b", "ü", "x\n"])
def test_dead_letter_stream_must_be_a_stream_name(name: str) -> None:
    message = refusal(toml=f"dead_letter_stream = {json.dumps(name)}")

    assert "dead_letter_stream" in message
    assert "expected the name of a stream" in message
    assert "PENSTOCK_DEAD_LETTER_STREAM" in refusal({"PENSTOCK_DEAD_LETTER_STREAM": "a/b"})


def test_long_name_of_a_dead_letter_stream_is_rejected() -> None:
    assert "dead_letter_stream" in refusal(toml=f'dead_letter_stream = "{"x" * 256}"')
    assert len(load(toml=f'dead_letter_stream = "{"x" * 255}"').dead_letter_stream) == 255


def test_channels_must_be_an_absolute_path() -> None:
    assert load({"PENSTOCK_CHANNELS": "/data/channels"}).channels == "/data/channels"
    assert refusal({"PENSTOCK_CHANNELS": "channels"}) == (
        "PENSTOCK_CHANNELS is 'channels': expected an absolute path"
    )


# Uploads


@pytest.mark.parametrize(
    ("text", "directories"),
    [("", ()), ("/a", ("/a",)), (" /a , /b c,/d/ ,", ("/a", "/b c", "/d/")), (" , /a", ("/a",))],
)
def test_read_only_directories_are_separated_by_commas(
    text: str, directories: tuple[str, ...]
) -> None:
    toml = f"read_only_dirs = {json.dumps(text)}"

    assert load({"STREAM_MANAGER_READ_ONLY_DIRS": text}).read_only_directories == directories
    assert load(toml=toml).read_only_directories == directories


def test_read_only_directories_must_be_absolute() -> None:
    message = refusal({"STREAM_MANAGER_READ_ONLY_DIRS": "/a, b"})

    assert message == (
        "STREAM_MANAGER_READ_ONLY_DIRS has 'b': expected absolute paths, separated by commas"
    )


def test_list_of_commas_does_not_allow_all_directories() -> None:
    message = refusal({"STREAM_MANAGER_READ_ONLY_DIRS": ", ,"})

    assert message == (
        "STREAM_MANAGER_READ_ONLY_DIRS is ', ,': expected absolute paths, separated by commas"
    )


def test_settings_of_uploads_have_defaults() -> None:
    settings = load()

    assert settings.read_only_directories == ()
    assert (settings.s3_tasks_at_once, settings.s3_parts_at_once) == (1, 4)
    assert settings.s3_key_time_zone == "UTC"
    assert settings.s3_delete_uploaded_files is False


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kolkata", "Etc/GMT+5"])
def test_known_time_zone_of_keys_is_accepted(zone: str) -> None:
    assert load({"PENSTOCK_S3_KEY_TIME_ZONE": zone}).s3_key_time_zone == zone


@pytest.mark.parametrize(
    "zone",
    ["", "Mars/Olympus", "+02:00", "Europe", "../zoneinfo/UTC", "/etc/passwd", "x\0", "z" * 300],
)
def test_unknown_time_zone_is_rejected(zone: str) -> None:
    message = refusal(toml=f"s3_key_time_zone = {json.dumps(zone)}")

    assert message.startswith(f"s3_key_time_zone in penstock.toml is {zone!r}: expected UTC, or ")
    assert "Europe/Berlin" in message


def test_utc_needs_no_time_zone_database() -> None:
    known = zoneinfo.TZPATH
    zoneinfo.ZoneInfo.clear_cache()
    zoneinfo.reset_tzpath(())
    try:
        assert load({"PENSTOCK_S3_KEY_TIME_ZONE": "UTC"}).s3_key_time_zone == "UTC"
        if importlib.util.find_spec("tzdata") is None:
            assert refusal({"PENSTOCK_S3_KEY_TIME_ZONE": "Europe/Berlin"}).startswith(
                "PENSTOCK_S3_KEY_TIME_ZONE is 'Europe/Berlin': expected UTC, or "
            )
    finally:
        zoneinfo.reset_tzpath(known)


def test_unknown_penstock_variables_are_reported() -> None:
    names = [each for name in Settings.__struct_fields__ for each in variables_of(name)]
    names += ["PENSTOCK_CONFIG", "PENSTOCK_TLS_CA", "_PENSTOCK_COMPLETE", "HOME"]

    assert unknown_variables(dict.fromkeys(names, "x")) == []
    assert unknown_variables({"PENSTOCK_HTP_PORT": "1", "PENSTOCK_X": ""}) == [
        "PENSTOCK_HTP_PORT is not a setting; did you mean PENSTOCK_HTTP_PORT or PENSTOCK_PORT?",
        "PENSTOCK_X is not a setting",
    ]


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("4096", 4096), ("16MiB", 16 << 20), ("1 GB", 10**9)]
)
def test_min_free_disk_may_have_a_unit(text: str, size: int) -> None:
    assert load_settings({"PENSTOCK_MIN_FREE_DISK": text}, {}).min_free_disk == size


@pytest.mark.parametrize(
    ("text", "problem"),
    [("much", "'much' is not a size: expected a number and a unit"), ("-1", "'-1' is not a size")],
)
def test_invalid_min_free_disk_is_rejected(text: str, problem: str) -> None:
    with pytest.raises(SettingError, match=f"PENSTOCK_MIN_FREE_DISK is {problem}"):
        load_settings({"PENSTOCK_MIN_FREE_DISK": text}, {})
