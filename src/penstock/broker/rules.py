"""Checks of definitions that involve several fields or streams: pure functions that raise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.broker.moves import start_of
from penstock.errors import InvalidRequestException, UpdateNotAllowedException
from penstock.model import MessageStreamDefinition, S3ExportTaskExecutorConfig


def check_definition(
    definition: MessageStreamDefinition,
    existing: Mapping[str, MessageStreamDefinition],
    min_part_bytes: int,
) -> None:
    """Checks a definition that is created or updated."""
    definition.validate_exports()
    for export in definition.export_definition.s3_task_executor or ():
        where = f"definition.exportDefinition.s3TaskExecutor {export.identifier!r}: "
        _check_threshold(where, export, min_part_bytes)
        status_stream = _status_stream_of(export)
        if status_stream is not None:
            _check_status_stream(where, status_stream, definition.name, existing)


def _check_threshold(where: str, export: S3ExportTaskExecutorConfig, min_part_bytes: int) -> None:
    threshold = export.size_threshold_for_multipart_upload_bytes
    if threshold is not None and threshold < min_part_bytes:
        raise InvalidRequestException(
            f"{where}sizeThresholdForMultipartUploadBytes is {threshold}: it must be at least the "
            f"server's minimum part size, {min_part_bytes}"
        )


def _check_status_stream(
    where: str, status_stream: str, name: str, existing: Mapping[str, MessageStreamDefinition]
) -> None:
    if status_stream == name:
        raise InvalidRequestException(
            f"{where}the status stream is the stream itself: each status would be a task with a "
            "status of its own, in an endless loop; name another stream"
        )
    if status_stream not in existing:
        raise InvalidRequestException(
            f"{where}the status stream {status_stream!r} does not exist; create it first"
        )
    if name in _status_streams_from(status_stream, existing):
        raise InvalidRequestException(
            f"{where}the status streams of {status_stream!r} lead back to {name!r}: each status "
            "would be a task with a status of its own, in an endless loop"
        )


def _status_streams_from(
    name: str, existing: Mapping[str, MessageStreamDefinition]
) -> Iterator[str]:
    """The status streams of a stream, directly and through other status streams."""
    found, unseen = {name}, [name]
    while unseen:
        definition = existing.get(unseen.pop())
        exports = definition.export_definition.s3_task_executor if definition is not None else None
        for status_stream in map(_status_stream_of, exports or ()):
            if status_stream is not None and status_stream not in found:
                found.add(status_stream)
                unseen.append(status_stream)
                yield status_stream


def _status_stream_of(export: S3ExportTaskExecutorConfig) -> str | None:
    return export.status_config.status_stream_name if export.status_config is not None else None


def names_status_stream(definition: MessageStreamDefinition) -> bool:
    exports = definition.export_definition.s3_task_executor or ()
    return any(_status_stream_of(export) is not None for export in exports)


def check_update(
    current: MessageStreamDefinition,
    wanted: MessageStreamDefinition,
    total_bytes: int,
    newest: int,
) -> None:
    """Checks a definition that replaces another one."""
    if wanted.persistence is not current.persistence:
        raise UpdateNotAllowedException(
            f"definition.persistence is {wanted.persistence.name}: it cannot change, and the "
            f"stream was created with {current.persistence.name}"
        )
    if wanted.max_size < total_bytes:
        raise InvalidRequestException(
            f"definition.maxSize is {wanted.max_size}: it must be at least the current size of "
            f"the stream, {total_bytes}"
        )
    max_size, segment_size = wanted.max_size, wanted.stream_segment_size
    if segment_size != current.stream_segment_size and segment_size >= max_size:
        raise InvalidRequestException(
            f"definition.streamSegmentSize is {segment_size}: it must be less than maxSize, "
            f"{max_size}"
        )
    if max_size != current.max_size and max_size < segment_size:
        raise InvalidRequestException(
            f"definition.maxSize is {max_size}: it must be at least streamSegmentSize, "
            f"{segment_size}"
        )
    known = {export.identifier: start_of(export) for export in current.exports()}
    for export in wanted.exports():
        start = start_of(export)
        # An unchanged start was checked when it was set.
        if start and start != known.get(export.identifier) and start >= newest:
            raise InvalidRequestException(
                f"definition.exportDefinition {export.identifier!r}: startSequenceNumber is "
                f"{start}: it must be less than the newest sequence number, {newest}"
            )
