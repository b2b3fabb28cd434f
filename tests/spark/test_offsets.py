from __future__ import annotations

import json

import pytest

from penstock.errors import SettingError
from penstock.model.limits import INT64_MAX
from penstock.model.storage import StreamPosition
from penstock.spark.offsets import Offsets, StreamOffset


def test_json_form_is_stable() -> None:
    offsets = Offsets({"sensors": StreamOffset("4f", 1234)})
    assert json.dumps(offsets.to_json()) == (
        '{"version": 1, "streams": {"sensors": {"id": "4f", "next": 1234}}}'
    )


def test_offsets_are_restored_from_json() -> None:
    offsets = Offsets({"b, c": StreamOffset("2", 0), "a": StreamOffset("1", INT64_MAX)})
    assert Offsets.from_json(json.loads(json.dumps(offsets.to_json()))) == offsets
    assert Offsets.from_json(Offsets().to_json()) == {}


def test_other_keys_are_ignored() -> None:
    offsets = Offsets({"a": StreamOffset("1", 5)})
    assert Offsets.from_json({**offsets.to_json(), "initial": True}) == offsets


def test_equal_offsets_have_equal_json() -> None:
    one = Offsets({"a": StreamOffset("1", 5), "b": StreamOffset("2", 6)})
    other = Offsets({"b": StreamOffset("2", 6), "a": StreamOffset("1", 5)})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())


@pytest.mark.parametrize("plain", [{"version": 2, "streams": {}}, {}, {"sensors": {"0": 5}}])
def test_checkpoint_of_another_version_is_refused(plain: dict[str, object]) -> None:
    with pytest.raises(SettingError, match="another version of Penstock"):
        Offsets.from_json(plain)


def test_offset_applies_only_to_the_stream_with_its_id() -> None:
    offsets = Offsets({"a": StreamOffset("1", 5)})
    assert offsets.start_in(StreamPosition("a", "1", 0, 9)) == 5
    assert offsets.start_in(StreamPosition("a", "2", 0, 9)) is None
    assert offsets.start_in(StreamPosition("b", "1", 0, 9)) is None


def test_zero_is_a_valid_offset() -> None:
    assert Offsets({"a": StreamOffset("1", 0)}).start_in(StreamPosition("a", "1", 0, 9)) == 0
