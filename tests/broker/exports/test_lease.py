from __future__ import annotations

import pytest

from penstock.broker.exports.lease import Holder, Lease, ParsedId, parse_id


@pytest.mark.parametrize("name", ["abandoned-3", "0f3a/http", "0f3a/s3_task_executor", "a/1-2/b"])
def test_id_of_a_lease_tells_its_deliverable_and_its_messages(name: str) -> None:
    lease = Lease.make(name, "1f-2a", Holder("p", "t"), 5, 1 << 62, 30.0)
    assert (lease.first, lease.end, lease.ends_at, lease.charged) == (5, 1 << 62, 30.0, 0.0)
    assert parse_id(lease.id) == ParsedId(name, 5, 1 << 62, "1f-2a")


@pytest.mark.parametrize(
    "lease_id",
    ["", "e", "e/0-5", "/0-5/1", "e/0-/1", "e/-5/1", "e/0-5/", "e/0-5/x", f"e/{'9' * 5000}-5/1"],
)
def test_other_ids_tell_nothing(lease_id: str) -> None:
    assert parse_id(lease_id) is None
