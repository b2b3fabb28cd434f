"""The registry of destinations, by kind of export.

A kind is the name of a field of `ExportDefinition`, such as `iot_sitewise`. The broker sends it
with each slice. S3 tasks are not in the registry: `penstock.pipeline.uploads` delivers them.
`docs/exports.md` lists the other changes for a new destination.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from penstock.pipeline.destinations.destination import Destination, ExportContext

# A module of this package, and its class. Modules are imported on first use, because the import of
# boto3 takes a second.
DESTINATIONS = {
    "http": ("http", "HttpDestination"),
    "iot_analytics": ("channel", "ChannelDestination"),
    "iot_sitewise": ("sitewise", "SiteWiseDestination"),
    "kinesis": ("kinesis", "KinesisDestination"),
}


def import_destination(kind: str) -> Callable[[ExportContext], Destination]:
    """The class of the destination of this kind."""
    module, name = DESTINATIONS[kind]
    imported = importlib.import_module(f"{__name__}.{module}")
    found: Callable[[ExportContext], Destination] = getattr(imported, name)
    return found
