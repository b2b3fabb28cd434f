"""Penstock, an open stream manager for the edge.

The package has the names of `penstock.sdk` and loads them on first use: a broker needs no client,
and commands start faster without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from penstock.sdk import *  # noqa: F403
else:
    # Modules that `import` of the AWS SDK makes available.
    _MODULES = frozenset(("data", "exceptions", "streammanagerclient", "util"))

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"penstock.{name}")
        try:
            return getattr(importlib.import_module("penstock.sdk"), name)
        except AttributeError:
            raise AttributeError(f"module 'penstock' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *importlib.import_module("penstock.sdk").__all__})
