from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from penstock.errors import StoreError
from penstock.model.exporting import Upload
from penstock.model.status_message import StatusConfig, StatusLevel
from penstock.model.storage import SegmentSummary
from penstock.store.catalog import Catalog
from penstock.store.rows import (
    ExportProgress,
    StreamRow,
    TokenRotation,
    TokenRow,
    UploadChange,
    UploadProgress,
    digest_token,
)
from penstock.store.schema import CHECKED_COLUMNS
from tests.support import TIMEOUT_S

ROW = StreamRow("id1", "s", b"{}", 0, 0)
SEGMENT = SegmentSummary(0, 10, 100, 1, 2, 3, 4)


def upload(number: int, upload_id: str = "u", **fields: Any) -> UploadProgress:
    state = Upload(
        sequence_number=number,
        bucket="b",
        key="k",
        upload_id=upload_id,
        began=1,
        fingerprint="f",
        size=2,
        part_size=3,
        parts=["x", ""],
    )
    plain: dict[str, Any] = {"export_id": "x", "stream": "s", "identifier": "e", "upload": state}
    return UploadProgress(**{**plain, **fields})


def test_rows_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    catalog = Catalog(path)
    catalog.add_stream(ROW)
    catalog.add_segments("id1", [SEGMENT])
    catalog.set_checkpoints([("id1", msgspec.structs.replace(SEGMENT, first=10, end=20))])
    catalog.commit_progress([("id1", ExportProgress("e", 7, 8, "no", 9, 10, 1, "x"))])
    catalog.reserve("id1", 99)
    catalog.close()
    catalog = Catalog(path)
    assert catalog.streams() == [ROW._replace(reserved=99)]
    assert catalog.segments("id1") == [SEGMENT]
    assert catalog.checkpoint("id1") == msgspec.structs.replace(SEGMENT, first=10, end=20)
    assert catalog.progress("id1") == {"e": ExportProgress("e", 7, 8, "no", 9, 10, 1, "x")}
    catalog.close()


def test_sealing_removes_the_checkpoint_of_the_segment(catalog: Catalog) -> None:
    catalog.add_stream(ROW)
    catalog.set_checkpoints([("id1", SEGMENT)])
    catalog.add_segments("id1", [SEGMENT])
    assert catalog.checkpoint("id1") is None


def test_removing_segments_moves_the_oldest_number(catalog: Catalog) -> None:
    catalog.add_stream(ROW)
    catalog.add_segments("id1", [SEGMENT])
    catalog.add_segments("id1", [msgspec.structs.replace(SEGMENT, first=10, end=20)])
    catalog.remove_segments("id1", 10)
    assert [segment.first for segment in catalog.segments("id1")] == [10]
    assert catalog.streams()[0].oldest == 10


def test_removing_a_stream_removes_its_rows_and_lists_its_directory(catalog: Catalog) -> None:
    catalog.add_stream(ROW)
    catalog.add_segments("id1", [SEGMENT])
    catalog.commit_progress([("id1", ExportProgress("e"))])
    catalog.remove_stream("id1")
    assert catalog.streams() == []
    assert catalog.segments("id1") == []
    assert catalog.progress("id1") == {}
    assert catalog.removed_directories() == ["id1"]
    catalog.forget_directories(["id1"])
    assert catalog.removed_directories() == []


def test_segments_and_checkpoints_of_a_removed_stream_are_ignored(catalog: Catalog) -> None:
    catalog.add_segments("gone", [SEGMENT])
    catalog.set_checkpoints([("gone", SEGMENT)])
    assert catalog.segments("gone") == []


def test_progress_of_many_exports_is_all_or_nothing(catalog: Catalog) -> None:
    catalog.add_stream(ROW)
    unstorable = ExportProgress("f", 5, error_message=cast(str, None))
    with pytest.raises(sqlite3.IntegrityError):
        catalog.commit_progress([("id1", ExportProgress("e", 5)), ("id1", unstorable)])
    assert catalog.progress("id1") == {}


