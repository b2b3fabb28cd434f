"""Parsing of options: strings with case-insensitive names, and errors that name allowed values."""

from __future__ import annotations

import pytest

from penstock.errors import SettingError
from penstock.model.limits import INT64_MAX
from penstock.spark.options import (
    BatchReadOptions,
    BrokerOptions,
    StreamReadOptions,
    WriteOptions,
    check_option_names,
    parse_options,
)

KINDS: list[type[BrokerOptions]] = [BatchReadOptions, StreamReadOptions, WriteOptions]


def problem(kind: type[BrokerOptions], **options: str) -> str:
    with pytest.raises(SettingError) as caught:
        parse_options({"stream": "sensors"} | options, kind)
    return str(caught.value)


def test_values_are_converted_to_their_types() -> None:
    options = parse_options(
        {
            "stream": "sensors",
            "minPartitions": "4",
            "failOnDataLoss": "false",
            "via": "wire",
            "reconnectTimeout": "2.5",
            "maxMessagesPerTrigger": "1000",
            "port": "8088",
        },
        StreamReadOptions,
    )
    assert options == StreamReadOptions(
        stream="sensors",
        min_partitions=4,
        fail_on_data_loss=False,
        via="wire",
        reconnect_timeout=2.5,
        max_messages_per_trigger=1000,
        port="8088",
    )


def test_names_are_case_insensitive() -> None:
    lower = parse_options({"stream": "s", "endingposition": "7"}, BatchReadOptions)
    upper = parse_options({"STREAM": "s", "ENDINGPOSITION": "7"}, BatchReadOptions)
    assert lower == upper == BatchReadOptions(stream="s", ending_position="7")


def test_missing_options_have_defaults() -> None:
    options = parse_options({"stream": "s"}, BatchReadOptions)
    assert (options.min_partitions, options.fail_on_data_loss, options.via) == (1, True, "auto")
    assert options.starting_position is None
    assert options.ending_position is None
    assert parse_options({}, WriteOptions).stream is None


@pytest.mark.parametrize("kind", [BatchReadOptions, StreamReadOptions])
def test_read_requires_a_stream(kind: type[BrokerOptions]) -> None:
    with pytest.raises(SettingError, match=r"^option stream is missing: spark\.read"):
        parse_options({}, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_misspelled_name_gets_a_suggestion(kind: type[BrokerOptions]) -> None:
    assert problem(kind, reconnectTimeuot="1") == (
        "unknown option reconnectTimeuot: did you mean reconnectTimeout?"
    )


def test_unknown_name_gets_the_list_of_options() -> None:
    message = problem(BatchReadOptions, xyzzy="1")
    assert "unknown option xyzzy: expected one of channel, channels, createStream" in message
    assert message.endswith("token, via")


def test_option_path_is_refused_with_advice() -> None:
    assert '.option("stream", …)' in problem(BatchReadOptions, path="sensors")
    with pytest.raises(SettingError, match="unknown option path"):
        check_option_names({"path": "sensors"})


def test_option_of_another_kind_of_query_names_that_kind() -> None:
    assert problem(BatchReadOptions, maxBytesPerTrigger="1") == (
        "option maxBytesPerTrigger is for spark.readStream, not for spark.read"
    )
    assert problem(StreamReadOptions, endingposition="1") == (
        "option endingPosition is for spark.read, not for spark.readStream"
    )
    assert problem(WriteOptions, via="wire") == (
        "option via is for spark.read and spark.readStream, not for a write"
    )


def test_names_of_every_kind_are_accepted_without_a_kind() -> None:
    check_option_names(
        {"stream": "s", "endingposition": "1", "maxbytespertrigger": "1", "payload": "x"}
    )
    with pytest.raises(SettingError, match="unknown option strem"):
        check_option_names({"strem": "s"})


def test_options_of_spark_are_ignored() -> None:
    check_option_names({"checkpointLocation": "somewhere"})
    assert parse_options({"checkpointlocation": "somewhere"}, WriteOptions) == WriteOptions()


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("minPartitions", "0", "expected int >= 1"),
        ("minPartitions", "ten", "expected int"),
        ("minPartitions", "", "expected int"),
        ("minPartitions", str(INT64_MAX + 1), f"expected int <= {INT64_MAX}"),
        ("maxMessagesPerTrigger", "-1", "expected int >= 1"),
        ("maxBytesPerTrigger", "1.5", "expected int | null"),
        ("failOnDataLoss", "yes", "expected bool"),
        ("via", "Files", "expected one of auto, files, wire"),
        ("reconnectTimeout", "-1", "expected float >= 0.0"),
        ("reconnectTimeout", "nan", "expected float >= 0.0"),
        ("reconnectTimeout", "10s", "expected float"),
        ("stream", "", "expected str of length >= 1"),
    ],
)
def test_bad_value_is_refused_with_allowed_values(option: str, value: str, expected: str) -> None:
    assert problem(StreamReadOptions, **{option: value}) == (
        f"option {option} is {value!r}: {expected}"
    )


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("payload", "csv", "expected one of column, json"),
        ("persistence", "Disk", "expected one of File, Memory"),
        ("strategyOnFull", "Wait", "expected one of OverwriteOldestData, RejectNewData"),
        ("maxSize", "10", "expected int >= 1024"),
        ("streamSegmentSize", str(2**31), "expected int <= 2147483647"),
        ("timeToLiveMillis", "5", "expected int >= 60000"),
    ],
)
def test_bad_value_of_a_write_is_refused_with_allowed_values(
    option: str, value: str, expected: str
) -> None:
    assert problem(WriteOptions, **{option: value}) == f"option {option} is {value!r}: {expected}"


@pytest.mark.parametrize(
    ("value", "tls"),
    [(None, None), ("true", True), ("False", False), ("ca.pem", "ca.pem"), ("", "")],
)
def test_tls_is_a_boolean_or_a_file(value: str | None, tls: object) -> None:
    assert BrokerOptions(tls=value).endpoint_options().tls == tls


def test_endpoint_options_have_the_address() -> None:
    search = BrokerOptions(host="h", port="1", token="t", root="r").endpoint_options()
    assert (search.host, search.port, search.token, search.root) == ("h", "1", "t", "r")
