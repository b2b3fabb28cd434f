"""The name that pip knows Penstock by. It differs from the name that programs import."""

from __future__ import annotations

DISTRIBUTION = "penstock-streams"


def requirement(extra: str | None = None) -> str:
    """The distribution, with an extra if one is given, as pip takes it."""
    return f"{DISTRIBUTION}[{extra}]" if extra is not None else DISTRIBUTION


def how_to_install(extra: str) -> str:
    """The command that installs an extra, for error messages."""
    return f"pip install '{requirement(extra)}'"
