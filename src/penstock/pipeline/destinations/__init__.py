"""All destinations, by the name of their list in an export definition."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from penstock.pipeline.destinations.destination import Destination, ExportContext

# Module and class. A module is imported when the first export needs it: boto3 takes a second.
_DESTINATIONS = {
    "http": ("http", "HttpDestination"),
    "iot_analytics": ("channel", "ChannelDestination"),
    "iot_sitewise": ("sitewise", "SiteWiseDestination"),
    "kinesis": ("kinesis", "KinesisDestination"),
}


def import_destination(kind: str) -> Callable[[ExportContext], Destination]:
    module, name = _DESTINATIONS[kind]
    imported = importlib.import_module(f"{__name__}.{module}")
    found: Callable[[ExportContext], Destination] = getattr(imported, name)
    return found
