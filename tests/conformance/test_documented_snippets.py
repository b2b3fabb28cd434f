"""The Python snippets of Stream Manager's documentation, run with Penstock's client.

They are unchanged except for syntax errors (a positional argument after a keyword argument, wrong
indentation, broken lines), the import, and their comments. Each runs with the blocking client and,
with awaited calls, with the asyncio client.
"""

from __future__ import annotations

import ast
import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import (
    EventType,
    ExportDefinition,
    KinesisConfig,
    MessageStreamDefinition,
    Persistence,
    PutAssetPropertyValueEntry,
    Quality,
    S3ExportTaskDefinition,
    Status,
    StatusLevel,
    StatusMessage,
    StrategyOnFull,
    StreamManagerClient,
    UpdateNotAllowedException,
    Util,
    ValidationException,
)
from tests.support import BrokerProcess, running, wait_until

Run = Callable[..., dict[str, Any]]

STREAM = "StreamName"
STATUS_STREAM = "StatusStreamName"

IMPORTS = """
import asyncio
import calendar
import random
import time
import uuid
from penstock import *
"""

CREATE = """
client = StreamManagerClient()

try:
    client.create_message_stream(MessageStreamDefinition(
        name="StreamName",
        max_size=268435456,
        stream_segment_size=16777216,
        time_to_live_millis=None,
        strategy_on_full=StrategyOnFull.OverwriteOldestData,
        persistence=Persistence.File,
        flush_on_write=False,
        export_definition=ExportDefinition(
            kinesis=None,
            iot_analytics=None
        )
    ))
except StreamManagerException:
    pass
except ConnectionError or asyncio.TimeoutError:
    pass
"""

CREATE_WITH_FOUR_DESTINATIONS = """
client = StreamManagerClient()

try:
    client.create_message_stream(MessageStreamDefinition(
        name="StreamName",
        max_size=268435456,
        stream_segment_size=16777216,
        time_to_live_millis=None,
        strategy_on_full=StrategyOnFull.OverwriteOldestData,
        persistence=Persistence.File,
        flush_on_write=False,
        export_definition=ExportDefinition(
            kinesis=None,
            iot_analytics=None,
            iot_sitewise=None,
            s3_task_executor=None
        )
    ))
except StreamManagerException:
    pass
except ConnectionError or asyncio.TimeoutError:
    pass
"""

APPEND = """
client = StreamManagerClient()

try:
    sequence_number = client.append_message(stream_name="StreamName", data=b'Arbitrary bytes data')
except StreamManagerException:
    pass
except ConnectionError or asyncio.TimeoutError:
    pass
"""

APPEND_FOR_SITEWISE = """
client = StreamManagerClient()

try:
    time_in_nanos = TimeInNanos(
        time_in_seconds=calendar.timegm(time.gmtime()) - random.randint(0, 60),
        offset_in_nanos=random.randint(0, 10000)
    )
    variant = Variant(double_value=random.random())
    asset = [AssetPropertyValue(value=variant, quality=Quality.GOOD, timestamp=time_in_nanos)]
    putAssetPropertyValueEntry = PutAssetPropertyValueEntry(
        entry_id=str(uuid.uuid4()), property_alias="PropertyAlias", property_values=asset)
    sequence_number = client.append_message(
        "StreamName", Util.validate_and_serialize_to_json_bytes(putAssetPropertyValueEntry))
except StreamManagerException:
    pass
except ConnectionError or asyncio.TimeoutError:
    pass
"""

APPEND_FOR_S3 = """
client = StreamManagerClient()

try:
    s3_export_task_definition = S3ExportTaskDefinition(
        input_url="URLToFile", bucket="BucketName", key="KeyName")
    sequence_number = client.append_message(
        "StreamName", Util.validate_and_serialize_to_json_bytes(s3_export_task_definition))
except StreamManagerException:
    pass
except ConnectionError or asyncio.TimeoutError:
    pass
"""

READ = """
client = StreamManagerClient()

try:
    message_list = client.read_messages(
        stream_name="StreamName",
        options=ReadMessagesOptions(
            desired_start_sequence_number=100,
            min_message_count=10,
            max_message_count=100,
            read_timeout_millis=5000
        )
    )
except StreamManagerException:
    pass
except ConnectionError or asyncio.TimeoutError:
    pass
"""

LIST = """
client = StreamManagerClient()

try:
    stream_names = client.list_streams()
except StreamManagerException:
    pass
except ConnectionError or asyncio.TimeoutError:
    pass
"""

