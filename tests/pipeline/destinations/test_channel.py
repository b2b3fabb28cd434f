from __future__ import annotations

import datetime as dt
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import IoTAnalyticsConfig
from penstock.pipeline.destinations import channel as channel_module
from penstock.pipeline.destinations.channel import ChannelDestination, Files
from penstock.pipeline.destinations.destination import (
    DestinationSettings,
    ExportContext,
    Messages,
    UnavailableError,
)
from tests.pipeline.destinations.suite import deliver

DAY = 86_400_000
NOON = 20_000 * DAY + DAY // 2


def make_export(
    root: Path | None, channel: str = "farm", identifier: str = "e", channels: str = ""
) -> ExportContext:
    return ExportContext(
        "turbine",
        "0af1",
        IoTAnalyticsConfig(identifier=identifier, iot_channel=channel, iot_msg_id_prefix="w/"),
        DestinationSettings(channels=channels),
        None if root is None else str(root),
        10.0,
    )


def make_messages(
    first: int, end: int, times: Sequence[int] | None = None, size: int = 10
) -> Messages:
    numbers = range(first, end)
    return Messages(
        "turbine",
        first,
        numbers,
        [NOON + number if times is None else times[number] for number in numbers],
        [str(number).encode().rjust(size, b"0") for number in numbers],
    )


def send(destination: ChannelDestination, messages: Messages) -> None:
    delivery = deliver(destination, messages)
    assert delivery.error == ""


def read(directory: Path) -> list[dict[str, Any]]:
    if not directory.is_dir():
        return []
    # Other programs read a channel like this.
    rows: list[dict[str, Any]] = ds.dataset(directory, partitioning="hive").to_table().to_pylist()
    return sorted(rows, key=lambda row: row["sequence_number"])


def numbers_in(directory: Path) -> list[int]:
    if not any(path.is_file() and not path.name.startswith(".") for path in directory.rglob("*")):
        return []
    found = ds.dataset(directory, partitioning="hive").to_table(columns=["sequence_number"])
    numbers: list[Any] = found["sequence_number"].to_pylist()
    return sorted(numbers)


def files_in(directory: Path) -> list[Path]:
    """All files except for locks."""
    return sorted(
        path for path in directory.rglob("*") if path.is_file() and not path.name.endswith("-lock")
    )


def test_rows_are_in_the_directory_of_their_day(tmp_path: Path) -> None:
    send(ChannelDestination(make_export(tmp_path)), make_messages(7, 9))
    (file,) = files_in(tmp_path)
    assert file.parent == tmp_path / "channels" / "farm" / "date=2024-10-04"
    assert file.name.endswith("-00000000000000000007.parquet")
    table = pq.ParquetFile(file).read()
    assert table.schema.field("ingest_time").type == pa.timestamp("us", "UTC")
    assert not any(field.nullable for field in table.schema)
    assert table.to_pylist()[0] == {
        "message_id": "w/turbine-7",
        "stream": "turbine",
        "sequence_number": 7,
        "ingest_time": dt.datetime(2024, 10, 4, 12, 0, 0, 7000, dt.UTC),
        "payload": b"0000000007",
    }


def test_each_day_has_its_own_call(tmp_path: Path) -> None:
    times = [NOON, NOON, NOON + DAY, NOON, NOON]
    destination = ChannelDestination(make_export(tmp_path))
    messages = make_messages(0, 5, times)
    calls = [destination.prepare(messages.pick(range(start, 5))) for start in (0, 2, 3)]
    assert [list(call.numbers) for call in calls] == [[0, 1], [2], [3, 4]]
    send(destination, messages)
    assert numbers_in(tmp_path / "channels/farm") == [0, 1, 2, 3, 4]
    assert len(files_in(tmp_path)) == 2


def test_small_file_is_extended_and_large_file_is_followed_by_another(tmp_path: Path) -> None:
    destination = ChannelDestination(make_export(tmp_path))
    for first in range(0, 30, 3):
        send(destination, make_messages(first, first + 3))
    assert len(files_in(tmp_path)) == 1
    send(destination, _incompressible(30, 31))
    send(destination, make_messages(31, 32))
    assert len(files_in(tmp_path)) == 2
    assert numbers_in(tmp_path / "channels/farm") == list(range(32))


def _incompressible(first: int, end: int) -> Messages:
    messages = make_messages(first, end)
    return messages._replace(payloads=[random.randbytes(100_000) for _ in messages.numbers])


