"""IoT SiteWise: BatchPutAssetPropertyValue, with messages in JSON.

A message is an entry, a list of entries, or an object `{"entries": [...]}`. Entries are sent
unchanged, including unknown fields. Each entry has its own result:

- Entries that fail temporarily are retried alone until the delivery ends. The next delivery sends
  the whole message again: SiteWise overwrites a value of the same time.
- If an entry is refused, the other entries are still sent. The message is then skipped, with a
  reason that names the entry by its place, such as `entries[2]`.

Messages share a call if all their entries fit. A message that needs several calls shares no call,
and one `send` makes all its calls.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.errors import InvalidRequestException
from penstock.model import IoTSiteWiseConfig, TimeInNanos, from_wire
from penstock.pipeline.destinations import aws
from penstock.pipeline.destinations.destination import (
    CallResult,
    Destination,
    DestinationCall,
    ExportContext,
    Messages,
    RefusedError,
)

_SERVICE = "iotsitewise"
_OPERATION = "BatchPutAssetPropertyValue"
_MAX_ENTRIES = 10
# Limits the calls within one `send`, because a crash repeats all these calls.
_MAX_MESSAGE_ENTRIES = 200

# An entry with one of these errors is never accepted. All other errors may be temporary, or the
# user may remove their cause.
_FINAL_ERRORS = ("InvalidRequest", "TimestampOutOfRange")


class _PropertyValue(msgspec.Struct, rename="camel"):
    # Not validated here, because SiteWise may add types of values.
    value: dict[str, Any]
    timestamp: TimeInNanos


class _Fields(msgspec.Struct, rename="camel"):
    """The fields of PutAssetPropertyValueEntry that are checked here."""

    entry_id: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[a-zA-Z0-9_-]+\Z")]
    property_values: Annotated[list[_PropertyValue], Meta(min_length=1, max_length=10)]
    asset_id: str | None = None
    property_id: str | None = None
    property_alias: str | None = None


class _Entry(msgspec.Struct):
    # The place in the message, for error texts; empty if the message itself is the entry.
    place: str
    entry_id: str = ""
    # Must be unique within a call: the id, and the property and time of each value.
    unique_keys: set[Hashable] = set()
    text: msgspec.Raw = msgspec.Raw()
    # Why the entry failed or was refused. A pending entry is sent again.
    reason: str = ""
    is_pending: bool = True


class _Error(msgspec.Struct, rename="camel"):
    error_code: str = ""
    error_message: str = ""


class _ErrorEntry(msgspec.Struct, rename="camel"):
    entry_id: str
    errors: list[_Error] = []

    def describe(self) -> tuple[str, bool]:
        """The reason, and whether a retry may help."""
        # An error may be about a single value. The entry is retried if one error is temporary,
        # because SiteWise overwrites a value of the same time.
        errors = self.errors or [_Error(error_message="no error was named")]
        temporary = [each for each in errors if not each.error_code.startswith(_FINAL_ERRORS)]
        error = (temporary or errors)[0]
        reason = f"{_SERVICE} {_OPERATION}: {error.error_code}: {error.error_message}"
        return reason, bool(temporary)


class _PropertyResult(msgspec.Struct, rename="camel"):
    # Required: an answer without it is not from SiteWise, so the entries may not have arrived.
    error_entries: list[_ErrorEntry]


_decode_result = msgspec.json.Decoder(_PropertyResult).decode


class SiteWiseDestination(Destination):
    def __init__(self, export: ExportContext) -> None:
        assert isinstance(export.config, IoTSiteWiseConfig)
        self._timeout = export.timeout
        self.max_messages = min(export.config.batch_size or _MAX_ENTRIES, _MAX_ENTRIES)
        # By sequence number: the entries of messages that were sent and have not arrived.
        self._entries: dict[int, list[_Entry]] = {}

    def prepare(self, messages: Messages) -> DestinationCall:
        skipped: dict[int, str] = {}
        numbers: list[int] = []
        # The entries of each API call. Several API calls have entries of a single message.
        batches: list[list[_Entry]] = []
        for number, payload in zip(messages.numbers, messages.payloads, strict=True):
            entries = self._entries.get(number) or _read_entries(payload)
            pending = [entry for entry in entries if entry.is_pending]
            if not pending:
                skipped[number] = _describe(entries)
                continue
            packed = _pack(chain(*batches, pending))
            if numbers and len(packed) > 1:
                break
            batches = packed
            numbers.append(number)
            self._entries[number] = entries
        size = sum(len(_encode_body(batch)) for batch in batches)
        return DestinationCall(len(numbers) + len(skipped), numbers, batches, size, skipped)

    def send(self, call: DestinationCall) -> CallResult:
        failed_values: set[Hashable] = set()
        waiting = [*reversed(call.content)]
        while waiting:
            # A value must not arrive before a failed value that it replaces.
            batch = [
                entry for entry in waiting.pop() if failed_values.isdisjoint(entry.unique_keys)
            ]
            if not batch:
                continue
            try:
                failures = self._put(batch)
            except RefusedError as refusal:
                # The delivery finds the invalid message among several.
                if len(call.numbers) > 1:
                    raise
                if len(batch) > 1:
                    waiting += [[entry] for entry in reversed(batch)]
                    continue
                failures = {batch[0].entry_id: (str(refusal), False)}
            for entry in batch:
                entry.reason, entry.is_pending = failures.get(entry.entry_id, ("", False))
                if entry.is_pending:
                    failed_values |= entry.unique_keys - {entry.entry_id}
        failed: dict[int, str] = {}
        refused: dict[int, str] = {}
        for number in call.numbers:
            entries = self._entries[number]
            if any(entry.is_pending for entry in entries):
                failed[number] = _describe(entries)
                continue
            del self._entries[number]
            if reason := _describe(entries):
                refused[number] = reason
        return CallResult(failed, refused)

    def _put(self, batch: Iterable[_Entry]) -> dict[str, tuple[str, bool]]:
        """Makes one API call. Returns failures by entry id: the reason, and if a retry may help."""
        with aws.mapping_errors(_SERVICE, _OPERATION):
            body = _encode_body(batch)
            result = _decode_result(aws.call(_SERVICE, _OPERATION, body, self._timeout))
            failures = {each.entry_id: each.describe() for each in result.error_entries}
            if not failures.keys() <= {entry.entry_id for entry in batch}:
                raise ValueError("an error for an entry that was not sent")
        return failures


def _describe(entries: Sequence[_Entry]) -> str:
    """The distinct reasons of pending entries, or of refused entries if none is pending."""
    places: dict[str, list[str]] = {}
    for entry in [each for each in entries if each.is_pending] or entries:
        if entry.reason:
            places.setdefault(entry.reason, []).append(entry.place)
    return "; ".join(
        f"{reason} ({', '.join(found)})" if any(found) else reason
        for reason, found in places.items()
    )


def _read_entries(payload: bytes) -> list[_Entry]:
    """The entries of a message; invalid entries are refused at once."""
    try:
        found = _split(payload)
    except ValueError as error:
        return [_Entry("", reason=str(error), is_pending=False)]
    entries = []
    for place, (plain, text) in found.items():
        try:
            entries.append(_Entry(place, *_read_entry(plain), text))
        except (InvalidRequestException, ValueError) as error:
            reason = f"not a SiteWise entry: {error}"
            entries.append(_Entry(place, reason=reason, is_pending=False))
    return entries


def _split(payload: bytes) -> dict[str, tuple[Any, msgspec.Raw]]:
    """The entries of a message by place, decoded and as they were written."""
    try:
        plain = msgspec.json.decode(payload)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    text = msgspec.Raw(payload)
    if isinstance(plain, dict) and "entries" in plain:
        plain = plain["entries"]
        text = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])["entries"]
    elif not isinstance(plain, list):
        return {"": (plain, text)}
    if not isinstance(plain, list) or not plain:
        raise ValueError("not SiteWise entries: expected a list with one entry or more")
    if len(plain) > _MAX_MESSAGE_ENTRIES:
        raise ValueError(
            f"{len(plain)} SiteWise entries: the maximum of a message is {_MAX_MESSAGE_ENTRIES}"
        )
    pairs = zip(plain, msgspec.json.decode(text, type=list[msgspec.Raw]), strict=True)
    return {f"entries[{place}]": pair for place, pair in enumerate(pairs)}


def _read_entry(plain: Any) -> tuple[str, set[Hashable]]:
    """The id of an entry, and its unique keys."""
    if not isinstance(plain, dict):
        raise ValueError("expected a JSON object")  # noqa: TRY004
    fields = from_wire(plain, _Fields)
    if not fields.property_alias and not (fields.asset_id and fields.property_id):
        raise ValueError("expected propertyAlias, or assetId and propertyId")
    named = fields.property_alias or (fields.asset_id, fields.property_id)
    times = [value.timestamp for value in fields.property_values]
    values = {(named, time.time_in_seconds, time.offset_in_nanos or 0) for time in times}
    if len(values) < len(times):
        raise ValueError("propertyValues has two values with the same timestamp")
    return fields.entry_id, {fields.entry_id, *values}


def _pack(entries: Iterable[_Entry]) -> list[list[_Entry]]:
    """Groups entries into API calls, in order. SiteWise refuses a call with equal unique keys."""
    batches: list[list[_Entry]] = []
    used_keys: set[Hashable] = set()
    for entry in entries:
        is_full = not batches or len(batches[-1]) == _MAX_ENTRIES
        if is_full or not used_keys.isdisjoint(entry.unique_keys):
            batches.append([])
            used_keys = set()
        batches[-1].append(entry)
        used_keys |= entry.unique_keys
    return batches


def _encode_body(batch: Iterable[_Entry]) -> bytes:
    return msgspec.json.encode({"entries": [entry.text for entry in batch]})
