from __future__ import annotations

import json

import pytest

from penstock.settings import Settings, load_settings
from penstock.settings_reference import Reference, references, settings_page
from tests.cli.command import penstock


def test_every_setting_has_a_line_with_its_description() -> None:
    lines = [line for line in settings_page().splitlines() if line.startswith("| `")]
    assert len(lines) == len(Settings.__struct_fields__)
    for name, line in zip(Settings.__struct_fields__, lines, strict=True):
        assert line.startswith(f"| `{name}` | `")
        assert not line.endswith("|  |"), f"{name} is not explained"


def test_page_has_limits_and_choices() -> None:
    page = settings_page()
    assert "| 0 to 65535 |" in page
    assert "`TRACE`, `DEBUG`, `INFO`, `WARN`, `ERROR`" in page


def test_references_have_all_settings() -> None:
    described = {setting.name: setting for setting in references()}

    assert list(described) == list(Settings.__struct_fields__)
    assert described["port"] == (
        "port",
        ("STREAM_MANAGER_SERVER_PORT", "PENSTOCK_PORT"),
        8088,
        "integer",
        ("0 to 65535",),
        "the TCP port for clients; 0 picks a free one",
    )
    assert described["log_format"].allowed == ("human", "json")
    assert described["tls_key"].default is None
    assert described["authenticate_client"].default is True


@pytest.mark.parametrize("setting", list(references()), ids=lambda setting: setting.name)
def test_documented_variables_set_the_setting(setting: Reference) -> None:
    if setting.name in ("host", "http_host", "tls_certificate", "tls_key"):
        return  # their allowed values depend on other settings
    # The first value, or the start of the range.
    value = setting.allowed[0].split()[0] if setting.allowed else "/text"
    value = {
        "dead_letter_stream": "letters",
        "kinesis_partition_key": "field:a.b",
        "s3_key_time_zone": "Europe/Berlin",
    }.get(setting.name, value)
    for variable in setting.variables:
        loaded = getattr(load_settings({variable: value}, {}), setting.name)
        assert str(loaded).lower() == value.lower(), variable


def test_command_prints_the_page_and_the_values() -> None:
    assert penstock("settings").output == settings_page()

    printed = json.loads(penstock("settings", "--json").output)

    assert [setting["name"] for setting in printed] == list(Settings.__struct_fields__)
    assert printed[0] == {
        "name": "root",
        "variables": ["STREAM_MANAGER_STORE_ROOT_DIR", "PENSTOCK_ROOT"],
        "default": "~/.penstock",
        "type": "text",
        "allowed": [],
        "description": "the directory of the streams; an absolute path",
    }
