from __future__ import annotations

import json

import pytest

from penstock.errors import SettingError
from penstock.model.limits import INT64_MAX
from penstock.model.storage import StreamPosition
from penstock.spark.offsets import Offsets, StreamOffset


def test_the_form_in_a_checkpoint_stays_what_it_is() -> None:
    offsets = Offsets({"sensors": StreamOffset("4f", 1234)})
    assert json.dumps(offsets.to_json()) == (
        '{"version": 1, "streams": {"sensors": {"id": "4f", "next": 1234}}}'
    )


def test_what_was_written_is_read_back() -> None:
    offsets = Offsets({"b, c": StreamOffset("2", 0), "a": StreamOffset("1", INT64_MAX)})
    assert Offsets.from_json(json.loads(json.dumps(offsets.to_json()))) == offsets
    assert Offsets.from_json(Offsets().to_json()) == {}


def test_what_else_stands_beside_the_place_is_no_part_of_it() -> None:
    offsets = Offsets({"a": StreamOffset("1", 5)})
    assert Offsets.from_json({**offsets.to_json(), "initial": True}) == offsets


def test_the_same_place_looks_the_same() -> None:
    one = Offsets({"a": StreamOffset("1", 5), "b": StreamOffset("2", 6)})
    other = Offsets({"b": StreamOffset("2", 6), "a": StreamOffset("1", 5)})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())


@pytest.mark.parametrize("plain", [{"version": 2, "streams": {}}, {}, {"sensors": {"0": 5}}])
def test_a_checkpoint_of_another_version_is_refused(plain: dict[str, object]) -> None:
    with pytest.raises(SettingError, match="another version of Penstock"):
        Offsets.from_json(plain)


def test_a_stream_goes_on_where_it_was_and_another_one_of_its_name_does_not() -> None:
    offsets = Offsets({"a": StreamOffset("1", 5)})
    assert offsets.start_in(StreamPosition("a", "1", 0, 9)) == 5
    assert offsets.start_in(StreamPosition("a", "2", 0, 9)) is None
    assert offsets.start_in(StreamPosition("b", "1", 0, 9)) is None


def test_zero_is_a_place_too() -> None:
    assert Offsets({"a": StreamOffset("1", 0)}).start_in(StreamPosition("a", "1", 0, 9)) == 0
