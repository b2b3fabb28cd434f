"""`penstock exports` on a broker process."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest

from penstock.cli.exports import Move, find_first_since
from penstock.client.internal import InternalClient
from penstock.model.exporting import DeliveryReport, MessageSlice
from tests.client.servers import Relay
from tests.support import BrokerProcess, wait_until

from .command import Finished, penstock
from .messaging import Server, fill, make_stream

numbers = count()


def exports(server: Server, *words: str, token: str = "") -> Finished:
    where = ["--host", "127.0.0.1", "--port", str(server.port)]
    token = token or server.token
    return penstock("exports", *words, *where, AWS_CONTAINER_AUTHORIZATION_TOKEN=token)


def succeed(server: Server, *words: str) -> str:
    finished = exports(server, *words)
    assert (finished.code, finished.error) == (0, "")
    return finished.output


def client_of(broker: BrokerProcess) -> InternalClient:
    return InternalClient(root=broker.root)


def to_http(identifier: str = "cloud", **fields: Any) -> dict[str, Any]:
    # Urgent: messages are exported without a delay.
    return {"identifier": identifier, "uri": "http://127.0.0.1/", "priority": 1, **fields}


def deliver(broker: BrokerProcess, stream: str, **fields: Any) -> None:
    """Reports the delivery of all due messages, as a task of a pipeline does."""
    with client_of(broker) as client:
        plan = client.plan_exports(f"p{next(numbers)}", "t", lease_millis=60_000)
        reports = [
            DeliveryReport(
                lease=each.lease,
                stream=each.stream,
                stream_id=each.stream_id,
                identifier=each.identifier,
                first=each.first,
                settled_end=fields.pop("settled_end", each.end),
                **fields,
            )
            for each in plan.work
            if isinstance(each, MessageSlice) and each.stream == stream
        ]
        assert len(client.commit_exports(reports).accepted) == len(reports) > 0


@pytest.fixture
def exported(broker: BrokerProcess) -> str:
    """A stream with ten exported messages, and with a second export that is paused."""
    paused = to_http("paused", disabled=True)
    stream = make_stream(broker, exportDefinition={"http": [to_http(), paused]})
    fill(broker, stream, *[b"x"] * 10)
    deliver(broker, stream)
    return stream


def next_sequence_number(broker: BrokerProcess, stream: str, identifier: str = "cloud") -> int:
    listed = json.loads(succeed(broker, "list", stream, "--json"))
    (found,) = [each for each in listed if each["identifier"] == identifier]
    number: int = found["nextSequenceNumber"]
    return number


# Listing


def test_list_shows_state_and_next_sequence_number(broker: BrokerProcess, exported: str) -> None:
    fill(broker, exported, b"x", b"x")
    deliver(broker, exported, settled_end=11, error="it is\nclosed", pause_millis=60_000)
    heading, first, second = succeed(broker, "list", exported).splitlines()
    assert heading.split("  ")[0] == "STREAM"
    assert heading.split()[-7:] == [
        "EXPORT", "KIND", "STATE", "BEHIND", "NEXT", "LAST", "ERROR",
    ]  # fmt: skip
    assert first.split(maxsplit=6) == [
        exported, "cloud", "http", "failing", "1", "11", "it is closed",
    ]  # fmt: skip
    assert second.split() == [exported, "paused", "http", "paused", "12", "0", "-"]


def test_list_prints_json(broker: BrokerProcess, exported: str) -> None:
    first, second = json.loads(succeed(broker, "list", exported, "--json"))
    assert (first["streamName"], first["identifier"], first["kind"]) == (exported, "cloud", "http")
    assert (first["state"], first["nextSequenceNumber"]) == ("up-to-date", 10)
    assert (second["isPaused"], second["messagesBehind"]) == (True, 10)


def test_list_without_a_stream_shows_all(broker: BrokerProcess, exported: str) -> None:
    other = make_stream(broker, exportDefinition={"http": [to_http(startSequenceNumber=7)]})
    listed = json.loads(succeed(broker, "list", "--json"))
    found = {(each["streamName"], each["identifier"]): each for each in listed}
    assert {(exported, "cloud"), (exported, "paused"), (other, "cloud")} <= found.keys()
    # Its start is ahead of the stream.
    assert found[other, "cloud"]["nextSequenceNumber"] == 7


def test_list_of_a_stream_without_exports_prints_a_hint(broker: BrokerProcess, stream: str) -> None:
    finished = exports(broker, "list", stream)
    assert (finished.code, finished.output) == (0, "")
    assert f"There are no exports of the stream {stream!r}" in finished.error
    assert succeed(broker, "list", stream, "--json") == "[]\n"


def test_list_works_on_a_server_without_extensions(plain_server: Relay, exported: str) -> None:
    first, _ = json.loads(succeed(plain_server, "list", exported, "--json"))
    assert (first["state"], first["nextSequenceNumber"]) == ("up-to-date", 10)


# Pausing


def test_export_is_paused_and_resumed(broker: BrokerProcess, exported: str) -> None:
    of = f"of {exported}"
    assert succeed(broker, "pause", exported, "cloud") == f"paused cloud {of}\n"
    again = succeed(broker, "pause", exported, "cloud")
    assert again == f"the export cloud {of} is already paused\n"
    assert succeed(broker, "resume", exported, "paused") == f"resumed paused {of}\n"
    again = succeed(broker, "resume", exported, "paused")
    assert again == f"the export paused {of} is not paused\n"
    states = [each["isPaused"] for each in json.loads(succeed(broker, "list", exported, "--json"))]
    assert states == [True, False]
    # It keeps its progress.
    assert next_sequence_number(broker, exported) == 10


@pytest.mark.parametrize(("command", "is_paused"), [("pause", True), ("resume", False)])
def test_pause_and_resume_print_json(
    broker: BrokerProcess, exported: str, command: str, is_paused: bool
) -> None:
    plain = json.loads(succeed(broker, command, exported, "cloud", "--json"))
    assert plain == {"streamName": exported, "identifier": "cloud", "isPaused": is_paused}


# Rewinding


@pytest.mark.parametrize(
    ("to", "number", "effect"),
    [
        ("4", 4, "from 10 back to 4: 6 messages are sent again"),
        ("9", 9, "from 10 back to 9: 1 message is sent again"),
        ("earliest", 0, "from 10 back to 0: 10 messages are sent again"),
        ("2h ago", 0, "from 10 back to 0: 10 messages are sent again"),
        ("latest", 10, "to 10, where it was: messages in flight are sent again"),
    ],
)
def test_export_is_rewound(
    broker: BrokerProcess, exported: str, to: str, number: int, effect: str
) -> None:
    output = succeed(broker, "rewind", exported, "cloud", "--to", to)
    assert output == f"moved cloud of {exported} {effect}\n"
    assert next_sequence_number(broker, exported) == number
    assert next_sequence_number(broker, exported, "paused") == 0


def test_export_is_moved_forward(broker: BrokerProcess, exported: str) -> None:
    output = succeed(broker, "rewind", exported, "paused", "--to", "latest")
    assert output == f"moved paused of {exported} from 0 forward to 10: 10 messages are not sent\n"
    assert next_sequence_number(broker, exported, "paused") == 10


def test_rewind_prints_json(broker: BrokerProcess, exported: str) -> None:
    plain = json.loads(succeed(broker, "rewind", exported, "cloud", "--to", "3", "--json"))
    assert plain == {
        "streamName": exported,
        "identifier": "cloud",
        "from": 10,
        "to": 3,
        "sentAgain": 7,
        "leftOut": 0,
    }


def test_dry_run_moves_nothing(broker: BrokerProcess, exported: str) -> None:
    output = succeed(broker, "rewind", exported, "cloud", "--to", "3", "--dry-run")
    assert output.startswith(f"would move cloud of {exported} from 10 back to 3: 7 messages")
    assert next_sequence_number(broker, exported) == 10


def test_rewind_to_a_time_finds_the_first_message_since(
    broker: BrokerProcess, exported: str
) -> None:
    with client_of(broker) as client:
        (last,) = client.read_all(exported, 9, 10)
    # The next message has a later time.
    wait_until(lambda: time.time_ns() // 1_000_000 > last.ingest_time)
    fill(broker, exported, b"x", b"x")
    between = datetime.fromtimestamp((last.ingest_time + 1) / 1000, UTC)
    output = succeed(broker, "rewind", exported, "cloud", "--to", between.isoformat())
    assert "to 10, where it was" in output
    exact = datetime.fromtimestamp(last.ingest_time / 1000, UTC)
    succeed(broker, "rewind", exported, "cloud", "--to", exact.isoformat())
    with client_of(broker) as client:
        first = next_sequence_number(broker, exported)
        found = list(client.read_all(exported, max(first - 1, 0), 12))
    assert [each.ingest_time >= last.ingest_time for each in found] == [
        each.sequence_number >= first for each in found
    ]


def test_find_first_since_returns_bounds(broker: BrokerProcess, exported: str) -> None:
    with client_of(broker) as client:
        assert find_first_since(client, exported, 0, range(10)) == 0
        assert find_first_since(client, exported, 1 << 60, range(10)) == 10
        assert find_first_since(client, exported, 0, range(0)) == 0


@pytest.mark.parametrize("to", ["soon", "-1", "2h", "1.5", ""])
def test_malformed_target_is_rejected_with_allowed_values(
    broker: BrokerProcess, exported: str, to: str
) -> None:
    finished = exports(broker, "rewind", exported, "cloud", f"--to={to}")
    assert (finished.code, finished.output) == (2, "")
    assert "a sequence number from 0 to 10" in finished.error
    assert "'2h ago', earliest, or latest" in finished.error
    assert next_sequence_number(broker, exported) == 10


def test_target_beyond_the_stream_is_rejected(broker: BrokerProcess, exported: str) -> None:
    finished = exports(broker, "rewind", exported, "cloud", "--to", "11")
    assert finished.code == 2
    assert "11 is beyond the stream: expected 0 to 10" in finished.error
    finished = exports(broker, "rewind", exported, "cloud", "--to", "2999-01-01")
    assert finished.code == 2
    assert "'2999-01-01' is in the future" in finished.error


@pytest.mark.parametrize("command", [["pause"], ["resume"], ["rewind", "--to", "0"]])
def test_unknown_streams_and_exports_are_rejected(
    broker: BrokerProcess, exported: str, command: list[str]
) -> None:
    finished = exports(broker, *command, exported, "clodu")
    assert finished.code == 5
    assert f"{exported!r} has no export 'clodu'; did you mean 'cloud'?" in finished.error
    finished = exports(broker, *command, "nowhere", "cloud")
    assert finished.code == 5
    assert "'nowhere' does not exist" in finished.error
    assert exports(broker, "list", "nowhere").code == 5


def test_wrong_token_is_rejected(broker: BrokerProcess, exported: str) -> None:
    finished = exports(broker, "rewind", exported, "cloud", "--to", "0", token="wrong")
    assert finished.code == 4


def test_rewind_needs_a_server_with_extensions(plain_server: Relay, exported: str) -> None:
    finished = exports(plain_server, "rewind", exported, "cloud", "--to", "0")
    assert (finished.code, finished.output) == (1, "")
    assert len(finished.error_lines) == 1


@pytest.mark.parametrize(
    ("move", "sent_again", "skipped"),
    [
        # The stream has the messages 5 to 9.
        (Move(8, 6, 5, 10), 2, 0),
        (Move(8, 0, 5, 10), 3, 0),
        (Move(6, 10, 5, 10), 0, 4),
        (Move(20, 10, 5, 10), 0, 0),
        (Move(8, 8, 5, 10), 0, 0),
    ],
)
def test_move_counts_stored_messages_only(move: Move, sent_again: int, skipped: int) -> None:
    assert (move.sent_again, move.skipped) == (sent_again, skipped)
