"""How long clients wait before they try again."""

from __future__ import annotations

from itertools import islice, repeat

from penstock.client.backoff import delays


def test_each_wait_is_about_twice_as_long_up_to_a_limit() -> None:
    for found, longest in zip(delays(1.0, 5.0), [1.0, 2.0, 4.0, 5.0, 5.0, 5.0], strict=False):
        assert longest / 2 <= found <= longest


def test_the_first_wait_is_short_and_no_wait_is_longer_than_seconds() -> None:
    waits = list(islice(delays(), 100))

    assert waits[0] <= 0.05
    assert min(waits) > 0
    assert 2.5 <= waits[-1] <= max(waits) <= 5.0


def test_two_clients_are_not_in_step() -> None:
    assert len({tuple(islice(delays(), 3)) for _ in repeat(None, 20)}) == 20
