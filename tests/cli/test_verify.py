"""`penstock verify`: its output, its exit codes, its options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.model import MessageStreamDefinition
from penstock.store.record import data_path
from penstock.store.store import Store

from .command import penstock


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed store with two streams of 100 messages."""
    store = Store(tmp_path / "root")
    for name in ("sun", "wind"):
        log = store.create(MessageStreamDefinition(name, stream_segment_size=1024)).log
        for number in range(100):
            log.append([b"%d" % number * 20], number)
    store.work()
    store.close()
    return tmp_path / "root"


def damage(root: Path) -> None:
    """Damages message 0 of every stream."""
    for directory in (root / "streams").iterdir():
        with data_path(directory, 0).open("r+b") as file:
            file.write(b"!")


def test_intact_store_has_no_damage(root: Path) -> None:
    finished = penstock("verify", "--root", str(root))
    assert finished.code == 0
    assert finished.output.splitlines()[-1] == "200 intact messages. No damage found."
    assert finished.error == ""


def test_damage_is_listed_and_has_an_exit_code(root: Path) -> None:
    damage(root)
    finished = penstock("verify", "--root", str(root))
    assert finished.code == 6
    lines = finished.output.splitlines()
    place = lines.index("Damaged messages:")
    assert lines[place + 2].split()[:3] == ["sun", "0", "1"]
    assert "checksum does not match" in lines[place + 2]
    assert lines[-1] == "198 intact messages, 2 damaged messages."


def test_json_is_one_document(root: Path) -> None:
    damage(root)
    finished = penstock("verify", "--root", str(root), "--json", "--stream", "w*")
    assert finished.code == 6
    report = json.loads(finished.output)
    assert (report["hasDamage"], report["damagedMessages"], report["intactMessages"]) == (
        True,
        1,
        99,
    )
    (stream,) = report["streams"]
    assert stream["name"] == "wind"
    (found,) = stream["damage"]
    assert (found["firstSequenceNumber"], found["lastSequenceNumber"]) == (0, 0)
    assert found["reason"] == "checksum does not match"


def test_exit_codes_of_failures(root: Path, tmp_path: Path) -> None:
    assert penstock("verify", "--root", str(root), "--stream", "moon").code == 5
    for rate in ("0", "fast"):
        assert penstock("verify", "--root", str(root), "--rate", rate).code == 2
    finished = penstock("verify", "--root", str(tmp_path / "nothing"))
    assert finished.code == 1
    assert "is not a store" in finished.error


def test_other_damage_is_listed(root: Path) -> None:
    (root / "catalog.sqlite").write_bytes(b"no database" * 500)
    finished = penstock("verify", "--root", str(root), "--rate", "1GiB")
    assert finished.code == 6
    assert "  catalog.sqlite: cannot be read: file is not a database" in finished.output
    assert "200 intact messages, 1 other problem." in finished.output


def test_salvage_copies_readable_messages(root: Path, tmp_path: Path) -> None:
    damage(root)
    target = tmp_path / "out"
    finished = penstock("verify", "--root", str(root), "--salvage", str(target), "--json")
    assert finished.code == 6
    copied = json.loads(finished.output)["salvage"]
    assert (copied["streams"], copied["messages"]) == (2, 198)
    again = penstock("verify", "--root", str(root), "--salvage", str(target))
    assert (again.code, again.error) == (
        1,
        f"penstock: {target} is not empty: choose a new directory\n",
    )
    document = penstock("verify", "--root", str(target), "--json")
    assert document.code == 0
    report = json.loads(document.output)
    assert (report["hasDamage"], report["damagedMessages"], report["missingMessages"]) == (
        False,
        0,
        2,
    )
    assert report["streams"][0]["gaps"] == [{"firstSequenceNumber": 0, "lastSequenceNumber": 0}]
    table = penstock("verify", "--root", str(target))
    assert table.code == 0
    lines = table.output.splitlines()
    place = lines.index("Missing since a salvage:")
    assert lines[place + 2].split() == ["sun", "0", "1"]
    assert lines[-1] == ("198 intact messages, 2 missing since a salvage. No damage found.")
    shown = penstock("verify", "--root", str(root), "--salvage", str(tmp_path / "other"))
    assert "Copied 198 messages of 2 streams" in shown.output


def test_salvage_of_an_unknown_stream_can_be_repeated(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    arguments = ("verify", "--root", str(root), "--salvage", str(target), "--stream")
    assert penstock(*arguments, "moon").code == 5
    assert penstock(*arguments, "sun").code == 0
