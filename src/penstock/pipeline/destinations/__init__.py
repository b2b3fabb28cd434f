"""The destinations that there are, by the name of their list in an export definition."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from penstock.pipeline.destinations.destination import Destination, Export

# The module and the class of each: what one export needs is not imported for another.
_DESTINATIONS = {
    "http": ("http", "HttpDestination"),
    "iot_analytics": ("channel", "ChannelDestination"),
    "iot_sitewise": ("sitewise", "SiteWiseDestination"),
    "kinesis": ("kinesis", "KinesisDestination"),
}


def open_destination(kind: str, export: Export) -> Destination:
    return import_destination(kind)(export)


def import_destination(kind: str) -> Callable[[Export], Destination]:
    """The first time may take a second: boto3 is large."""
    module, name = _DESTINATIONS[kind]
    found: Callable[[Export], Destination] = getattr(
        importlib.import_module(f"{__name__}.{module}"), name
    )
    return found