DESCRIBE = """
client = StreamManagerClient()

try:
    stream_description = client.describe_message_stream(stream_name="StreamName")
    if stream_description.export_statuses[0].error_message:
        stream_description.export_statuses[0].last_exported_sequence_number

    if (stream_description.storage_status.newest_sequence_number >
            stream_description.export_statuses[0].last_exported_sequence_number):
        pass
except StreamManagerException:
    pass
except ConnectionError or asyncio.TimeoutError:
    pass
"""

UPDATE = """
client = StreamManagerClient()

try:
    message_stream_info = client.describe_message_stream(STREAM_NAME)
    message_stream_info.definition.max_size=536870912
    message_stream_info.definition.stream_segment_size=33554432
    message_stream_info.definition.time_to_live_millis=3600000
    message_stream_info.definition.strategy_on_full=StrategyOnFull.RejectNewData
    message_stream_info.definition.persistence=Persistence.Memory
    message_stream_info.definition.flush_on_write=False
    message_stream_info.definition.export_definition.kinesis=[KinesisConfig(
            identifier=str(uuid.uuid4()), kinesis_stream_name=str(uuid.uuid4()))]
    client.update_message_stream(message_stream_info.definition)
except StreamManagerException:
    pass
except ConnectionError or asyncio.TimeoutError:
    pass
"""

DELETE = """
client = StreamManagerClient()

try:
    client.delete_message_stream(stream_name="StreamName")
except StreamManagerException:
    pass
except ConnectionError or asyncio.TimeoutError:
    pass
"""

READ_STATUSES = """
import time
from penstock import (
    ReadMessagesOptions,
    Status,
    StatusConfig,
    StatusLevel,
    StatusMessage,
    StreamManagerClient,
)
from penstock.model.json_bytes import Util

client = StreamManagerClient()

try:
    is_file_uploaded_to_s3 = False
    while not is_file_uploaded_to_s3:
        try:
            messages_list = client.read_messages(
                "StatusStreamName", ReadMessagesOptions(min_message_count=1, read_timeout_millis=1000)
            )
            for message in messages_list:
                status_message = Util.deserialize_json_bytes_to_obj(message.payload, StatusMessage)

                if status_message.status == Status.Success:
                    logger.info("Successfully uploaded file at path " + file_url + " to S3.")
                    is_file_uploaded_to_s3 = True
                elif status_message.status == Status.Failure or status_message.status == Status.Canceled:
                    logger.info(
                        "Unable to upload file at path " + file_url + " to S3. Message: " + status_message.message
                    )
                    is_file_uploaded_to_s3 = True
            time.sleep(5)
        except StreamManagerException:
            logger.exception("Exception while running")
except StreamManagerException:
    pass
except ConnectionError or asyncio.TimeoutError:
    pass
"""  # noqa: E501 - lines as published


class RaiseIgnoredErrors(ast.NodeTransformer):
    """Raises errors that the snippets ignore."""

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        if all(isinstance(statement, ast.Pass) for statement in node.body):
            node.body = [ast.Raise()]
        return self.generic_visit(node)


class SkipSleeps(ast.NodeTransformer):
    """Replaces sleeps by sleeps of 0 seconds."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if ast.unparse(node.func) == "time.sleep":
            node.args = [ast.Constant(0)]
        return self.generic_visit(node)


class AwaitClientCalls(ast.NodeTransformer):
    """Uses the asyncio client, and awaits its calls."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name("AsyncStreamManagerClient", node.ctx) if is_client(node.id) else node

    def visit_alias(self, node: ast.alias) -> ast.AST:
        return ast.alias("AsyncStreamManagerClient") if is_client(node.name) else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return ast.Await(node) if ast.unparse(node.func).startswith("client.") else node


def is_client(name: str) -> bool:
    return name == "StreamManagerClient"


def run_blocking(tree: ast.Module, names: dict[str, Any]) -> None:
    try:
        exec(compile(tree, "<snippet>", "exec"), names)
    finally:
        names["client"].close()


