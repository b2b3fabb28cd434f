"""The name of the distribution, for pip. It differs from the name of the package."""

from __future__ import annotations

DISTRIBUTION = "penstock-streams"


def requirement(extra: str | None = None) -> str:
    """The requirement for pip: the distribution, with an extra if given."""
    return f"{DISTRIBUTION}[{extra}]" if extra is not None else DISTRIBUTION


def how_to_install(extra: str) -> str:
    """The command that installs an extra, for error messages."""
    return f"pip install '{requirement(extra)}'"
