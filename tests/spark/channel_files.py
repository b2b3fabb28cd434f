"""Files of a channel, written as an export writes them."""

from __future__ import annotations

from pathlib import Path

from penstock.model import IoTAnalyticsConfig
from penstock.pipeline.delivery import MessageDelivery, StopSignal
from penstock.pipeline.destinations.channel import ChannelDestination
from penstock.pipeline.destinations.destination import DestinationSettings, ExportContext, Messages

NOON = 1_767_268_800_000
DAY = 86_400_000


def fill(root: Path, channel: str, first: int, end: int, stream: str = "turbine") -> None:
    """Exports messages of three days to a channel."""
    config = IoTAnalyticsConfig(identifier="e", iot_channel=channel)
    export = ExportContext(stream, stream, config, DestinationSettings(), str(root), 10.0)
    destination = ChannelDestination(export)
    numbers = range(first, end)
    times = [NOON + number * 3 // (end - first) * DAY for number in numbers]
    messages = Messages(stream, first, numbers, times, [str(n).encode() for n in numbers])
    delivery = MessageDelivery(destination, messages, end, StopSignal())
    delivery.run()
    assert delivery.totals().settled_end == end
