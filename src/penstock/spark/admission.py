"""How much of a backlog one trigger takes: shares of a limit, by what each stream has."""

from __future__ import annotations

from collections.abc import Mapping


def divide_limit(limit: int, backlogs: Mapping[str, int]) -> dict[str, int]:
    """All of the limit, in proportion to the backlogs.

    What rounding leaves goes one each to those that got nothing, and then to those that lost most
    by it: a small stream beside large ones moves, and so does a limit below the number of streams.
    """
    total = sum(backlogs.values())
    if not total:
        return dict.fromkeys(backlogs, 0)
    shares = {name: limit * backlog // total for name, backlog in backlogs.items()}
    rest = limit - sum(shares.values())

    def urgency(name: str) -> tuple[bool, int]:
        return backlogs[name] > 0 and not shares[name], limit * backlogs[name] % total

    for name in sorted(backlogs, key=urgency, reverse=True)[:rest]:
        shares[name] += 1
    return shares
