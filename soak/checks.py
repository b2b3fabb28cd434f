"""What was found against what was answered. Pure: nothing here talks to a broker or a disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from soak.messages import MessageId


class Defect(StrEnum):
    """What may be wrong with a message, a stream or an arrival."""

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
    """What clients know of a stream."""

    # Sequence numbers and messages, in the order of the answers.
    answered: Sequence[tuple[int, MessageId]]
    # By source, how many messages were sent.
    sent: Mapping[str, int]
    # Messages that were answered with an error that says that they were not stored.
    refused: AbstractSet[MessageId] = frozenset()
    # Numbers of messages whose bytes on the disk were damaged on purpose.
    damaged: AbstractSet[int] = frozenset()
    # Numbers that a power cut may have taken: they were answered and not synced yet.
    volatile: AbstractSet[int] = frozenset()
    # Whether the power was cut: what was being written then may read as damaged.
    is_after_power_cut: bool = False
    # Whether the stream may drop its oldest messages.
    drops: bool = False


@dataclass(frozen=True)
class Found:
    """What a reader got from a stream, from number `first` on."""

    first: int
    oldest: int
    # The number after the newest.
    end: int
    # By number; None where the bytes are no message of a soak.
    messages: Mapping[int, MessageId | None]
    # Numbers that are answered with MessageStoreReadError.
    damaged: Sequence[range] = field(default_factory=list)


class CheckResult(NamedTuple):
    findings: list[Finding]
    # Messages that were read back byte for byte.
    intact: int
    # Messages that were damaged on purpose and read as damaged.
    damaged: int


def compare(name: str, expected: Expected, found: Found) -> CheckResult:
    """Every answered message is there once, under its number, byte for byte, in order."""
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
    """Every answered message against what is stored under its number."""
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
            how = "reads as damaged" if reads_as_damaged else "is not there"
            findings.append(Finding(Defect.LOST, name, f"{number}, {message}, {how}"))
    return CheckResult(findings, intact, damaged)


def _compare_stored(name: str, expected: Expected, found: Found) -> list[Finding]:
    """Every stored message was sent, not refused, and is there once."""
    answered = {number for number, _ in expected.answered}
    numbers: dict[MessageId, int] = {}
    findings = []
    for number, stored in sorted(found.messages.items()):
        if stored is None:
            findings.append(Finding(Defect.WRONG, name, f"{number} holds bytes that were not sent"))
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
            both = f"{number} was given to {seen[number]} and to {message}"
            findings.append(Finding(Defect.REUSED, name, both))
        seen[number] = message
    return findings


def _check_unanswered(
    name: str, number: int, stored: MessageId, expected: Expected
) -> list[Finding]:
    """An append without an answer may be stored, but only if it was sent."""
    if stored.counter >= expected.sent.get(stored.source, 0):
        return [Finding(Defect.WRONG, name, f"{number} is {stored}, which was not sent there")]
    if stored in expected.refused:
        return [Finding(Defect.WRONG, name, f"{number} is {stored}, which was refused")]
    return []


def _find_disorder(name: str, found: Found) -> list[Finding]:
    """The messages of one source have growing numbers."""
    newest: dict[str, int] = {}
    findings = []
    for number, stored in sorted(found.messages.items()):
        if stored is None:
            continue
        before = newest.get(stored.source, -1)
        if stored.counter < before:
            detail = f"{number} is {stored}, behind message {before} of the same source"
            findings.append(Finding(Defect.DISORDER, name, detail))
        newest[stored.source] = max(before, stored.counter)
    return findings


def _find_gaps(name: str, expected: Expected, found: Found) -> list[Finding]:
    """Every number from the oldest to the newest is a message, or damage that was done."""
    findings = []
    start = max(found.first, found.oldest)
    missing = (end := max(found.end - start, 0)) - len(found.messages)
    missing -= sum(len(numbers) for numbers in found.damaged)
    if missing:
        findings.append(Finding(Defect.WRONG, name, f"{missing} of {end} numbers read as nothing"))
    # Once a stream is damaged, its numbers may go on further behind.
    if found.damaged and not expected.damaged and not expected.is_after_power_cut:
        places = ", ".join(f"{each.start} to {each.stop - 1}" for each in found.damaged[:5])
        findings.append(Finding(Defect.WRONG, name, f"{places} read as damaged, and were not"))
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
    """Every message of an export arrived, the first arrivals in order.

    A destination that refuses single records of a call may get a message so many places late.
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
            findings.append(Finding(Defect.WRONG, name, f"{message} arrived, and is not stored"))
            continue
        if message in seen:
            if exactly_once:
                findings.append(Finding(Defect.DUPLICATE, name, f"{message} arrived twice"))
            continue
        seen.add(message)
        number = numbers[message]
        if number < newest - max_displacement:
            detail = f"{number} first arrived behind {newest}"
            findings.append(Finding(Defect.DISORDER, name, detail))
        newest = max(newest, number)
    for message, number in numbers.items():
        if message not in seen:
            findings.append(Finding(Defect.LOST, name, f"{number}, {message}, never arrived"))
    return findings