def run_with_asyncio(tree: ast.Module, names: dict[str, Any]) -> None:
    transformed = ast.fix_missing_locations(AwaitClientCalls().visit(tree))
    code = compile(transformed, "<snippet>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def main() -> None:
        try:
            await eval(code, names)
        finally:
            await names["client"].close()

    asyncio.run(main())


@pytest.fixture(params=[run_blocking, run_with_asyncio], ids=["blocking", "asyncio"])
def run(
    request: pytest.FixtureRequest, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Runs a snippet against the broker, and returns its global names.

    Errors that the snippet ignores are raised, unless `ignore_errors` is set.
    """
    monkeypatch.setenv("STREAM_MANAGER_SERVER_PORT", str(broker.port))
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", broker.token)

    def run(source: str, ignore_errors: bool = False, **names: Any) -> dict[str, Any]:
        exec(IMPORTS, names)
        tree = SkipSleeps().visit(ast.parse(source))
        if not ignore_errors:
            tree = RaiseIgnoredErrors().visit(tree)
        request.param(ast.fix_missing_locations(tree), names)
        return names

    return run


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[StreamManagerClient]:
    """A client that checks the effects of a snippet."""
    with StreamManagerClient(port=broker.port, token=broker.token) as client:
        yield client
        for name in {STREAM, STATUS_STREAM}.intersection(client.list_streams()):
            client.delete_message_stream(name)


def create(client: StreamManagerClient, name: str = STREAM, **fields: Any) -> None:
    client.create_message_stream(
        MessageStreamDefinition(name, strategy_on_full=StrategyOnFull.OverwriteOldestData, **fields)
    )


def is_read_waiting(client: StreamManagerClient, name: str) -> bool:
    streams = client.statistics().streams
    return any(stream.name == name and stream.waiting_reads for stream in streams)


def kinesis() -> ExportDefinition:
    return ExportDefinition(kinesis=[KinesisConfig("k", "n", disabled=True)])


@pytest.mark.parametrize("source", [CREATE, CREATE_WITH_FOUR_DESTINATIONS], ids=["two", "four"])
def test_create_snippet(client: StreamManagerClient, run: Run, source: str) -> None:
    run(source)

    definition = client.describe_message_stream(STREAM).definition
    assert not list(definition.exports())
    definition.export_definition = ExportDefinition()
    assert definition == MessageStreamDefinition(
        name=STREAM,
        max_size=256 * 1024 * 1024,
        stream_segment_size=16 * 1024 * 1024,
        strategy_on_full=StrategyOnFull.OverwriteOldestData,
        persistence=Persistence.File,
        flush_on_write=False,
    )


def test_create_snippet_catches_the_error_for_an_existing_stream(
    client: StreamManagerClient, run: Run
) -> None:
    create(client, max_size=4096)

    run(CREATE, ignore_errors=True)

    assert client.describe_message_stream(STREAM).definition.max_size == 4096


def test_append_snippet(client: StreamManagerClient, run: Run) -> None:
    create(client)
    client.append_message(STREAM, b"another one")

    assert run(APPEND)["sequence_number"] == 1

    (message,) = client.read_all(STREAM, start=1)
    assert message.payload == b"Arbitrary bytes data"


def test_append_snippet_for_sitewise(client: StreamManagerClient, run: Run) -> None:
    create(client)

    names = run(APPEND_FOR_SITEWISE)

    (message,) = client.read_all(STREAM)
    assert message.sequence_number == names["sequence_number"]
    entry = Util.deserialize_json_bytes_to_obj(message.payload, PutAssetPropertyValueEntry)
    assert entry == names["putAssetPropertyValueEntry"]
    assert entry.property_alias == "PropertyAlias"
    (value,) = entry.property_values
    assert (value.quality, value.value) == (Quality.GOOD, names["variant"])


def test_append_snippet_for_s3(client: StreamManagerClient, run: Run) -> None:
    create(client)

    names = run(APPEND_FOR_S3.replace("BucketName", "bucket-name"))

    (message,) = client.read_all(STREAM)
    assert message.sequence_number == names["sequence_number"]
    task = Util.deserialize_json_bytes_to_obj(message.payload, S3ExportTaskDefinition)
    assert task == S3ExportTaskDefinition("URLToFile", "bucket-name", "KeyName")


def test_append_snippet_for_s3_has_an_invalid_bucket_name(
    client: StreamManagerClient, run: Run
) -> None:
    create(client)

    with pytest.raises(ValidationException, match="bucket"):
        run(APPEND_FOR_S3)
    run(APPEND_FOR_S3, ignore_errors=True)

    assert not list(client.read_all(STREAM))


def test_read_snippet(client: StreamManagerClient, run: Run) -> None:
    create(client)
    client.append_messages(STREAM, [b"%d" % number for number in range(250)])

    messages = run(READ)["message_list"]

    assert [message.sequence_number for message in messages] == list(range(100, 200))
    assert [message.payload for message in messages] == [b"%d" % n for n in range(100, 200)]
    assert {message.stream_name for message in messages} == {STREAM}
    assert all(message.ingest_time > 0 for message in messages)


def test_read_snippet_waits_for_messages(client: StreamManagerClient, run: Run) -> None:
    create(client)
    client.append_messages(STREAM, [b"early"] * 105)
    found: list[Any] = []

    with running(lambda: found.extend(run(READ)["message_list"])):
        wait_until(lambda: is_read_waiting(client, STREAM), "the snippet reads")
        client.append_messages(STREAM, [b"late"] * 5)

    assert [message.payload for message in found] == [b"early"] * 5 + [b"late"] * 5


def test_list_snippet(client: StreamManagerClient, run: Run) -> None:
    create(client)

    stream_names = run(LIST)["stream_names"]

    assert isinstance(stream_names, list)
    assert STREAM in stream_names
    assert sorted(stream_names) == sorted(client.list_streams())


def test_describe_snippet(client: StreamManagerClient, run: Run) -> None:
    create(client, export_definition=kinesis())
    client.append_messages(STREAM, [b"x"] * 3)

    description = run(DESCRIBE)["stream_description"]

    storage, (export,) = description.storage_status, description.export_statuses
    assert (storage.oldest_sequence_number, storage.newest_sequence_number) == (0, 2)
    assert storage.total_bytes > 0
    assert export.export_config_identifier == "k"
    assert storage.newest_sequence_number > export.last_exported_sequence_number
    assert not export.error_message


def test_update_snippet(client: StreamManagerClient, run: Run) -> None:
    create(client, persistence=Persistence.Memory)

    names = run(UPDATE, STREAM_NAME=STREAM)

    definition = client.describe_message_stream(STREAM).definition
    assert definition == names["message_stream_info"].definition
    assert definition.max_size == 512 * 1024 * 1024
    assert definition.stream_segment_size == 32 * 1024 * 1024
    assert definition.time_to_live_millis == 3_600_000
    assert definition.strategy_on_full is StrategyOnFull.RejectNewData
    assert len(definition.export_definition.kinesis or ()) == 1


def test_update_snippet_cannot_change_the_persistence(
    client: StreamManagerClient, run: Run
) -> None:
    create(client)
    before = client.describe_message_stream(STREAM).definition

    with pytest.raises(UpdateNotAllowedException, match="persistence"):
        run(UPDATE, STREAM_NAME=STREAM)
    run(UPDATE, ignore_errors=True, STREAM_NAME=STREAM)

    assert client.describe_message_stream(STREAM).definition == before


def test_update_snippet_without_a_change_of_persistence(
    client: StreamManagerClient, run: Run
) -> None:
    create(client)

    run(UPDATE.replace("Persistence.Memory", "Persistence.File"), STREAM_NAME=STREAM)

    definition = client.describe_message_stream(STREAM).definition
    assert definition.max_size == 512 * 1024 * 1024
    assert definition.persistence is Persistence.File


def test_delete_snippet(client: StreamManagerClient, run: Run) -> None:
    create(client)

    run(DELETE)

    assert STREAM not in client.list_streams()


def status(outcome: Status, text: str | None = None) -> bytes:
    return Util.validate_and_serialize_to_json_bytes(
        StatusMessage(EventType.S3Task, StatusLevel.INFO, outcome, message=text)
    )


@pytest.mark.parametrize(
    ("outcome", "logged"),
    [
        (Status.Success, "Successfully uploaded file at path file:///a to S3."),
        (Status.Failure, "Unable to upload file at path file:///a to S3. Message: no such bucket"),
        (Status.Canceled, "Unable to upload file at path file:///a to S3. Message: no such bucket"),
    ],
)
def test_status_snippet(
    client: StreamManagerClient,
    run: Run,
    caplog: pytest.LogCaptureFixture,
    outcome: Status,
    logged: str,
) -> None:
    caplog.set_level(logging.INFO)
    create(client, STATUS_STREAM)
    client.append_message(STATUS_STREAM, status(outcome, "no such bucket"))

    names = run(READ_STATUSES, logger=logging.getLogger("snippet"), file_url="file:///a")

    assert names["status_message"].status is outcome
    assert [record.message for record in caplog.records if record.name == "snippet"] == [logged]


def test_status_snippet_waits_for_a_status(
    client: StreamManagerClient, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    create(client, STATUS_STREAM)
    names = {"logger": logging.getLogger("snippet"), "file_url": "file:///a"}

    with running(lambda: run(READ_STATUSES, **names)):
        wait_until(lambda: is_read_waiting(client, STATUS_STREAM), "the snippet reads")
        client.append_message(STATUS_STREAM, status(Status.Success))

    assert caplog.records[-1].message.startswith("Successfully uploaded")


def test_error_of_a_snippet_is_raised(client: StreamManagerClient, run: Run) -> None:
    with pytest.raises(ValidationException, match="stream_name"):
        run(APPEND.replace("StreamName", "no/name"))
