"""Metrics for Prometheus. Each is declared once, and read from the broker's statistics."""

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
from penstock.web.presentation import measure_disk

MEDIA_TYPE = CONTENT_TYPE_LATEST

_NO_TOTALS = ExportTotals()


Labels = tuple[str, ...]


class MetricsSnapshot(NamedTuple):
    """The values that metrics are read from, at one time."""

    statistics: Statistics
    started: float
    unreadable_streams: int
    # By name of the stream: strategy on full, persistence, flush on write.
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


class DeclaredMetric(NamedTuple):
    """A metric: its name without the suffix of its kind, and a function that reads its values."""

    name: str
    kind: Kind
    help: str
    read: Callable[[MetricsSnapshot], Samples]
    labels: Labels = ()

    @property
    def shown_name(self) -> str:
        return f"{self.name}_total" if self.kind is Kind.counter else self.name


def _single(
    read: Callable[[MetricsSnapshot], float | Distribution],
) -> Callable[[MetricsSnapshot], Samples]:
    return lambda snapshot: [((), read(snapshot))]


def _per_stream(
    read: Callable[[StreamStatistics], float | None],
) -> Callable[[MetricsSnapshot], Samples]:
    def samples(snapshot: MetricsSnapshot) -> Iterator[tuple[Labels, float]]:
        for stream in snapshot.statistics.streams:
            value = read(stream)
            if value is not None:
                yield (stream.name,), value

    return samples


def _per_export(
    read: Callable[[ExportStatistics], float | None],
) -> Callable[[MetricsSnapshot], Samples]:
    def samples(snapshot: MetricsSnapshot) -> Iterator[tuple[Labels, float]]:
        for stream in snapshot.statistics.streams:
            for export in stream.exports:
                value = read(export)
                if value is not None:
                    yield (stream.name, export.identifier, export.kind), value

    return samples


def _per_kind(read: Callable[[ExportTotals], float]) -> Callable[[MetricsSnapshot], Samples]:
    return lambda snapshot: [
        ((kind,), read(totals)) for kind, totals in snapshot.export_totals.items()
    ]


def _seconds(millis: int | None) -> float | None:
    return None if millis is None else millis / 1000


_STREAM: Labels = ("stream",)
_EXPORT: Labels = ("stream", "export", "kind")
_counter, _gauge, _histogram = Kind.counter, Kind.gauge, Kind.histogram

