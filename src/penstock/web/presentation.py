"""The state of the broker as JSON objects, with the field names of the HTTP API."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from penstock.broker.exports.pipelines import Assignment, FinishedDelivery, Pipeline, PipelineTask
from penstock.broker.server import Broker
from penstock.broker.streams import Stream
from penstock.model import ExportConfig
from penstock.model.export_definition import CONFIG_OF_KIND, hide_user
from penstock.model.statistics import ExportStatistics, Statistics, StreamStatistics
from penstock.model.validation import to_wire
from penstock.web.authorization import Permissions
from penstock.web.history import History

JsonObject = dict[str, Any]

_SHOWN_RATES = {
    "messages_appended": "messagesAppended",
    "bytes_appended": "bytesAppended",
    "messages_read": "messagesRead",
    "bytes_read": "bytesRead",
    "messages_exported": "messagesExported",
    "bytes_exported": "bytesExported",
}


def render_overview(
    broker: Broker, statistics: Statistics, history: History, permissions: Permissions
) -> JsonObject:
    totals = broker.exports.totals.values()
    seen = [stream for stream in statistics.streams if permissions.sees(stream.name)]
    disk = measure_disk(broker.settings.root_path)
    space = broker.statistics_of_disk()
    return {
        "now": statistics.time,
        "version": statistics.version,
        "startedAt": broker.started_millis,
        "root": broker.settings.root,
        "access": {
            "role": permissions.role,
            "mayReadMessages": permissions.may_read_messages,
            "mayChange": permissions.may_change,
        },
        "connections": statistics.connections,
        "waitingReads": sum(stream.waiting_reads for stream in seen),
        "totals": {
            "messagesAppended": statistics.messages_appended,
            "bytesAppended": statistics.bytes_appended,
            "messagesRead": statistics.messages_read,
            "bytesRead": statistics.bytes_read,
            "messagesExported": sum(each.messages for each in totals),
            "bytesExported": sum(each.bytes for each in totals),
            "messagesSkipped": sum(each.skipped_messages for each in totals),
            "requestsFailed": statistics.requests_failed,
            "connectionsAccepted": statistics.connections_accepted,
            "connectionsRefused": statistics.connections_refused,
            "connectionsDropped": statistics.connections_dropped,
        },
        "rates": _rates(history.rates(), *_SHOWN_RATES),
        "store": {
            "totalBytes": sum(stream.total_bytes for stream in seen),
            "maxBytes": sum(stream.max_size for stream in seen),
            "segments": sum(stream.segments for stream in seen),
            "diskFreeBytes": disk[0],
            "diskTotalBytes": disk[1],
            "diskMinFreeBytes": space.min_free_bytes,
            "refusesAppends": space.is_low or space.is_full,
            "refusedMessages": space.refused_messages,
        },
        "exportsSuspended": broker.exports.suspension,
        "pipelines": [render_pipeline(each) for each in broker.pipelines],
        "streams": [
            *(
                render_stream(broker.streams.find(each.name), each, history)
                for each in sorted(seen, key=lambda stream: stream.name)
            ),
            *(
                _render_unreadable_stream(name, problem)
                for name, problem in broker.streams.unreadable.items()
                if permissions.sees(name)
            ),
        ],
    }


def measure_disk(root: Path) -> tuple[int, int]:
    """Returns the free and the total bytes of the file system."""
    found = os.statvfs(root)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def _rates(rates: dict[str, float], *names: str) -> JsonObject:
    return {_SHOWN_RATES[name]: round(rates[name], 2) for name in names}


def render_stream(stream: Stream, statistics: StreamStatistics, history: History) -> JsonObject:
    definition, found = stream.definition, statistics
    configs = {config.identifier: config for config in definition.exports()}
    rates = history.rates(found.name)
    return {
        "name": found.name,
        "problem": None,
        "persistence": definition.persistence.name,
        "strategyOnFull": definition.strategy_on_full.name,
        "flushOnWrite": definition.flush_on_write,
        "maxSize": found.max_size,
        "segmentSize": definition.stream_segment_size,
        "timeToLiveMillis": definition.time_to_live_millis,
        "oldestSequenceNumber": found.oldest_sequence_number,
        "newestSequenceNumber": found.newest_sequence_number,
        "messages": found.newest_sequence_number - found.oldest_sequence_number + 1,
        "totalBytes": found.total_bytes,
        "segments": found.segments,
        "waitingReads": found.waiting_reads,
        "damagedMessages": found.damaged_messages,
        "damage": found.damage,
        "oldestTime": found.oldest_time,
        "newestTime": found.newest_time,
        "rates": _rates(rates, "messages_appended", "bytes_appended", "messages_exported"),
        "exports": [
            _render_export(
                each, configs[each.identifier], history.exports.rate(found.name, each.identifier)
            )
            for each in found.exports
        ],
    }


def _render_unreadable_stream(name: str, problem: str) -> JsonObject:
    return {
        "name": name,
        "problem": problem,
        "persistence": "File",
        "strategyOnFull": None,
        "flushOnWrite": False,
        "maxSize": 0,
        "segmentSize": 0,
        "timeToLiveMillis": None,
        "oldestSequenceNumber": 0,
        "newestSequenceNumber": -1,
        "messages": 0,
        "totalBytes": 0,
        "segments": 0,
        "waitingReads": 0,
        "damagedMessages": 0,
        "damage": "",
        "oldestTime": None,
        "newestTime": None,
        "rates": dict.fromkeys(("messagesAppended", "bytesAppended", "messagesExported"), 0.0),
        "exports": [],
    }


def _render_export(found: ExportStatistics, config: ExportConfig, rate: float) -> JsonObject:
    return {
        "identifier": found.identifier,
        "kind": found.kind,
        "destination": config.destination,
        "priority": config.priority,
        "isPaused": found.is_paused,
        "state": found.state,
        "lastExportedSequenceNumber": found.last_exported_sequence_number,
        "messagesBehind": found.messages_behind,
        "secondsBehind": found.seconds_behind,
        "lastExportTime": found.last_export_time,
        "errorMessage": found.error_message,
        "failures": found.failures,
        "retryInMillis": found.retry_in_millis,
        "exportedMessages": found.exported_messages,
        "exportedBytes": found.exported_bytes,
        "skippedMessages": found.skipped_messages,
        "lostMessages": found.lost_messages,
        "rates": {"messagesExported": round(rate, 2)},
    }


def render_definition(stream: Stream) -> JsonObject:
    """The definition as a client would send it, without passwords."""
    plain: JsonObject = to_wire(stream.describe().definition)
    for configs in plain["exportDefinition"].values():
        for config in configs:
            if "uri" in config:
                config["uri"] = hide_user(config["uri"])
    return plain


def render_pipeline(pipeline: Pipeline) -> JsonObject:
    about = pipeline.about
    return {
        "id": pipeline.name,
        "isConnected": pipeline.is_connected,
        "lastSeen": pipeline.last_seen,
        "startedAt": about.started if about else None,
        "sparkVersion": about.spark_version if about else None,
        "master": about.master if about else None,
        "sparkPage": about.spark_page if about else None,
    }


def render_task(task: PipelineTask, permissions: Permissions) -> JsonObject:
    """A task and its current work on visible streams."""
    # A disconnected task may reconnect and continue, but its current state is unknown.
    assignments = task.assignments.values() if task.is_connected else ()
    return {
        "id": task.name,
        "isConnected": task.is_connected,
        "startedAt": task.started,
        "lastSeen": task.last_seen,
        "deliveries": task.deliveries,
        "messages": task.messages,
        "assignments": [
            _render_assignment(each) for each in assignments if permissions.sees(each.work.stream)
        ],
        "otherAssignments": sum(not permissions.sees(each.work.stream) for each in assignments),
    }


def _render_assignment(assignment: Assignment) -> JsonObject:
    work = assignment.work
    return {
        "lease": work.lease,
        "kind": assignment.kind,
        "kindLabel": CONFIG_OF_KIND[assignment.kind].label,
        "stream": work.stream,
        "exportIdentifier": work.identifier,
        "startedAt": assignment.started,
        "messages": assignment.messages,
    }


def render_delivery(delivery: FinishedDelivery) -> JsonObject:
    return {
        "pipeline": delivery.holder.pipeline,
        "task": delivery.holder.task,
        "lease": delivery.lease,
        "kind": delivery.kind,
        "kindLabel": CONFIG_OF_KIND[delivery.kind].label,
        "stream": delivery.stream,
        "exportIdentifier": delivery.identifier,
        "startedAt": delivery.started,
        "durationMillis": round(delivery.seconds * 1000, 1),
        "messages": delivery.messages,
        "error": delivery.error,
    }