def test_exports_and_streams_have_separate_files(tmp_path: Path) -> None:
    for identifier in ("one", "two"):
        send(ChannelDestination(make_export(tmp_path, identifier=identifier)), make_messages(0, 5))
    other = make_export(tmp_path)._replace(stream_id="0af1-0af1", stream="other")
    send(ChannelDestination(other), make_messages(0, 5))
    assert Counter(numbers_in(tmp_path / "channels/farm")) == dict.fromkeys(range(5), 3)


def test_repeated_delivery_truncates_a_large_file(tmp_path: Path) -> None:
    destination = ChannelDestination(make_export(tmp_path))
    send(destination, make_messages(0, 3))
    send(destination, _incompressible(3, 9))
    # The delivery was not stored, and is repeated with fewer messages.
    send(destination, make_messages(3, 5))
    assert numbers_in(tmp_path / "channels/farm") == [0, 1, 2, 3, 4]
    send(destination, make_messages(5, 9))
    assert numbers_in(tmp_path / "channels/farm") == list(range(9))


def test_exported_messages_stay_after_the_stream_dropped_them(tmp_path: Path) -> None:
    destination = ChannelDestination(make_export(tmp_path))
    send(destination, make_messages(0, 6))
    # The stream dropped messages before their delivery was stored.
    send(destination, make_messages(4, 8)._replace(first=0))
    assert numbers_in(tmp_path / "channels/farm") == list(range(8))


def test_restarted_export_never_shows_a_message_twice(tmp_path: Path) -> None:
    random_messages = _incompressible(0, 4)
    send(ChannelDestination(make_export(tmp_path)), random_messages)
    send(ChannelDestination(make_export(tmp_path)), make_messages(4, 6))
    assert len(files_in(tmp_path)) == 2
    watching = CrashingFiles(tmp_path / "channels/farm", 0, steps=1000)
    send(ChannelDestination(make_export(tmp_path), watching), make_messages(0, 8))
    assert numbers_in(tmp_path / "channels/farm") == list(range(8))


def test_unfinished_file_is_invisible_and_removed(tmp_path: Path) -> None:
    class Crash(Files):
        def rename(self, path: Path, target: Path) -> None:
            raise KeyboardInterrupt

    messages = make_messages(0, 5)
    with pytest.raises(KeyboardInterrupt):
        send(ChannelDestination(make_export(tmp_path), Crash()), messages)
    assert len(files_in(tmp_path)) == 1
    assert numbers_in(tmp_path / "channels/farm") == []
    send(ChannelDestination(make_export(tmp_path)), messages)
    assert len(files_in(tmp_path)) == 1


@pytest.mark.parametrize("name", ["../../etc", "a/b", ".", "wind farm", "x" * 129])
def test_invalid_channel_name_writes_no_file(tmp_path: Path, name: str) -> None:
    delivery = deliver(ChannelDestination(make_export(tmp_path, name)), make_messages(0, 2))
    assert "iotChannel is" in delivery.error
    assert delivery.settled_end == 0
    assert not files_in(tmp_path)


def test_error_without_a_directory_names_the_setting(tmp_path: Path) -> None:
    destination = ChannelDestination(make_export(None))
    with pytest.raises(UnavailableError, match="PENSTOCK_CHANNELS"):
        destination.send(destination.prepare(make_messages(0, 2)))
    send(ChannelDestination(make_export(None, channels=str(tmp_path))), make_messages(0, 2))
    assert numbers_in(tmp_path / "farm") == [0, 1]


def test_hanging_delivery_blocks_other_deliveries_of_its_export(tmp_path: Path) -> None:
    export = make_export(tmp_path)

    class Hanging(Files):
        def rename(self, path: Path, target: Path) -> None:
            # Meanwhile the lease has expired, and another delivery begins.
            delivery = deliver(ChannelDestination(export), make_messages(0, 5))
            assert "an earlier delivery is still writing" in delivery.error
            other = ChannelDestination(make_export(tmp_path, identifier="other"))
            send(other, make_messages(0, 5))
            super().rename(path, target)

    send(ChannelDestination(export, Hanging()), make_messages(0, 3))
    send(ChannelDestination(export), make_messages(0, 5))
    assert Counter(numbers_in(tmp_path / "channels/farm")) == dict.fromkeys(range(5), 2)