DECLARED = (
    DeclaredMetric(
        "penstock_build_info",
        _gauge,
        "Always 1; the label has the version",
        lambda snapshot: [((snapshot.statistics.version,), 1)],
        ("version",),
    ),
    DeclaredMetric(
        "penstock_start_time_seconds",
        _gauge,
        "Start time of the broker, in seconds since 1970",
        _single(lambda snapshot: snapshot.started),
    ),
    DeclaredMetric(
        "penstock_connections",
        _gauge,
        "Connected clients",
        _single(lambda snapshot: snapshot.statistics.connections),
    ),
    DeclaredMetric(
        "penstock_connections_accepted",
        _counter,
        "Connections accepted",
        _single(lambda snapshot: snapshot.statistics.connections_accepted),
    ),
    DeclaredMetric(
        "penstock_connections_refused",
        _counter,
        "Handshakes refused: wrong token, unknown protocol version, or too many connections",
        _single(lambda snapshot: snapshot.statistics.connections_refused),
    ),
    DeclaredMetric(
        "penstock_connections_dropped",
        _counter,
        "Connections closed by the broker: the client was too slow or violated the protocol",
        _single(lambda snapshot: snapshot.statistics.connections_dropped),
    ),
    DeclaredMetric(
        "penstock_descriptor_shortages",
        _counter,
        "Failures to open a file or accept a connection for lack of file descriptors",
        _single(lambda snapshot: snapshot.statistics.descriptor_shortages),
    ),
    DeclaredMetric(
        "penstock_requests_failed",
        _counter,
        "Requests answered with an error, by status; NotEnoughMessages is normal: the read timed "
        "out before data arrived",
        lambda snapshot: [((status,), count) for status, count in snapshot.failures.items()],
        ("status",),
    ),
    DeclaredMetric(
        "penstock_appended_messages",
        _counter,
        "Messages appended by clients",
        _single(lambda snapshot: snapshot.statistics.messages_appended),
    ),
    DeclaredMetric(
        "penstock_appended_bytes",
        _counter,
        "Bytes of the messages appended by clients",
        _single(lambda snapshot: snapshot.statistics.bytes_appended),
    ),
    DeclaredMetric(
        "penstock_read_messages",
        _counter,
        "Messages read by clients over the protocol",
        _single(lambda snapshot: snapshot.statistics.messages_read),
    ),
    DeclaredMetric(
        "penstock_read_bytes",
        _counter,
        "Bytes of the messages read by clients over the protocol",
        _single(lambda snapshot: snapshot.statistics.bytes_read),
    ),
    DeclaredMetric(
        "penstock_waiting_reads",
        _gauge,
        "Reads that wait for new messages",
        _single(lambda snapshot: sum(each.waiting_reads for each in snapshot.statistics.streams)),
    ),
    DeclaredMetric(
        "penstock_sync_seconds",
        _histogram,
        "Duration of the periodic sync of all streams",
        _single(lambda snapshot: snapshot.syncs),
    ),
    DeclaredMetric(
        "penstock_flush_seconds",
        _histogram,
        "Duration of flushes for streams with flush on write; concurrent appends share a flush",
        _single(lambda snapshot: snapshot.flushes),
    ),
    DeclaredMetric(
        "penstock_disk_free_bytes",
        _gauge,
        "Free bytes of the file system that holds the root directory",
        _single(lambda snapshot: snapshot.disk_free),
    ),
    DeclaredMetric(
        "penstock_disk_size_bytes",
        _gauge,
        "Size of the file system that holds the root directory",
        _single(lambda snapshot: snapshot.disk_size),
    ),
    DeclaredMetric(
        "penstock_disk_min_free_bytes",
        _gauge,
        "The setting min_free_disk: with fewer free bytes, appends to streams on disk are refused",
        _single(lambda snapshot: snapshot.disk.min_free_bytes),
    ),
    DeclaredMetric(
        "penstock_disk_low",
        _gauge,
        "1 while appends are refused because less than min_free_disk is free or the disk is full",
        _single(lambda snapshot: snapshot.disk.is_low or snapshot.disk.is_full),
    ),
    DeclaredMetric(
        "penstock_disk_refused_messages",
        _counter,
        "Messages refused for lack of disk space",
        _single(lambda snapshot: snapshot.disk.refused_messages),
    ),
    DeclaredMetric(
        "penstock_exports_suspended",
        _gauge,
        "1 while all exports are suspended because their progress cannot be stored",
        _single(lambda snapshot: bool(snapshot.statistics.exports_suspended)),
    ),
    DeclaredMetric(
        "penstock_log_records",
        _counter,
        "Log records of the broker, by level",
        lambda snapshot: [((level,), count) for level, count in snapshot.log_records.items()],
        ("level",),
    ),
    DeclaredMetric(
        "penstock_streams",
        _gauge,
        "Streams served",
        _single(lambda snapshot: len(snapshot.statistics.streams)),
    ),
    DeclaredMetric(
        "penstock_streams_unreadable",
        _gauge,
        "Streams that cannot be served because their files are damaged",
        _single(lambda snapshot: snapshot.unreadable_streams),
    ),
    DeclaredMetric(
        "penstock_stream_info",
        _gauge,
        "Always 1; the labels have settings of the stream",
        lambda snapshot: [((name, *labels), 1) for name, labels in snapshot.stream_labels.items()],
        ("stream", "strategy_on_full", "persistence", "flush_on_write"),
    ),
    DeclaredMetric(
        "penstock_stream_messages",
        _gauge,
        "Messages stored in the stream",
        _per_stream(lambda it: it.newest_sequence_number - it.oldest_sequence_number + 1),
        _STREAM,
    ),
    DeclaredMetric(
        "penstock_stream_bytes",
        _gauge,
        "Bytes of the messages stored in the stream",
        _per_stream(lambda stream: stream.total_bytes),
        _STREAM,
    ),
    DeclaredMetric(
        "penstock_stream_max_bytes",
        _gauge,
        "Maximum size of the stream",
        _per_stream(lambda stream: stream.max_size),
        _STREAM,
    ),
    DeclaredMetric(
        "penstock_stream_damaged_messages",
        _gauge,
        "Damaged messages of the stream, found at the start of the broker or by a read",
        _per_stream(lambda stream: stream.damaged_messages),
        _STREAM,
    ),
    DeclaredMetric(
        "penstock_stream_segments",
        _gauge,
        "Segments of the stream",
        _per_stream(lambda stream: stream.segments),
        _STREAM,
    ),
    DeclaredMetric(
        "penstock_stream_appended_messages",
        _counter,
        "Messages appended to the stream",
        _per_stream(lambda stream: stream.messages_appended),
        _STREAM,
    ),
    DeclaredMetric(
        "penstock_stream_appended_bytes",
        _counter,
        "Bytes of the messages appended to the stream",
        _per_stream(lambda stream: stream.bytes_appended),
        _STREAM,
    ),
    DeclaredMetric(
        "penstock_stream_oldest_message_time_seconds",
        _gauge,
        "Time when the oldest stored message was appended, in seconds since 1970",
        _per_stream(lambda stream: _seconds(stream.oldest_time)),
        _STREAM,
    ),
    DeclaredMetric(
        "penstock_stream_newest_message_time_seconds",
        _gauge,
        "Time when the newest message was appended, in seconds since 1970",
        _per_stream(lambda stream: _seconds(stream.newest_time)),
        _STREAM,
    ),
    DeclaredMetric(
        "penstock_stream_waiting_reads",
        _gauge,
        "Reads that wait for new messages of the stream",
        _per_stream(lambda stream: stream.waiting_reads),
        _STREAM,
    ),
    DeclaredMetric(
        "penstock_export_lag_messages",
        _gauge,
        "Messages that are not exported yet",
        _per_export(lambda export: export.messages_behind),
        _EXPORT,
    ),
    DeclaredMetric(
        "penstock_export_lag_seconds",
        _gauge,
        "Age of the oldest message that is not exported yet",
        _per_export(lambda export: export.seconds_behind),
        _EXPORT,
    ),
    DeclaredMetric(
        "penstock_export_paused",
        _gauge,
        "1 while the export is paused (disabled in its definition)",
        _per_export(lambda export: export.is_paused),
        _EXPORT,
    ),
    DeclaredMetric(
        "penstock_export_failures_in_a_row",
        _gauge,
        "Failed deliveries since the latest delivery with progress",
        _per_export(lambda export: export.failures),
        _EXPORT,
    ),
    DeclaredMetric(
        "penstock_export_retry_in_seconds",
        _gauge,
        "Time until the next retry of a failing export",
        _per_export(lambda export: _seconds(export.retry_in_millis)),
        _EXPORT,
    ),
    DeclaredMetric(
        "penstock_export_processed_messages",
        _counter,
        "Messages exported or skipped since the export was created",
        _per_export(lambda export: export.exported_messages),
        _EXPORT,
    ),
    DeclaredMetric(
        "penstock_export_skipped_messages",
        _counter,
        "Messages skipped because the destination rejects them permanently; since the export was "
        "created",
        _per_export(lambda export: export.skipped_messages),
        _EXPORT,
    ),
    DeclaredMetric(
        "penstock_export_lost_messages",
        _counter,
        "Messages evicted by size or age, or damaged on disk, before they were exported; since the "
        "broker started",
        _per_export(lambda export: export.lost_messages),
        _EXPORT,
    ),
    DeclaredMetric(
        "penstock_export_bytes",
        _counter,
        "Bytes of the messages exported since the export was created",
        _per_export(lambda export: export.exported_bytes),
        _EXPORT,
    ),
    DeclaredMetric(
        "penstock_export_last_delivery_time_seconds",
        _gauge,
        "Time of the latest delivery attempt, in seconds since 1970",
        _per_export(lambda export: _seconds(export.last_export_time)),
        _EXPORT,
    ),
    DeclaredMetric(
        "penstock_deliveries",
        _counter,
        "Deliveries attempted, by kind of export",
        _per_kind(lambda totals: totals.deliveries),
        ("kind",),
    ),
    DeclaredMetric(
        "penstock_delivery_failures",
        _counter,
        "Deliveries that failed, by kind of export",
        _per_kind(lambda totals: totals.failures),
        ("kind",),
    ),
    DeclaredMetric(
        "penstock_sent_bytes",
        _counter,
        "Bytes sent to destinations, including failed deliveries; for S3 the bytes of files",
        _per_kind(lambda totals: totals.sent_bytes),
        ("kind",),
    ),
    DeclaredMetric(
        "penstock_s3_tasks",
        _counter,
        "Status changes of S3 tasks, by status",
        lambda snapshot: [((status,), count) for status, count in snapshot.tasks.items()],
        ("status",),
    ),
    DeclaredMetric(
        "penstock_pipelines",
        _gauge,
        "Connected pipelines; without a pipeline nothing is exported",
        _single(lambda snapshot: snapshot.connected_pipelines),
    ),
    DeclaredMetric(
        "penstock_delivery_seconds",
        _histogram,
        "Duration of deliveries, from the lease of their messages to the final report",
        lambda snapshot: [((kind,), found) for kind, found in snapshot.deliveries.items()],
        ("kind",),
    ),
)

