"""Pauses between retries."""

from __future__ import annotations

from itertools import islice, repeat

from penstock.client.backoff import delays


def test_delays_double_up_to_the_maximum() -> None:
    for found, max_delay in zip(delays(1.0, 5.0), [1.0, 2.0, 4.0, 5.0, 5.0, 5.0], strict=False):
        assert max_delay / 2 <= found <= max_delay


def test_default_delays_grow_from_50_ms_to_5_s() -> None:
    pauses = list(islice(delays(), 100))

    assert pauses[0] <= 0.05
    assert min(pauses) > 0
    assert 2.5 <= pauses[-1] <= max(pauses) <= 5.0


def test_delays_have_jitter() -> None:
    assert len({tuple(islice(delays(), 3)) for _ in repeat(None, 20)}) == 20
