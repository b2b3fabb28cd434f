"""Division of a trigger's limit between streams, in proportion to their backlogs."""

from __future__ import annotations

from collections.abc import Mapping


def divide_limit(limit: int, backlogs: Mapping[str, int]) -> dict[str, int]:
    """Divides the whole limit between streams, in proportion to their backlogs.

    The rounding remainder is distributed in units of one: first to streams without a share, then to
    the streams with the largest fractions. So large streams do not starve a small stream.
    """
    total = sum(backlogs.values())
    if not total:
        return dict.fromkeys(backlogs, 0)
    shares = {name: limit * backlog // total for name, backlog in backlogs.items()}
    remainder = limit - sum(shares.values())

    def priority(name: str) -> tuple[bool, int]:
        return backlogs[name] > 0 and not shares[name], limit * backlogs[name] % total

    for name in sorted(backlogs, key=priority, reverse=True)[:remainder]:
        shares[name] += 1
    return shares
