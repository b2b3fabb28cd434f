"""Concurrent calls, and their latency."""

from __future__ import annotations

from tests.support import TIMEOUT_S

from .conftest import Connect
from .harness import AVAILABLE_SDKS, NODE, Client, Sdk, for_sdks, for_sdks_except_node


@for_sdks_except_node
def test_client_appends_from_eight_threads(client: Client) -> None:
    name = client.create()

    runs = [
        client.start("append_repeatedly", name=name, data=b"%d" % i, count=200) for i in range(8)
    ]

    numbers_by_thread = [run.result(TIMEOUT_S)["numbers"] for run in runs]
    assert all(numbers == sorted(numbers) for numbers in numbers_by_thread)
    assert sorted(number for numbers in numbers_by_thread for number in numbers) == list(
        range(1600)
    )
    assert client.storage(name) == (0, 1599, 1600)


def test_clients_append_to_one_stream_concurrently(connect: Connect, sdk: Sdk) -> None:
    clients = [connect(sdk) for _ in range(6)]
    name = clients[0].create()

    runs = [client.start("append_repeatedly", name=name, data=b"x", count=25) for client in clients]

    answers = [run.result(TIMEOUT_S)["numbers"] for run in runs]
    assert sorted(number for numbers in answers for number in numbers) == list(range(150))


def test_clients_of_all_sdks_append_to_one_stream_concurrently(connect: Connect) -> None:
    clients = {sdk.name.encode(): connect(sdk) for sdk in AVAILABLE_SDKS}
    name = connect(NODE).create()

    runs = {
        payload: client.start("append_repeatedly", name=name, data=payload, count=25)
        for payload, client in clients.items()
    }

    writer = {
        number: payload
        for payload, run in runs.items()
        for number in run.result(TIMEOUT_S)["numbers"]
    }
    count = 25 * len(clients)
    assert sorted(writer) == list(range(count))
    for client in clients.values():
        messages = client.read(name, minMessageCount=count)
        assert {m["sequenceNumber"]: m["payload"] for m in messages} == writer


@for_sdks(NODE)
def test_append_of_the_node_client_does_not_wait_for_a_delayed_ack(client: Client) -> None:
    # The client writes header and body separately, with Nagle's algorithm on. A server that delays
    # its acknowledgement makes each call take 40 ms.
    name = client.create()

    run = client.start("append_repeatedly", name=name, data=b"hello", count=200)

    # On a busy machine some calls take longer for other reasons.
    quick = [millis for millis in run.result(TIMEOUT_S)["millis"] if millis < 35]
    assert len(quick) > 50
