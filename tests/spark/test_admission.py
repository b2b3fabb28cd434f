from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.admission import divide_limit

BACKLOGS = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=2), st.integers(0, 1000))


@given(st.integers(1, 5000), BACKLOGS)
def test_shares_use_the_limit_and_never_exceed_it(limit: int, backlogs: dict[str, int]) -> None:
    shares = divide_limit(limit, backlogs)
    assert shares.keys() == backlogs.keys()
    taken = sum(min(shares[name], backlog) for name, backlog in backlogs.items())
    assert taken == min(limit, sum(backlogs.values()))


@given(st.integers(1, 5000), BACKLOGS)
def test_shares_are_proportional_to_within_one(limit: int, backlogs: dict[str, int]) -> None:
    total = sum(backlogs.values())
    for name, share in divide_limit(limit, backlogs).items():
        assert abs(share - limit * backlogs[name] / max(total, 1)) <= 1


@given(st.integers(1, 5000), BACKLOGS)
def test_remainder_goes_first_to_streams_without_a_share(
    limit: int, backlogs: dict[str, int]
) -> None:
    behind = [name for name, backlog in backlogs.items() if backlog]
    shares = divide_limit(limit, backlogs)
    served = sum(shares[name] > 0 for name in behind)
    exact = [limit * backlogs[name] / sum(backlogs.values()) for name in behind]
    # The remainder of rounding goes first to streams without a share.
    remainder = limit - sum(map(int, exact))
    assert served >= min(len(behind), sum(share >= 1 for share in exact) + remainder)


def test_small_stream_beside_a_large_one_gets_a_share() -> None:
    assert divide_limit(10, {"large": 1_000_000, "small": 1}) == {"large": 9, "small": 1}


def test_limit_of_one_goes_to_one_stream() -> None:
    assert sorted(divide_limit(1, {"a": 5, "b": 5, "c": 5}).values()) == [0, 0, 1]


def test_streams_without_backlog_get_no_share() -> None:
    assert divide_limit(10, {"a": 0, "b": 0}) == {"a": 0, "b": 0}
    assert divide_limit(10, {}) == {}
