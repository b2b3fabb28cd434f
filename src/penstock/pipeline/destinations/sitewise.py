"""IoT SiteWise: BatchPutAssetPropertyValue, with messages in JSON.

A message is an entry, a list of entries, or an object `{"entries": [...]}`. Entries are sent as the
program wrote them, including fields that are unknown here. Each entry has its own result:

- Entries that fail temporarily are retried without the others, as long as the delivery lasts. The
  next delivery sends the whole message again: SiteWise replaces a value by the same one.
- If an entry is refused, the others are sent nevertheless. The message is then skipped, with a
  reason that names the entry by its place, such as `entries[2]`.

Messages share a call if all their entries fit. A message that needs several calls has them for
itself, and all of them are made within one `send`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import chain
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from penstock.errors import InvalidRequestException
from penstock.model import IoTSiteWiseConfig, TimeInNanos, from_wire
from penstock.pipeline.destinations import aws
from penstock.pipeline.destinations.destination import (
    Answer,
    Call,
    Destination,
    Export,
    Messages,
    RefusedError,
)

_SERVICE = "iotsitewise"
_OPERATION = "BatchPutAssetPropertyValue"
_MAX_ENTRIES = 10
# Limits the calls within one `send`: all of them are repeated after a crash.
_MAX_MESSAGE_ENTRIES = 200

# An entry with one of these errors is never accepted. All other errors may be temporary, or the
# user may remove their cause.
_FINAL_ERRORS = ("InvalidRequest", "TimestampOutOfRange")


class _Value(msgspec.Struct, rename="camel"):
    # SiteWise checks it, and may have new types of values.
    value: dict[str, Any]
    timestamp: TimeInNanos


class _Fields(msgspec.Struct, rename="camel"):
    """The fields of PutAssetPropertyValueEntry that are checked here."""

    entry_id: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[a-zA-Z0-9_-]+\Z")]
    property_values: Annotated[list[_Value], Meta(min_length=1, max_length=10)]
    asset_id: str | None = None
    property_id: str | None = None
    property_alias: str | None = None


class _Entry(NamedTuple):
    # The sequence number of its message.
    number: int
    # Its place in the message, for reasons; empty if the message is the entry.
    place: str
    entry_id: str
    # Entries of a call must not share any of these: its id, and the property and time of a value.
    claims: set[Hashable]
    text: msgspec.Raw


class _Failure(NamedTuple):
    reason: str
    # The entry is never accepted.
    is_final: bool


class _Message(NamedTuple):
    """A message that has neither arrived nor been skipped."""

    # By place: entries that have to be sent.
    pending: dict[str, _Entry]
    # By place: why an entry has not arrived. If the entry is not pending, it is refused.
    reasons: dict[str, str]

    def note(self, entry: _Entry, failure: _Failure | None) -> None:
        """The result of sending an entry."""
        self.reasons.pop(entry.place, None)
        if failure is not None:
            self.reasons[entry.place] = failure.reason
        if failure is None or failure.is_final:
            del self.pending[entry.place]

    def describe(self) -> str:
        """The distinct reasons why it is pending or refused, each with places of entries."""
        places: dict[str, list[str]] = {}
        for place, reason in self.reasons.items():
            if place in self.pending or not self.pending:
                places.setdefault(reason, []).append(place)
        return "; ".join(
            f"{reason} ({', '.join(found)})" if any(found) else reason
            for reason, found in places.items()
        )


class _Error(msgspec.Struct, rename="camel"):
    error_code: str = ""
    error_message: str = ""


class _ErrorEntry(msgspec.Struct, rename="camel"):
    entry_id: str
    errors: list[_Error] = []

    def describe(self) -> _Failure:
        # Errors may concern only some values. The entry is retried as a whole if one of them may
        # succeed: SiteWise replaces a value by the same one.
        errors = self.errors or [_Error(error_message="an error that is not named")]
        temporary = [each for each in errors if not each.error_code.startswith(_FINAL_ERRORS)]
        error = (temporary or errors)[0]
        reason = f"{_SERVICE} {_OPERATION}: {error.error_code}: {error.error_message}"
        return _Failure(reason, is_final=not temporary)


class _Result(msgspec.Struct, rename="camel"):
    # Required: an answer without it is not from SiteWise, so the entries may not have arrived.
    error_entries: list[_ErrorEntry]


_decode_result = msgspec.json.Decoder(_Result).decode


class SiteWiseDestination(Destination):
    def __init__(self, export: Export) -> None:
        assert isinstance(export.config, IoTSiteWiseConfig)
        self._timeout = export.timeout
        self.max_messages = min(export.config.batch_size or _MAX_ENTRIES, _MAX_ENTRIES)
        # By sequence number.
        self._messages: dict[int, _Message] = {}

    def prepare(self, messages: Messages) -> Call:
        skipped: dict[int, str] = {}
        numbers: list[int] = []
        # The entries of each API call. Several API calls have entries of one message only.
        batches: list[list[_Entry]] = []
        for number, payload in zip(messages.numbers, messages.payloads, strict=True):
            message = self._messages.get(number) or _read_message(number, payload)
            if not message.pending:
                skipped[number] = message.describe()
                continue
            packed = _pack(chain(*batches, message.pending.values()))
            if numbers and len(packed) > 1:
                break
            batches = packed
            numbers.append(number)
            self._messages[number] = message
        size = sum(len(_encode_body(batch)) for batch in batches)
        return Call(len(numbers) + len(skipped), numbers, batches, size, skipped)

    def send(self, call: Call) -> Answer:
        failed_values: set[Hashable] = set()
        waiting = [*reversed(call.content)]
        while waiting:
            # A value that replaces a failed one must not arrive before it.
            batch = [entry for entry in waiting.pop() if failed_values.isdisjoint(entry.claims)]
            if not batch:
                continue
            try:
                failures = self._put(batch)
            except RefusedError as refusal:
                # The delivery finds the invalid one of several messages.
                if len(call.numbers) > 1:
                    raise
                if len(batch) > 1:
                    waiting += [[entry] for entry in reversed(batch)]
                    continue
                failures = {batch[0].entry_id: _Failure(str(refusal), is_final=True)}
            for entry in batch:
                failure = failures.get(entry.entry_id)
                if failure is not None and not failure.is_final:
                    failed_values |= entry.claims - {entry.entry_id}
                self._messages[entry.number].note(entry, failure)
        failed: dict[int, str] = {}
        refused: dict[int, str] = {}
        for number in call.numbers:
            message = self._messages[number]
            if message.pending:
                failed[number] = message.describe()
                continue
            del self._messages[number]
            if message.reasons:
                refused[number] = message.describe()
        return Answer(failed, refused)

    def _put(self, batch: Iterable[_Entry]) -> dict[str, _Failure]:
        """Makes one API call, and returns the failures by entry id."""
        with aws.sorting_errors(_SERVICE, _OPERATION):
            body = _encode_body(batch)
            result = _decode_result(aws.call(_SERVICE, _OPERATION, body, self._timeout))
            failures = {each.entry_id: each.describe() for each in result.error_entries}
            if not failures.keys() <= {entry.entry_id for entry in batch}:
                raise ValueError("an error of an entry that was not sent")
        return failures


def _read_message(number: int, payload: bytes) -> _Message:
    """The entries of a message; invalid ones are refused at once."""
    message = _Message({}, {})
    try:
        entries = _split(payload)
    except ValueError as error:
        message.reasons[""] = str(error)
        return message
    for place, (plain, text) in entries.items():
        try:
            entry_id, claims = _read_entry(plain)
        except (InvalidRequestException, ValueError) as error:
            message.reasons[place] = f"not a SiteWise entry: {error}"
        else:
            message.pending[place] = _Entry(number, place, entry_id, claims, text)
    return message


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
            f"{len(plain)} SiteWise entries: a message has {_MAX_MESSAGE_ENTRIES} at most"
        )
    pairs = zip(plain, msgspec.json.decode(text, type=list[msgspec.Raw]), strict=True)
    return {f"entries[{place}]": pair for place, pair in enumerate(pairs)}


def _read_entry(plain: Any) -> tuple[str, set[Hashable]]:
    """The id of an entry, and its claims."""
    if not isinstance(plain, dict):
        raise ValueError("expected a JSON object")  # noqa: TRY004
    fields = from_wire(plain, _Fields)
    if not fields.property_alias and not (fields.asset_id and fields.property_id):
        raise ValueError("no propertyAlias, nor both assetId and propertyId")
    named = fields.property_alias or (fields.asset_id, fields.property_id)
    times = [value.timestamp for value in fields.property_values]
    values = {(named, time.time_in_seconds, time.offset_in_nanos or 0) for time in times}
    return fields.entry_id, {fields.entry_id, *values}


def _pack(entries: Iterable[_Entry]) -> list[list[_Entry]]:
    """Entries by API call, in order; SiteWise refuses a call with two entries of the same claim."""
    batches: list[list[_Entry]] = []
    claims: set[Hashable] = set()
    for entry in entries:
        is_full = not batches or len(batches[-1]) == _MAX_ENTRIES
        if is_full or not claims.isdisjoint(entry.claims):
            batches.append([])
            claims = set()
        batches[-1].append(entry)
        claims |= entry.claims
    return batches


def _encode_body(batch: Iterable[_Entry]) -> bytes:
    return msgspec.json.encode({"entries": [entry.text for entry in batch]})
