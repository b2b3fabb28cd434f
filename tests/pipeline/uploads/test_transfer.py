"""Transfers of files: the sizes of parts, slow calls, and stopping."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from penstock.model.exporting import Upload
from penstock.pipeline.delivery import StoppedError, StopSignal
from penstock.pipeline.uploads import transfer
from penstock.pipeline.uploads.input_files import AllowedDirectories, InputFile
from penstock.pipeline.uploads.s3_calls import S3Calls
from penstock.pipeline.uploads.transfer import TooSlowError, choose_part_size, send_whole
from penstock.sandbox.local_sandbox import Sandbox
from tests.pipeline.uploads.workbench import FIRST, Workbench
from tests.support import TIMEOUT_S

MEBIBYTE = 1024 * 1024
GIBIBYTE = 1024 * MEBIBYTE
# Large enough to be read while it is sent.
LARGE = 17 * MEBIBYTE


@pytest.mark.parametrize(
    ("size", "min_size", "part"),
    [
        (5 * MEBIBYTE + 1, 5 * MEBIBYTE, 5 * MEBIBYTE),
        (100 * MEBIBYTE, 5 * MEBIBYTE, 5 * MEBIBYTE),
        (100 * MEBIBYTE, 8_000_000, 8_000_000),
        (100 * MEBIBYTE + 1, 5 * MEBIBYTE, 8 * MEBIBYTE),
        (100 * MEBIBYTE + 1, 9_000_000, 9_000_000),
        (80_000 * MEBIBYTE, 5 * MEBIBYTE, 8 * MEBIBYTE),
        (80_000 * MEBIBYTE + 1, 5 * MEBIBYTE, 9 * MEBIBYTE),
        (48 * 1024 * GIBIBYTE, 5 * MEBIBYTE, 5034 * MEBIBYTE),
    ],
)
def test_parts_have_the_min_size_unless_there_are_too_many(
    size: int, min_size: int, part: int
) -> None:
    assert choose_part_size(size, min_size) == part
    assert -(-size // part) <= 10_000


def open_file(path: Path, size: int) -> InputFile:
    path.write_bytes(bytes(size))
    return AllowedDirectories((), None).open(str(path))


def send(bench: Workbench, file: InputFile, stop: StopSignal) -> None:
    """Sends a file in one call."""
    planned = Upload(
        sequence_number=FIRST,
        bucket=bench.bucket,
        key="a",
        began=0,
        fingerprint=file.fingerprint,
        size=file.size,
        part_size=5 * MEBIBYTE,
    )
    send_whole(file, planned, {}, S3Calls(TIMEOUT_S), stop)


def test_slow_call_with_a_whole_file_ends(
    in_store: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_MAX_WHOLE_SECONDS", 0.0)
    with open_file(tmp_path / "a", LARGE) as file, pytest.raises(TooSlowError):
        send(in_store, file, StopSignal())
    assert in_store.list_keys() == []


def test_file_of_a_slow_call_is_sent_in_parts(
    in_store: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_MAX_WHOLE_SECONDS", 0.0)
    in_store.threshold = 64 * MEBIBYTE
    in_store.add(in_store.write("a", bytes(LARGE)), "a")
    assert in_store.run().settled_end == FIRST + 1
    head = in_store.client.head_object(Bucket=in_store.bucket, Key="a")
    assert (head["ContentLength"], head["ETag"].endswith('-4"')) == (LARGE, True)


def test_lost_lease_ends_a_call(in_store: Workbench, tmp_path: Path) -> None:
    stop = StopSignal()
    stop.stop(is_lost=True)
    with open_file(tmp_path / "a", LARGE) as file, pytest.raises(StoppedError):
        send(in_store, file, stop)
    assert in_store.list_keys() == []


def test_stop_does_not_end_a_call(in_store: Workbench, tmp_path: Path) -> None:
    stop = StopSignal()
    stop.stop()
    with open_file(tmp_path / "a", LARGE) as file:
        send(in_store, file, stop)
    assert in_store.list_keys() == ["a"]


def test_slow_parts_are_sent_one_at_a_time(
    in_sandbox: Workbench, cloud: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_QUICK_SECONDS", 0.3)
    cloud.set_fault("s3", operation="UploadPart", delay_millis=400)
    in_sandbox.add(in_sandbox.write("a", bytes(16 * MEBIBYTE)), "a")
    assert in_sandbox.run().settled_end == FIRST + 1
    began = [call["time"] for call in cloud.calls("s3") if call["operation"] == "UploadPart"]
    # Each takes 400 milliseconds.
    assert len(began) == 4
    assert all(later - earlier >= 350 for earlier, later in pairwise(sorted(began)))