# Metrics of Stream Manager in the namespace aws.greengrass.StreamManager, and their equivalents.
TELEMETRY = {
    "BytesAppended": "penstock_appended_bytes_total",
    "BytesUploadedToKinesis": 'penstock_sent_bytes_total{kind="kinesis"}',
    "BytesUploadedToIoTSiteWise": 'penstock_sent_bytes_total{kind="iot_sitewise"}',
    "BytesUploadedToIoTAnalytics": 'penstock_sent_bytes_total{kind="iot_analytics"}',
    "BytesUploadedToS3": 'penstock_sent_bytes_total{kind="s3_task_executor"}',
    "BytesUploadedToS3ExportTaskExecutor": 'penstock_sent_bytes_total{kind="s3_task_executor"}',
    "BytesUploadedToHTTP": 'penstock_sent_bytes_total{kind="http"}',
}


def collect(
    broker: Broker,
    statistics: Statistics,
    log_records: Mapping[str, int],
    sees: Callable[[str], bool],
) -> MetricsSnapshot:
    """Takes a snapshot, in the event loop. Any thread may render it."""
    free, size = measure_disk(broker.settings.root_path)
    return MetricsSnapshot(
        statistics=msgspec.structs.replace(
            statistics, streams=[each for each in statistics.streams if sees(each.name)]
        ),
        started=broker.started_millis / 1000,
        unreadable_streams=len(broker.streams.unreadable),
        stream_labels={
            stream.name: _stream_labels(stream.definition)
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
        # All kinds, so that the counters of unused kinds start at 0.
        export_totals={
            kind: broker.exports.totals.get(kind, _NO_TOTALS)
            for kind in ExportDefinition.__struct_fields__
        },
        connected_pipelines=sum(each.is_connected for each in broker.pipelines),
        deliveries={
            kind: durations.snapshot() for kind, durations in broker.pipelines.durations.items()
        },
    )


def _stream_labels(definition: MessageStreamDefinition) -> Labels:
    return (
        definition.strategy_on_full.name,
        definition.persistence.name,
        str(definition.flush_on_write).lower(),
    )


class _SnapshotCollector(Collector):
    def __init__(self, snapshot: MetricsSnapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        for declared in DECLARED:
            yield _family(declared, declared.read(self._snapshot))


def _family(declared: DeclaredMetric, samples: Samples) -> Metric:
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


def render(snapshot: MetricsSnapshot) -> bytes:
    """Returns the text that Prometheus reads."""
    registry = CollectorRegistry()
    registry.register(_SnapshotCollector(snapshot))
    # Metrics of the process: processor time, memory, open files.
    ProcessCollector(registry=registry)
    return generate_latest(registry)
