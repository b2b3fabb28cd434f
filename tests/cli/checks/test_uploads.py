"""The check of the directories that files may be uploaded from to S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.checks.check import State, run, skip
from penstock.cli.checks.uploads import check_input_directories
from tests.permissions import as_unprivileged_user, public_directory
from tests.support import LocalBroker, Reachable, create

from .examination import context, examine

S3 = {"s3TaskExecutor": [{"identifier": "cloud"}]}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reachable]:
    with LocalBroker(tmp_path_factory.mktemp("uploads") / "root") as broker:
        with broker.connect() as client:
            create(client, "files", exportDefinition=S3)
            create(client, "others")
        yield broker


def allow(*directories: Path) -> dict[str, Any]:
    return {"STREAM_MANAGER_READ_ONLY_DIRS": ", ".join(map(str, directories))}


def test_unrestricted_uploads_are_a_warning(broker: Reachable) -> None:
    outcome = examine(check_input_directories, broker.root)

    assert outcome.state is State.warn
    assert outcome.found == (
        "any program that may append can upload all files that the pipeline's user may read, "
        "through files"
    )
    assert "set STREAM_MANAGER_READ_ONLY_DIRS" in outcome.mend


def test_existing_directories_pass(broker: Reachable, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    outcome = examine(check_input_directories, broker.root, **allow(tmp_path, tmp_path / "link"))

    assert outcome.state is State.ok
    assert outcome.found == f"only from {tmp_path}, {tmp_path}/link"


def test_missing_directories_are_a_warning(broker: Reachable, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    wrong = [tmp_path / name for name in ("missing", "file", "loop")]
    outcome = examine(check_input_directories, broker.root, **allow(tmp_path, *wrong))

    assert outcome.state is State.warn
    assert outcome.found == (
        f"{tmp_path}/missing: No such file or directory, {tmp_path}/file: Not a directory, "
        f"{tmp_path}/loop: Too many levels of symbolic links"
    )
    assert "STREAM_MANAGER_READ_ONLY_DIRS" in outcome.mend


def test_inaccessible_directory_is_a_warning(broker: Reachable) -> None:
    with public_directory() as directory:
        closed, unlisted = directory / "closed", directory / "unlisted"
        closed.mkdir(mode=0)
        unlisted.mkdir(mode=0o711)
        with context(broker.root, **allow(closed, unlisted)) as examined:
            # Loaded here: the other user may not read them.
            assert examined.settings.read_only_directories
            assert examined.contact.definitions
            assert examined.inventory.definitions
            with as_unprivileged_user():
                outcome = check_input_directories(examined)

    assert outcome.state is State.warn
    assert outcome.found == f"{closed}: Permission denied"


def test_streams_come_from_the_store_without_a_broker(tmp_path: Path) -> None:
    root = tmp_path / "root"
    paused = {"s3TaskExecutor": [{"identifier": "cloud", "disabled": True}]}
    with LocalBroker(root) as broker, broker.connect() as client:
        for name in "abcde":
            create(client, name, exportDefinition=paused)

    outcome = examine(check_input_directories, root)

    assert outcome.state is State.warn
    assert outcome.found.endswith("through a, b, c and 2 more")


def test_check_is_skipped_without_s3_exports(tmp_path: Path) -> None:
    exports = {"kinesis": [{"identifier": "cloud", "kinesisStreamName": "all"}]}
    unknown = examine(check_input_directories, tmp_path)
    with LocalBroker(tmp_path / "root") as broker:
        with broker.connect() as client:
            create(client, "s", exportDefinition=exports)
        none = examine(check_input_directories, broker.root, **allow(tmp_path / "missing"))

    assert unknown == skip("unknown: there is no broker and no store")
    assert none == skip("no stream has an export to S3")


def test_invalid_settings_skip_the_check(broker: Reachable) -> None:
    with context(broker.root, STREAM_MANAGER_READ_ONLY_DIRS="here") as examined:
        finding = run("S3 files", check_input_directories, examined)

    assert (finding.state, finding.found) == (State.skip, "not checked: the settings are wrong")
