"""The checks of the root, its store, its messages and the disk space."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.cli.checks.check import State
from penstock.cli.checks.stored_data import (
    check_messages,
    check_permissions,
    check_root,
    check_space,
    check_store,
    judge_space,
)
from penstock.errors import MessageStoreReadErrorException
from tests.support import LocalBroker, append, create, read

from .examination import examine


def test_missing_root_passes(tmp_path: Path) -> None:
    root = tmp_path / "new" / "root"

    assert examine(check_root, root).state is State.ok
    assert examine(check_permissions, root).state is State.skip
    assert examine(check_store, root).state is State.skip
    assert list(tmp_path.iterdir()) == []


def test_root_below_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    outcome = examine(check_root, tmp_path / "file" / "root")

    assert outcome.state is State.fail
    assert outcome.found == f"{tmp_path / 'file'} is not a directory"
    assert "--root" in outcome.mend


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_unwritable_root_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)

    assert examine(check_root, tmp_path).state is State.fail
    assert examine(check_root, tmp_path / "root").state is State.fail


def test_root_that_other_users_can_access_is_a_warning(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    outcome = examine(check_permissions, tmp_path)

    assert outcome.state is State.warn
    assert outcome.found == f"{tmp_path} has mode 755: other users have access"
    assert outcome.mend == f"chmod 700 {tmp_path}"


def test_token_that_other_users_can_access_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "token").touch(0o644)
    outcome = examine(check_permissions, tmp_path)

    assert outcome.state is State.fail
    assert outcome.mend == f"chmod 600 {tmp_path / 'token'}"


def test_damaged_store_fails(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite").write_bytes(b"not a database" * 100)

    assert examine(check_store, tmp_path).state is State.fail


def test_streams_larger_than_the_disk_are_a_warning(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with LocalBroker(root) as broker, broker.connect() as client:
        create(client, "huge", maxSize=1 << 60)
        # A stream in memory needs no disk space.
        create(client, "memory", maxSize=1 << 60, persistence=1)

    store, space = examine(check_store, root), examine(check_space, root)

    assert store.found == "2 streams, 0 B"
    assert space.state is State.warn
    assert "streams may still grow by 1 EiB" in space.found


@pytest.mark.parametrize(
    ("free", "max_bytes", "stored", "state"),
    [
        (0, 0, 0, State.fail),
        (1 << 20, 0, 0, State.fail),
        (1 << 29, 0, 0, State.warn),
        (1 << 34, 1 << 33, 0, State.ok),
        (1 << 34, 1 << 35, 0, State.warn),
        (1 << 34, 1 << 35, 1 << 35, State.ok),
    ],
)
def test_free_space_must_fit_the_growth_of_streams(
    free: int, max_bytes: int, stored: int, state: State
) -> None:
    outcome = judge_space(free, max_bytes, stored, min_free=1 << 10)
    assert outcome.state is state
    assert bool(outcome.mend) == (state is not State.ok)


def test_damage_known_to_the_broker_fails(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with LocalBroker(root) as broker, broker.connect() as client:
        create(client, "s")
        append(client, "s", b"message")
        assert examine(check_messages, root).state is State.ok
        (data,) = (root / "streams").glob("*/*.data")
        with data.open("r+b") as file:
            file.write(b"!")
        with pytest.raises(MessageStoreReadErrorException):
            read(client, "s")
        outcome = examine(check_messages, root)
    assert outcome.state is State.fail
    assert outcome.found == (
        "stream 's' has 1 damaged messages (message 0: its checksum does not match)"
    )
    assert f"`penstock verify --root {root}`" in outcome.mend
    offline = examine(check_messages, root)
    assert offline.state is State.skip
    assert f"`penstock verify --root {root}`" in offline.found


def test_disk_below_min_free_disk_fails() -> None:
    outcome = judge_space(free=1 << 25, max_bytes=0, stored=0, min_free=1 << 26)

    assert outcome.state is State.fail
    assert "less than min_free_disk (64 MiB): appends are refused" in outcome.found


def test_min_free_disk_of_the_running_broker_is_used(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with LocalBroker(root, min_free_disk=1 << 50):
        outcome = examine(check_space, root)

    assert outcome.state is State.fail
    assert "less than min_free_disk (1 PiB): appends are refused" in outcome.found
    assert "min_free_disk" not in examine(check_space, root).found