def test_delivery_without_its_lease_writes_nothing(tmp_path: Path) -> None:
    export = make_export(tmp_path)
    is_held = [True]

    class Hanging(Files):
        def make_directory(self, path: Path) -> None:
            # Meanwhile another task has the lease.
            is_held[0] = False
            send(ChannelDestination(export), make_messages(0, 5))
            super().make_directory(path)

    late = export._replace(holds_lease=lambda: is_held[0])
    delivery = deliver(ChannelDestination(late, Hanging()), make_messages(0, 3))
    assert delivery.error == "the channel farm: another task delivers these messages"
    assert delivery.settled_end == 0
    assert numbers_in(tmp_path / "channels/farm") == [0, 1, 2, 3, 4]


def test_lease_is_checked_under_the_lock(tmp_path: Path) -> None:
    def holds_lease() -> bool:
        delivery = deliver(ChannelDestination(make_export(tmp_path)), make_messages(0, 5))
        assert "an earlier delivery is still writing" in delivery.error
        return True

    export = make_export(tmp_path)._replace(holds_lease=holds_lease)
    send(ChannelDestination(export), make_messages(0, 3))
    assert numbers_in(tmp_path / "channels/farm") == [0, 1, 2]


def test_error_of_the_disk_is_reported(tmp_path: Path) -> None:
    (tmp_path / "channels").write_text("not a directory")
    delivery = deliver(ChannelDestination(make_export(tmp_path)), make_messages(0, 2))
    assert "the channel farm in" in delivery.error


class Crashed(BaseException):
    """A crash of the process: a BaseException, so that no code catches it."""


class CrashingFiles(Files):
    """Checks the channel after each change, and crashes after a number of steps."""

    def __init__(self, channel: Path, exported: int, steps: int) -> None:
        self._channel = channel
        self._exported = exported
        self._steps = steps

    def _step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise Crashed

    def _check(self) -> None:
        seen = Counter(
            number
            for path in self._channel.rglob("[!.]*.parquet")
            for number in pq.ParquetFile(path).read(["sequence_number"])[0].to_pylist()
        )
        assert set(seen.values()) <= {1}, "a message is in the channel twice"
        assert all(seen[number] for number in range(self._exported)), (
            "an exported message is missing"
        )

    def make_directory(self, path: Path) -> None:
        self._step()
        super().make_directory(path)

    def write(self, path: Path, table: pa.Table) -> None:
        self._step()
        path.write_bytes(b"half of")
        self._step()
        super().write(path, table)

    def sync(self, path: Path) -> None:
        # A crash of a process, unlike a power cut, loses no written data.
        self._step()

    def rename(self, path: Path, target: Path) -> None:
        self._step()
        super().rename(path, target)
        self._check()
        self._step()

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)
        self._check()
        self._step()


# Each change is checked by reading files, which is slow.
@settings(max_examples=settings().max_examples * 3 // 10)
@given(data=st.data())
def test_channel_has_each_message_once_after_any_crash(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 30), label="messages")
    jumps = data.draw(
        st.lists(st.sampled_from([0, 0, 0, 1, 1, -1]), min_size=count, max_size=count)
    )
    times, time = [], NOON
    for jump in jumps:
        time += jump * DAY
        times.append(time)
    small = data.draw(st.sampled_from([0, 2000, 3000, 1 << 20]), label="small file")
    exported, crashes = 0, 0
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(channel_module, "SMALL_FILE_BYTES", small)
        channel = Path(directory) / "channels" / "farm"
        while exported < count:
            if crashes < 4 and data.draw(st.integers(0, 5), label="restarts") == 0:
                # The export was removed and added again, with the same identifier.
                exported = data.draw(st.integers(0, exported), label="restarts at")
            end = data.draw(st.integers(exported + 1, count), label="end")
            steps = data.draw(st.integers(0, 40), label="steps") if crashes < 4 else 1000
            files = CrashingFiles(channel, exported, steps)
            destination = ChannelDestination(make_export(Path(directory)), files)
            try:
                delivery = deliver(destination, make_messages(exported, end, times))
            except Crashed:
                crashes += 1
                continue
            assert delivery.error == ""
            # The broker may crash before it gets the report.
            if data.draw(st.booleans(), label="is exported") or crashes > 4:
                exported = end
            crashes += 1
        assert numbers_in(channel) == list(range(count))
        assert not [path for path in files_in(channel) if path.name.startswith(".")]
        for row in read(channel):
            assert row["payload"] == str(row["sequence_number"]).encode().rjust(10, b"0")
