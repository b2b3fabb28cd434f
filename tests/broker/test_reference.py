from __future__ import annotations

from penstock.broker.reference import settings_page
from penstock.broker.settings import Settings


def test_every_setting_has_a_line_that_says_what_it_is() -> None:
    lines = [line for line in settings_page().splitlines() if line.startswith("| `")]
    assert len(lines) == len(Settings.__struct_fields__)
    for name, line in zip(Settings.__struct_fields__, lines, strict=True):
        assert line.startswith(f"| `{name}` | `")
        assert not line.endswith("|  |"), f"{name} is not explained"


def test_limits_and_choices_are_named() -> None:
    page = settings_page()
    assert "| 0 to 65535 |" in page
    assert "`TRACE`, `DEBUG`, `INFO`, `WARN`, `ERROR`" in page
