"""All destinations, by the name of their list in an export definition."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from penstock.pipeline.destinations.destination import Destination, Export

# Module and class. Modules are imported when an export needs them.
_DESTINATIONS = {
    "http": ("http", "HttpDestination"),
    "iot_analytics": ("channel", "ChannelDestination"),
    "iot_sitewise": ("sitewise", "SiteWiseDestination"),
    "kinesis": ("kinesis", "KinesisDestination"),
}


def open_destination(kind: str, export: Export) -> Destination:
    return import_destination(kind)(export)


def import_destination(kind: str) -> Callable[[Export], Destination]:
    """The first import may take a second: boto3 is large."""
    module, name = _DESTINATIONS[kind]
    found: Callable[[Export], Destination] = getattr(
        importlib.import_module(f"{__name__}.{module}"), name
    )
    return found
