"""Compares stored messages with acknowledged messages. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from soak.messages import MessageId


class Defect(StrEnum):
    """Kinds of defects of a message, a stream or an arrival."""

    LOST = "lost"
    WRONG = "wrong"
    REUSED = "reused numbers"
    DUPLICATE = "duplicates"
    DISORDER = "out of order"


class Finding(NamedTuple):
    defect: Defect
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.defect}: {self.where}: {self.detail}"


@dataclass(frozen=True)
class Expected:
    """The state of a stream according to its clients."""

    # Sequence numbers and messages, in the order of acknowledgements.
    answered: Sequence[tuple[int, MessageId]]
    # The number of sent messages by source.
    sent: Mapping[str, int]
    # Messages whose error response says that they were not stored.
    refused: AbstractSet[MessageId] = frozenset()
    # Sequence numbers of messages that the soak has damaged.
    damaged: AbstractSet[int] = frozenset()
    # Sequence numbers that a power cut may lose: acknowledged, but not synced.
    volatile: AbstractSet[int] = frozenset()
    # After a power cut, interrupted writes may read as damaged.
    is_after_power_cut: bool = False
    # Whether the stream may evict its oldest messages.
    drops: bool = False


@dataclass(frozen=True)
class Found:
    """The contents of a stream from sequence number `first`, as a reader sees them."""

    first: int
    oldest: int
    # The sequence number after the newest.
    end: int
    # By sequence number; None if the bytes are not a message of a soak.
    messages: Mapping[int, MessageId | None]
    # Sequence numbers whose reads fail with MessageStoreReadError.
    damaged: Sequence[range] = field(default_factory=list)


class CheckResult(NamedTuple):
    findings: list[Finding]
    # Messages with identical bytes.
    intact: int
    # Messages that the soak has damaged, and that read as damaged.
    damaged: int


def compare(name: str, expected: Expected, found: Found) -> CheckResult:
    """Checks that each acknowledged message exists once, unchanged, at its number, in order."""
    answered = _compare_answered(name, expected, found)
    findings = [
        *_find_reused(name, expected.answered),
        *answered.findings,
        *_compare_stored(name, expected, found),
        *_find_disorder(name, found),
        *_find_gaps(name, expected, found),
    ]
    return answered._replace(findings=findings)


def _compare_answered(name: str, expected: Expected, found: Found) -> CheckResult:
    """Compares acknowledged messages with the stored messages at their sequence numbers."""
    findings = []
    intact = damaged = 0
    for number, message in expected.answered:
        if number < found.first or (number < found.oldest and expected.drops):
            continue
        reads_as_damaged = _contains(found.damaged, number)
        stored = found.messages.get(number)
        if stored == message:
            intact += 1
        elif number in found.messages:
            findings.append(Finding(Defect.WRONG, name, f"{number} is {stored}, not {message}"))
        elif number in expected.damaged and reads_as_damaged:
            damaged += 1
        elif number not in expected.volatile:
            how = "reads as damaged" if reads_as_damaged else "is missing"
            findings.append(Finding(Defect.LOST, name, f"{number}, {message}, {how}"))
    return CheckResult(findings, intact, damaged)


def _compare_stored(name: str, expected: Expected, found: Found) -> list[Finding]:
    """Checks that each stored message was sent, was not refused, and is stored once."""
    answered = {number for number, _ in expected.answered}
    numbers: dict[MessageId, int] = {}
    findings = []
    for number, stored in sorted(found.messages.items()):
        if stored is None:
            findings.append(
                Finding(Defect.WRONG, name, f"{number} contains bytes that were not sent")
            )
            continue
        if number not in answered:
            findings += _check_unanswered(name, number, stored, expected)
        if stored in numbers:
            both = f"{stored} is at {numbers[stored]} and at {number}"
            findings.append(Finding(Defect.DUPLICATE, name, both))
        numbers[stored] = number
    return findings


def _find_reused(name: str, answered: Iterable[tuple[int, MessageId]]) -> list[Finding]:
    seen: dict[int, MessageId] = {}
    findings = []
    for number, message in answered:
        if number in seen:
            both = f"{number} was assigned to {seen[number]} and to {message}"
            findings.append(Finding(Defect.REUSED, name, both))
        seen[number] = message
    return findings


def _check_unanswered(
    name: str, number: int, stored: MessageId, expected: Expected
) -> list[Finding]:
    """Checks that a stored message without an acknowledgement was sent and not refused."""
    if stored.counter >= expected.sent.get(stored.source, 0):
        return [
            Finding(Defect.WRONG, name, f"{number} is {stored}, which was not sent to this stream")
        ]
    if stored in expected.refused:
        return [Finding(Defect.WRONG, name, f"{number} is {stored}, which was refused")]
    return []


def _find_disorder(name: str, found: Found) -> list[Finding]:
    """Checks that the sequence numbers of a source's messages increase."""
    newest: dict[str, int] = {}
    findings = []
    for number, stored in sorted(found.messages.items()):
        if stored is None:
            continue
        before = newest.get(stored.source, -1)
        if stored.counter < before:
            detail = f"{number} is {stored}, after message {before} of the same source"
            findings.append(Finding(Defect.DISORDER, name, detail))
        newest[stored.source] = max(before, stored.counter)
    return findings


def _find_gaps(name: str, expected: Expected, found: Found) -> list[Finding]:
    """Checks that each number from the oldest to the newest is a message or expected damage."""
    findings = []
    start = max(found.first, found.oldest)
    missing = (end := max(found.end - start, 0)) - len(found.messages)
    missing -= sum(len(numbers) for numbers in found.damaged)
    if missing:
        findings.append(Finding(Defect.WRONG, name, f"{missing} of {end} numbers have no message"))
    # After damage a stream may continue at a higher sequence number.
    if found.damaged and not expected.damaged and not expected.is_after_power_cut:
        places = ", ".join(f"{each.start} to {each.stop - 1}" for each in found.damaged[:5])
        findings.append(Finding(Defect.WRONG, name, f"unexpected damage: {places}"))
    if not expected.drops and found.oldest > 0 and found.first == 0:
        findings.append(Finding(Defect.LOST, name, f"the oldest number is {found.oldest}"))
    return findings


def _contains(ranges: Sequence[range], number: int) -> bool:
    return any(number in each for each in ranges)


def compare_arrivals(
    name: str,
    exported: Mapping[int, MessageId],
    arrivals: Sequence[MessageId | None],
    *,
    max_displacement: int = 0,
    exactly_once: bool = False,
) -> list[Finding]:
    """Checks that each message of an export arrived, first arrivals in order.

    A retry of single refused records may arrive up to `max_displacement` messages late.
    """
    findings = []
    numbers = {message: number for number, message in exported.items()}
    seen: set[MessageId] = set()
    newest = -1
    for message in arrivals:
        if message is None:
            findings.append(Finding(Defect.WRONG, name, "bytes arrived that were not sent"))
            continue
        if message not in numbers:
            findings.append(Finding(Defect.WRONG, name, f"{message} arrived, but is not stored"))
            continue
        if message in seen:
            if exactly_once:
                findings.append(Finding(Defect.DUPLICATE, name, f"{message} arrived twice"))
            continue
        seen.add(message)
        number = numbers[message]
        if number < newest - max_displacement:
            detail = f"{number} first arrived after {newest}"
            findings.append(Finding(Defect.DISORDER, name, detail))
        newest = max(newest, number)
    for message, number in numbers.items():
        if message not in seen:
            findings.append(Finding(Defect.LOST, name, f"{number}, {message}, never arrived"))
    return findings
