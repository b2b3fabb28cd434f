"""Metrics for Prometheus: each of them declared once, read from the broker when it is asked for.

Nothing is counted for their sake: what they tell is what the broker knows of itself anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from penstock.broker.counters import Distribution, ExportTotals
from penstock.broker.server import Broker
from penstock.model import ExportDefinition, MessageStreamDefinition
from penstock.model.statistics import (
    DiskStatistics,
    ExportStatistics,
    Statistics,
    StreamStatistics,
)
from penstock.web.presentation import look_at_disk

MEDIA_TYPE = CONTENT_TYPE_LATEST

_NOTHING = ExportTotals()


Labels = tuple[str, ...]


class Scene(NamedTuple):
    """All that metrics are read from, at one moment."""

    statistics: Statistics
    started: float
    unreadable_streams: int
    # By name: strategy, persistence, whether it flushes.
    stream_labels: Mapping[str, Labels]
    failures: Mapping[str, int]
    tasks: Mapping[str, int]
    disk_free: int
    disk_size: int
    disk: DiskStatistics
    log_records: Mapping[str, int]
    syncs: Distribution
    flushes: Distribution
    export_totals: Mapping[str, ExportTotals]
    connected_pipelines: int
    deliveries: Mapping[str, Distribution]


class Kind(StrEnum):
    counter = "counter"
    gauge = "gauge"
    histogram = "histogram"


Samples = Iterable[tuple[Labels, "float | Distribution"]]


class Declared(NamedTuple):
    """One metric: its name without the suffixes of its kind, and where its values are."""

    name: str
    kind: Kind
    help: str
    read: Callable[[Scene], Samples]
    labels: Labels = ()

    @property
    def shown_name(self) -> str:
        return f"{self.name}_total" if self.kind is Kind.counter else self.name


def _one(read: Callable[[Scene], float | Distribution]) -> Callable[[Scene], Samples]:
    return lambda scene: [((), read(scene))]


def _of_streams(read: Callable[[StreamStatistics], float | None]) -> Callable[[Scene], Samples]:
    def samples(scene: Scene) -> Iterator[tuple[Labels, float]]:
        for stream in scene.statistics.streams:
            value = read(stream)
            if value is not None:
                yield (stream.name,), value

    return samples


def _of_exports(read: Callable[[ExportStatistics], float | None]) -> Callable[[Scene], Samples]:
    def samples(scene: Scene) -> Iterator[tuple[Labels, float]]:
        for stream in scene.statistics.streams:
            for export in stream.exports:
                value = read(export)
                if value is not None:
                    yield (stream.name, export.identifier, export.kind), value

    return samples


def _of_kinds(read: Callable[[ExportTotals], float]) -> Callable[[Scene], Samples]:
    return lambda scene: [((kind,), read(totals)) for kind, totals in scene.export_totals.items()]


def _seconds(millis: int | None) -> float | None:
    return None if millis is None else millis / 1000


_STREAM: Labels = ("stream",)
_EXPORT: Labels = ("stream", "export", "kind")
_counter, _gauge, _histogram = Kind.counter, Kind.gauge, Kind.histogram

DECLARED = (
    Declared(
        "penstock_build_info",
        _gauge,
        "always 1; its label tells the version",
        lambda scene: [((scene.statistics.version,), 1)],
        ("version",),
    ),
    Declared(
        "penstock_start_time_seconds",
        _gauge,
        "when the broker was started, in seconds since 1970",
        _one(lambda scene: scene.started),
    ),
    Declared(
        "penstock_connections",
        _gauge,
        "clients that are connected",
        _one(lambda scene: scene.statistics.connections),
    ),
    Declared(
        "penstock_connections_accepted",
        _counter,
        "connections that were accepted",
        _one(lambda scene: scene.statistics.connections_accepted),
    ),
    Declared(
        "penstock_connections_refused",
        _counter,
        "handshakes that were refused: a wrong token, a protocol that nobody knows, no room",
        _one(lambda scene: scene.statistics.connections_refused),
    ),
    Declared(
        "penstock_connections_dropped",
        _counter,
        "connections that the broker ended: too slow, or not the protocol",
        _one(lambda scene: scene.statistics.connections_dropped),
    ),
    Declared(
        "penstock_descriptor_shortages",
        _counter,
        "how often the system refused the broker a file descriptor",
        _one(lambda scene: scene.statistics.descriptor_shortages),
    ),
    Declared(
        "penstock_requests_failed",
        _counter,
        "requests that were answered with an error, by the name of its status; NotEnoughMessages "
        "is normal: the read timed out before data arrived",
        lambda scene: [((status,), count) for status, count in scene.failures.items()],
        ("status",),
    ),
    Declared(
        "penstock_appended_messages",
        _counter,
        "messages that clients appended",
        _one(lambda scene: scene.statistics.messages_appended),
    ),
    Declared(
        "penstock_appended_bytes",
        _counter,
        "their bytes",
        _one(lambda scene: scene.statistics.bytes_appended),
    ),
    Declared(
        "penstock_read_messages",
        _counter,
        "messages that clients read over the wire",
        _one(lambda scene: scene.statistics.messages_read),
    ),
    Declared(
        "penstock_read_bytes",
        _counter,
        "their bytes",
        _one(lambda scene: scene.statistics.bytes_read),
    ),
    Declared(
        "penstock_waiting_reads",
        _gauge,
        "reads that wait for messages to come",
        _one(lambda scene: sum(each.waiting_reads for each in scene.statistics.streams)),
    ),
    Declared(
        "penstock_sync_seconds",
        _histogram,
        "how long the periodic sync of all streams took",
        _one(lambda scene: scene.syncs),
    ),
    Declared(
        "penstock_flush_seconds",
        _histogram,
        "how long appends to streams with flush on write waited for the disk, as groups",
        _one(lambda scene: scene.flushes),
    ),
    Declared(
        "penstock_disk_free_bytes",
        _gauge,
        "what is free where the root is",
        _one(lambda scene: scene.disk_free),
    ),
    Declared(
        "penstock_disk_size_bytes",
        _gauge,
        "how large that file system is",
        _one(lambda scene: scene.disk_size),
    ),
    Declared(
        "penstock_disk_min_free_bytes",
        _gauge,
        "min_free_disk: with less free, appends to streams in files are refused",
        _one(lambda scene: scene.disk.min_free_bytes),
    ),
    Declared(
        "penstock_disk_low",
        _gauge,
        "1 while appends are refused, because less than min_free_disk is free or the disk is full",
        _one(lambda scene: scene.disk.is_low or scene.disk.is_full),
    ),
    Declared(
        "penstock_disk_refused_messages",
        _counter,
        "messages that were refused because the disk had no space for them",
        _one(lambda scene: scene.disk.refused_messages),
    ),
    Declared(
        "penstock_exports_suspended",
        _gauge,
        "1 while no export is carried out, because progress cannot be stored",
        _one(lambda scene: bool(scene.statistics.exports_suspended)),
    ),
    Declared(
        "penstock_log_records",
        _counter,
        "what the broker logged",
        lambda scene: [((level,), count) for level, count in scene.log_records.items()],
        ("level",),
    ),
    Declared(
        "penstock_streams",
        _gauge,
        "streams that are served",
        _one(lambda scene: len(scene.statistics.streams)),
    ),
    Declared(
        "penstock_streams_unreadable",
        _gauge,
        "streams that cannot be served, because their files are damaged",
        _one(lambda scene: scene.unreadable_streams),
    ),
    Declared(
        "penstock_stream_info",
        _gauge,
        "always 1; its labels tell what a full stream does and where it is kept",
        lambda scene: [((name, *told), 1) for name, told in scene.stream_labels.items()],
        ("stream", "strategy_on_full", "persistence", "flush_on_write"),
    ),
    Declared(
        "penstock_stream_messages",
        _gauge,
        "messages that the stream holds",
        _of_streams(lambda it: it.newest_sequence_number - it.oldest_sequence_number + 1),
        _STREAM,
    ),
    Declared(
        "penstock_stream_bytes",
        _gauge,
        "their bytes",
        _of_streams(lambda stream: stream.total_bytes),
        _STREAM,
    ),
    Declared(
        "penstock_stream_max_bytes",
        _gauge,
        "the maximum size of the stream",
        _of_streams(lambda stream: stream.max_size),
        _STREAM,
    ),
    Declared(
        "penstock_stream_damaged_messages",
        _gauge,
        "messages of the stream that are known to be damaged: found when the broker started, or by "
        "a read since then",
        _of_streams(lambda stream: stream.damaged_messages),
        _STREAM,
    ),
    Declared(
        "penstock_stream_segments",
        _gauge,
        "segments that the stream consists of",
        _of_streams(lambda stream: stream.segments),
        _STREAM,
    ),
    Declared(
        "penstock_stream_appended_messages",
        _counter,
        "messages that were appended since the broker was started",
        _of_streams(lambda stream: stream.messages_appended),
        _STREAM,
    ),
    Declared(
        "penstock_stream_appended_bytes",
        _counter,
        "their bytes",
        _of_streams(lambda stream: stream.bytes_appended),
        _STREAM,
    ),
    Declared(
        "penstock_stream_oldest_message_time_seconds",
        _gauge,
        "when the oldest message was appended, in seconds since 1970",
        _of_streams(lambda stream: _seconds(stream.oldest_time)),
        _STREAM,
    ),
    Declared(
        "penstock_stream_newest_message_time_seconds",
        _gauge,
        "when the newest message was appended",
        _of_streams(lambda stream: _seconds(stream.newest_time)),
        _STREAM,
    ),
    Declared(
        "penstock_stream_waiting_reads",
        _gauge,
        "reads that wait for messages of the stream",
        _of_streams(lambda stream: stream.waiting_reads),
        _STREAM,
    ),
    Declared(
        "penstock_export_lag_messages",
        _gauge,
        "messages that the export has not sent yet",
        _of_exports(lambda export: export.messages_behind),
        _EXPORT,
    ),
    Declared(
        "penstock_export_lag_seconds",
        _gauge,
        "how long the oldest of them has been waiting",
        _of_exports(lambda export: export.seconds_behind),
        _EXPORT,
    ),
    Declared(
        "penstock_export_paused",
        _gauge,
        "1 if the export is disabled",
        _of_exports(lambda export: export.is_paused),
        _EXPORT,
    ),
    Declared(
        "penstock_export_failures_in_a_row",
        _gauge,
        "deliveries that have failed since the last one that got anywhere",
        _of_exports(lambda export: export.failures),
        _EXPORT,
    ),
    Declared(
        "penstock_export_retry_in_seconds",
        _gauge,
        "in how long a failing export is tried again",
        _of_exports(lambda export: _seconds(export.retry_in_millis)),
        _EXPORT,
    ),
    Declared(
        "penstock_export_processed_messages",
        _counter,
        "messages that the export has sent or skipped, since it was made",
        _of_exports(lambda export: export.exported_messages),
        _EXPORT,
    ),
    Declared(
        "penstock_export_skipped_messages",
        _counter,
        "of these, those that the destination never takes",
        _of_exports(lambda export: export.skipped_messages),
        _EXPORT,
    ),
    Declared(
        "penstock_export_lost_messages",
        _counter,
        "messages that the stream dropped before they were exported, because it was full or they "
        "were too old, and those that the disk has damaged; since the broker was started",
        _of_exports(lambda export: export.lost_messages),
        _EXPORT,
    ),
    Declared(
        "penstock_export_bytes",
        _counter,
        "bytes of messages that the export has sent, since it was made",
        _of_exports(lambda export: export.exported_bytes),
        _EXPORT,
    ),
    Declared(
        "penstock_export_last_delivery_time_seconds",
        _gauge,
        "when a delivery was last tried, in seconds since 1970",
        _of_exports(lambda export: _seconds(export.last_export_time)),
        _EXPORT,
    ),
    Declared(
        "penstock_deliveries",
        _counter,
        "deliveries, of all exports of a kind",
        _of_kinds(lambda totals: totals.deliveries),
        ("kind",),
    ),
    Declared(
        "penstock_delivery_failures",
        _counter,
        "deliveries that failed",
        _of_kinds(lambda totals: totals.failures),
        ("kind",),
    ),
    Declared(
        "penstock_sent_bytes",
        _counter,
        "bytes that were put on the wire, in vain or not; for S3 those of the files",
        _of_kinds(lambda totals: totals.sent_bytes),
        ("kind",),
    ),
    Declared(
        "penstock_s3_tasks",
        _counter,
        "what was told of S3 tasks, by status",
        lambda scene: [((status,), count) for status, count in scene.tasks.items()],
        ("status",),
    ),
    Declared(
        "penstock_pipelines",
        _gauge,
        "pipelines that are connected: without one nothing is exported",
        _one(lambda scene: scene.connected_pipelines),
    ),
    Declared(
        "penstock_delivery_seconds",
        _histogram,
        "how long deliveries took, from the lease of their messages to the last report",
        lambda scene: [((kind,), found) for kind, found in scene.deliveries.items()],
        ("kind",),
    ),
)

# Of the original, in its namespace aws.greengrass.StreamManager.
TELEMETRY = {
    "BytesAppended": "penstock_appended_bytes_total",
    "BytesUploadedToKinesis": 'penstock_sent_bytes_total{kind="kinesis"}',
    "BytesUploadedToIoTSiteWise": 'penstock_sent_bytes_total{kind="iot_sitewise"}',
    "BytesUploadedToIoTAnalytics": 'penstock_sent_bytes_total{kind="iot_analytics"}',
    "BytesUploadedToS3": 'penstock_sent_bytes_total{kind="s3_task_executor"}',
    "BytesUploadedToS3ExportTaskExecutor": 'penstock_sent_bytes_total{kind="s3_task_executor"}',
    "BytesUploadedToHTTP": 'penstock_sent_bytes_total{kind="http"}',
}


def look(
    broker: Broker,
    statistics: Statistics,
    log_records: Mapping[str, int],
    sees: Callable[[str], bool],
) -> Scene:
    """From the event loop; what is made of it may be made in a thread."""
    free, size = look_at_disk(broker.settings.root_path)
    return Scene(
        statistics=msgspec.structs.replace(
            statistics, streams=[each for each in statistics.streams if sees(each.name)]
        ),
        started=broker.started_millis / 1000,
        unreadable_streams=len(broker.streams.unreadable),
        stream_labels={
            stream.name: _labels_of(stream.definition)
            for stream in broker.streams
            if sees(stream.name)
        },
        failures=dict(broker.counters.failures),
        tasks=dict(broker.recent_tasks.counts),
        disk_free=free,
        disk_size=size,
        disk=broker.statistics_of_disk(),
        log_records=dict(log_records),
        syncs=broker.counters.syncs.snapshot(),
        flushes=broker.counters.flushes.snapshot(),
        # Also those of which nothing was sent: a count is to begin with 0.
        export_totals={
            kind: broker.exports.totals.get(kind, _NOTHING)
            for kind in ExportDefinition.__struct_fields__
        },
        connected_pipelines=sum(each.is_connected for each in broker.pipelines),
        deliveries={
            kind: durations.snapshot() for kind, durations in broker.pipelines.durations.items()
        },
    )


def _labels_of(definition: MessageStreamDefinition) -> Labels:
    return (
        definition.strategy_on_full.name,
        definition.persistence.name,
        str(definition.flush_on_write).lower(),
    )


class _Snapshot(Collector):
    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def collect(self) -> Iterator[Metric]:
        for declared in DECLARED:
            yield _family(declared, declared.read(self._scene))


def _family(declared: Declared, samples: Samples) -> Metric:
    named = declared.name, declared.help
    family: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
    match declared.kind:
        case Kind.counter:
            family = CounterMetricFamily(*named, labels=declared.labels)
        case Kind.gauge:
            family = GaugeMetricFamily(*named, labels=declared.labels)
        case Kind.histogram:
            family = HistogramMetricFamily(*named, labels=declared.labels)
    for labels, value in samples:
        if isinstance(value, Distribution):
            assert isinstance(family, HistogramMetricFamily)
            family.add_metric(labels, _buckets(value), value.sum)
        else:
            assert not isinstance(family, HistogramMetricFamily)
            family.add_metric(labels, value)
    return family


def _buckets(found: Distribution) -> list[tuple[str, float]]:
    total = 0
    buckets = []
    for bound, count in zip((*found.bounds, float("inf")), found.counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
    return buckets


def render(scene: Scene) -> bytes:
    """The text that Prometheus reads."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(scene))
    # Its own: processor time, memory, open files.
    ProcessCollector(registry=registry)
    return generate_latest(registry)
