"""`penstock verify`: checks every stored message, and copies readable messages."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import click
import msgspec

from penstock.cli.main import (
    DAMAGED,
    NOT_FOUND,
    Failure,
    config_option,
    json_option,
    root_option,
    settings_from,
)
from penstock.cli.output import echo_table, printable
from penstock.cli.units import human_bytes, parse_size
from penstock.discovery import is_served
from penstock.store.salvage import Salvage, salvage
from penstock.store.verification import ReadThrottle, Verification, VerificationReport

# The limit beside a running broker, which needs disk bandwidth too.
_SHARED_BYTES_PER_SECOND = 32 * 1024**2
# Shorter checks show no progress.
_DELAY_SECONDS = 1.0
# The bar is redrawn after this many bytes: drawing it for each read would be slow.
_REDRAW_BYTES = 4 * 1024**2


def _parse_rate(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        rate = parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error), context, option) from None
    if rate < 1:
        raise click.BadParameter("expected at least 1 byte per second", context, option)
    return rate


@click.command()
@root_option
@click.option(
    "--stream",
    "patterns",
    metavar="NAME",
    multiple=True,
    help="Check only streams that match this name; * and ? are wildcards. May be repeated.",
)
@click.option(
    "--rate",
    callback=_parse_rate,
    metavar="BYTES",
    help="Maximum bytes to read per second, such as 10MiB. By default 32MiB beside a running "
    "broker, else no limit.",
)
@click.option(
    "--salvage",
    "target",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Copy all readable messages to this new directory, which a broker can then serve. Stop "
    "the broker of the root first.",
)
@json_option
@config_option
def verify(
    root: str | None,
    patterns: tuple[str, ...],
    rate: int | None,
    target: Path | None,
    as_json: bool,
    config: Path | None,
) -> None:
    """Check every stored message and list damage.

    Damage is listed by stream and sequence numbers. The command changes no file of the root, and
    the broker may run at the same time. The exit code is 6 if there is damage. A root that
    --salvage created lacks the messages that could not be read: they are listed as missing, not as
    damaged.
    """
    path = settings_from(config, root=root).root_path
    if rate is None and is_served(path):
        rate = _SHARED_BYTES_PER_SECOND
    is_shown = not as_json and sys.stderr.isatty()
    with _Bar(sys.stderr if is_shown else None) as bar:
        throttle = ReadThrottle(rate) if rate else None

        def meter(count: int) -> None:
            if throttle is not None:
                throttle(count)
            bar.update(count)

        verification = Verification(path, patterns=patterns, meter=meter)
        bar.size = verification.total_bytes() if is_shown and not patterns else 0
        copied = None
        if target is not None:
            copied = salvage(path, target, patterns=patterns, meter=meter)
            report = copied.report
        else:
            report = verification.run()
    if patterns and not report.streams:
        raise Failure(f"no stream in {path} is named {' or '.join(patterns)}", NOT_FOUND)
    if as_json:
        click.echo(msgspec.json.encode(_document(report, copied)))
    else:
        _print(report)
        if copied is not None and target is not None:
            _print_copied(copied, target)
    if report.has_damage:
        raise click.exceptions.Exit(DAMAGED)


class _Bar(ExitStack):
    """Progress of the check: a bar if the total size is known, else a count."""

    def __init__(self, file: TextIO | None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.size = 0
        self._file = file
        self._clock = clock
        self._shown_from = clock() + _DELAY_SECONDS
        self._bytes = 0
        self._shown = 0
        self._bar: Any = None

    def update(self, count: int) -> None:
        self._bytes += count
        if self._file is None or self._bytes - self._shown < _REDRAW_BYTES:
            return
        if self._clock() < self._shown_from:
            return
        self._shown = self._bytes
        if self._bar is None:
            if self.size:
                bar = click.progressbar(length=self.size, label="checking", file=self._file)
                self._bar = self.enter_context(bar)
            else:
                self._bar = self.callback(click.echo, file=self._file)
        if self.size:
            self._bar.update(self._bytes - self._bar.pos)
        else:
            click.echo(f"\rchecked {human_bytes(self._bytes)}", file=self._file, nl=False)


def _document(report: VerificationReport, copied: Salvage | None) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(report)
    if copied is not None:
        document["salvage"] = msgspec.to_builtins(copied)
        # The document already contains the report.
        del document["salvage"]["report"]
    return {
        **document,
        "damagedMessages": report.damaged_messages,
        "missingMessages": report.missing_messages,
        "intactMessages": sum(stream.intact_messages for stream in report.streams),
        "hasDamage": report.has_damage,
    }


def _print(report: VerificationReport) -> None:
    if report.streams:
        echo_table(
            ("stream", "numbers", "intact", "damaged", "size", "segments"),
            [
                (
                    stream.name,
                    _numbers(stream.oldest_sequence_number, stream.end_sequence_number - 1),
                    f"{stream.intact_messages:,}" if not stream.is_in_memory else "-",
                    f"{stream.damaged_messages:,}" if not stream.is_in_memory else "-",
                    human_bytes(stream.bytes) if not stream.is_in_memory else "-",
                    stream.segments if not stream.is_in_memory else "-",
                )
                for stream in report.streams
            ],
        )
    gaps = [
        (
            stream.name,
            _numbers(each.first_sequence_number, each.last_sequence_number),
            f"{each.count:,}",
        )
        for stream in report.streams
        for each in stream.gaps
    ]
    if gaps:
        click.echo("\nMissing since a salvage:")
        echo_table(("stream", "numbers", "count"), gaps)
        _print_unlisted(sum(stream.unlisted_gaps for stream in report.streams))
    damage = [
        (
            stream.name,
            _numbers(each.first_sequence_number, each.last_sequence_number),
            f"{each.count:,}",
            each.reason,
            each.file or "-",
        )
        for stream in report.streams
        for each in stream.damage
    ]
    if damage:
        click.echo("\nDamaged messages:")
        echo_table(("stream", "numbers", "count", "reason", "file"), damage)
        _print_unlisted(sum(stream.unlisted_ranges for stream in report.streams))
    for heading, problems in (("Other damage", report.problems), ("Notes", report.notes)):
        if problems:
            click.echo(f"\n{heading}:")
            for problem in problems:
                click.echo(f"  {problem.file}: {printable(problem.reason)}")
    click.echo(
        ("\n" if report.streams or report.problems or report.notes else "") + _summary(report)
    )


def _print_unlisted(ranges: int) -> None:
    if ranges:
        click.echo(f"... and {ranges:,} more ranges")


def _print_copied(copied: Salvage, target: Path) -> None:
    for note in copied.notes:
        click.echo(f"  {note.file}: {printable(note.reason)}")
    click.echo(
        f"Copied {_count(copied.messages, 'message')} of {_count(copied.streams, 'stream')} to "
        f"{target}; `penstock serve --root {shlex.quote(str(target))}` serves them."
    )


def _numbers(first: int, last: int) -> str:
    return "-" if last < first else f"{first}..{last}" if first < last else f"{first}"


def _summary(report: VerificationReport) -> str:
    intact = sum(stream.intact_messages for stream in report.streams)
    checked = f"{_count(intact, 'intact message')}"
    if report.missing_messages:
        checked += f", {report.missing_messages:,} missing since a salvage"
    if not report.has_damage:
        return f"{checked}. No damage found."
    found = [
        _count(report.damaged_messages, "damaged message") if report.damaged_messages else "",
        _count(len(report.problems), "other problem") if report.problems else "",
    ]
    return f"{checked}, {', '.join(filter(None, found))}."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