def test_progress_of_a_replaced_export_is_not_stored(catalog: Catalog) -> None:
    catalog.add_stream(ROW, [ExportProgress("e", export_id="first")])
    catalog.update_stream("id1", b"{1}", [], [ExportProgress("e", export_id="second")])
    catalog.commit_progress(
        [
            ("id1", ExportProgress("e", 5, export_id="first")),
            ("deleted", ExportProgress("e", 5)),
            ("id1", ExportProgress("f", 6, export_id="third")),
        ]
    )
    assert catalog.progress("id1") == {
        "e": ExportProgress("e", export_id="second"),
        "f": ExportProgress("f", 6, export_id="third"),
    }
    assert catalog.progress("deleted") == {}


def drop_checksums(connection: sqlite3.Connection) -> None:
    """Removes the tables and columns of versions 5 and 6."""
    connection.execute("DROP TABLE gap")
    connection.execute("DROP TABLE commits")
    for table in CHECKED_COLUMNS.keys() - {"gap", "commits"}:
        connection.execute(f"ALTER TABLE {table} DROP COLUMN checksum")


def test_catalog_of_version_1_is_migrated(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    Catalog(path).close()
    with closing(sqlite3.connect(path)) as connection:
        drop_checksums(connection)
        for column in ("skipped_messages", "export_id"):
            connection.execute(f"ALTER TABLE export_progress DROP COLUMN {column}")
        connection.execute("INSERT INTO stream VALUES ('id1', 's', x'7b7d', 0, 0)")
        connection.execute("INSERT INTO export_progress VALUES ('id1', 'e', 7, 8, '', 9, 10)")
        connection.execute("DROP TABLE upload")
        drop_expiry(connection)
        connection.execute("PRAGMA user_version = 1")
        connection.commit()
    for _ in range(2):
        catalog = Catalog(path)
        assert catalog.progress("id1") == {"e": ExportProgress("e", 7, 8, "", 9, 10, 0)}
        assert catalog.uploads() == []
        catalog.close()


def test_catalog_of_version_2_is_migrated(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    Catalog(path).close()
    with closing(sqlite3.connect(path)) as connection:
        (schema,) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'upload'")
        drop_checksums(connection)
        connection.execute("DROP TABLE upload")
        connection.execute("INSERT INTO stream VALUES ('id1', 's', x'7b7d', 0, 0)")
        drop_expiry(connection)
        connection.execute("PRAGMA user_version = 2")
        connection.commit()
    catalog = Catalog(path)
    catalog.commit_progress([], UploadChange([upload(1)]))
    catalog.close()
    catalog = Catalog(path)
    assert [row.name for row in catalog.streams()] == ["s"]
    assert catalog.uploads() == [upload(1)]
    catalog.close()
    with closing(sqlite3.connect(path)) as connection:
        (migrated,) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'upload'")
        assert migrated == schema


def drop_expiry(connection: sqlite3.Connection) -> None:
    for column in ("expires_time", "previous_digest", "previous_expires_time"):
        connection.execute(f"ALTER TABLE token DROP COLUMN {column}")


def test_tokens_of_version_3_never_expire(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    Catalog(path).close()
    with closing(sqlite3.connect(path)) as connection:
        drop_checksums(connection)
        drop_expiry(connection)
        connection.execute(
            "INSERT INTO token VALUES ('t', ?, 'admin', '*', 5)", [digest_token("secret")]
        )
        connection.execute("PRAGMA user_version = 3")
        connection.commit()
    with closing(Catalog(path)) as catalog:
        assert catalog.find_token(digest_token("secret")) == TokenRow("t", "admin", ("*",), 5)
        assert catalog.rotate_token("t", "new", TokenRotation(6, 8, grace_end=7))
        assert expiries(catalog, "secret", "new") == [7, 8]


def test_catalog_of_version_5_gets_a_table_for_gaps(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    Catalog(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE gap")
        connection.execute("DROP TABLE commits")
        connection.execute("PRAGMA user_version = 5")
    with closing(Catalog(path)) as catalog:
        catalog.add_stream(StreamRow("id1", "s", b"{}", 0, 0))
        catalog.add_gaps("id1", [(3, 4)])
        catalog.remove_stream("id1")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM gap").fetchone() == (0,)


def test_uploads_are_replaced_and_removed_by_id(catalog: Catalog) -> None:
    catalog.commit_progress([], UploadChange([upload(2), upload(1), upload(1, "other")]))
    changed = upload(1, is_abandoned=True, status_config=StatusConfig(StatusLevel.ERROR, "status"))
    catalog.commit_progress([], UploadChange([changed], [upload(2).id, "unknown"]))
    assert catalog.uploads() == [upload(1, "other"), changed]


def test_uploads_without_an_id_differ_in_their_start_time(catalog: Catalog) -> None:
    first = upload(1, "")
    later = msgspec.structs.replace(
        first, upload=msgspec.structs.replace(first.upload, began=first.upload.began + 1)
    )
    catalog.commit_progress([], UploadChange([first, later]))
    assert catalog.uploads() == [first, later]


def test_uploads_of_two_exports_are_distinct(catalog: Catalog) -> None:
    catalog.commit_progress([], UploadChange([upload(1), upload(1, export_id="y")]))
    assert len(catalog.uploads()) == 2


def test_progress_and_uploads_are_stored_in_one_transaction(catalog: Catalog) -> None:
    catalog.add_stream(ROW)
    unstorable = ExportProgress("e", last_exported=cast("int", "x"))
    with pytest.raises(sqlite3.IntegrityError):
        catalog.commit_progress([("id1", unstorable)], UploadChange([upload(1)]))
    assert catalog.uploads() == []
    catalog.commit_progress([("id1", ExportProgress("e", 5))], UploadChange([upload(1)]))
    assert (catalog.progress("id1")["e"].last_exported, catalog.uploads()) == (5, [upload(1)])


def test_uploads_outlive_their_stream(catalog: Catalog) -> None:
    catalog.add_stream(ROW)
    catalog.commit_progress([("id1", ExportProgress("e"))], UploadChange([upload(1)]))
    catalog.remove_stream("id1")
    catalog.commit_progress([("id1", ExportProgress("e"))], UploadChange([upload(2)]))
    assert catalog.uploads() == [upload(1), upload(2)]


def test_update_removes_the_progress_of_removed_exports(catalog: Catalog) -> None:
    catalog.add_stream(ROW)
    catalog.commit_progress(
        [("id1", ExportProgress(name, number)) for name, number in (("a", 1), ("b", 2))]
    )
    catalog.update_stream("id1", b"{1}", [ExportProgress("b", 1)], [ExportProgress("c")])
    # Progress that was stored before the update stays.
    assert catalog.progress("id1") == {"b": ExportProgress("b", 2), "c": ExportProgress("c")}
    assert catalog.streams()[0].definition == b"{1}"


def test_tokens_are_found_by_their_secret_and_stored_without_it(
    catalog: Catalog, tmp_path: Path
) -> None:
    row = TokenRow("t", "producer", ("a*", "b"), 5)
    catalog.add_token(row, "the secret")
    assert catalog.find_token(digest_token("the secret")) == row
    assert catalog.find_token(digest_token("another")) is None
    assert catalog.tokens() == [row]
    for path in tmp_path.iterdir():
        assert b"the secret" not in path.read_bytes()
    assert catalog.remove_token("t")
    assert not catalog.remove_token("t")


def expiries(catalog: Catalog, *secrets: str) -> list[int | str | None]:
    """The expiry time of the token of each secret."""
    found = [catalog.find_token(digest_token(secret)) for secret in secrets]
    return ["unknown" if row is None else row.expires_time for row in found]


def test_a_rotated_token_has_two_secrets(catalog: Catalog) -> None:
    catalog.add_token(TokenRow("t", "producer", ("a*",), 5), "old")
    assert catalog.rotate_token("t", "new", TokenRotation(10, 100, grace_end=20))

    assert catalog.tokens() == [TokenRow("t", "producer", ("a*",), 10, 100)]
    assert expiries(catalog, "old", "new") == [20, 100]
    assert catalog.rotate_token("t", "newest", TokenRotation(15, None, grace_end=25))
    assert expiries(catalog, "old", "new", "newest") == ["unknown", 25, None]
    assert not catalog.rotate_token("unknown", "x", TokenRotation(15, None, grace_end=25))
    assert catalog.remove_token("t")
    assert expiries(catalog, "new", "newest") == ["unknown", "unknown"]


@pytest.mark.parametrize(
    ("expires_time", "grace_end", "expected"),
    [(None, None, None), (None, 20, 20), (30, None, 30), (30, 20, 20), (15, 20, 15)],
)
def test_a_grace_period_does_not_outlast_the_token(
    catalog: Catalog, expires_time: int | None, grace_end: int | None, expected: int | None
) -> None:
    catalog.add_token(TokenRow("t", "producer", ("*",), 5, expires_time), "old")
    catalog.rotate_token("t", "new", TokenRotation(10, None, grace_end))
    assert expiries(catalog, "old", "new") == [expected, None]


def test_data_version_follows_every_change(catalog: Catalog, tmp_path: Path) -> None:
    before = catalog.data_version()
    assert catalog.data_version() == before
    catalog.add_token(TokenRow("own", "admin", ("*",), 1), "x")
    own = catalog.data_version()
    assert own != before
    other = Catalog(tmp_path / "catalog.sqlite")
    other.remove_token("own")
    other.close()
    assert catalog.data_version() != own


def test_changes_in_one_transaction_are_all_or_nothing(catalog: Catalog) -> None:
    def add_twice() -> None:
        with catalog.transaction():
            catalog.add_stream(ROW)
            catalog.add_stream(ROW)

    with pytest.raises(sqlite3.IntegrityError):
        add_twice()
    assert catalog.streams() == []
    with catalog.transaction():
        catalog.add_stream(ROW)
        catalog.reserve("id1", 5)
        assert catalog.streams() == []  # not committed yet
    assert [row.reserved for row in catalog.streams()] == [5]


def test_lookups_do_not_wait_for_a_transaction(catalog: Catalog) -> None:
    catalog.add_token(TokenRow("t", "admin", ("*",), 1), "x")
    with catalog.transaction(), ThreadPoolExecutor(1) as executor:
        catalog.add_stream(ROW)
        assert executor.submit(catalog.find_token, digest_token("x")).result(TIMEOUT_S) is not None
        assert executor.submit(catalog.data_version).result(TIMEOUT_S) > 0


def test_finished_upload_cannot_be_abandoned(catalog: Catalog) -> None:
    catalog.commit_progress([], UploadChange([upload(1)]))
    catalog.abandon_uploads([upload(1, is_abandoned=True), upload(2, is_abandoned=True)])
    assert catalog.uploads() == [upload(1, is_abandoned=True)]


def test_a_catalog_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    Catalog(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()
    with pytest.raises(StoreError, match="newer Penstock"):
        Catalog(path)


def test_catalog_file_is_readable_by_its_owner_only(catalog: Catalog, tmp_path: Path) -> None:
    assert (tmp_path / "catalog.sqlite").stat().st_mode & 0o777 == 0o600


def test_upload_that_is_not_utf8_is_ignored(catalog: Catalog) -> None:
    catalog.commit_progress([], UploadChange([upload(1), upload(2)]))
    catalog._connection.execute(
        "UPDATE upload SET state = ? WHERE sequence_number = 1", (b'{"exportId": "\xff"}',)
    )
    assert catalog.uploads() == [upload(2)]
