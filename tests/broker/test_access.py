"""Tokens: roles, streams, expiry and revocation."""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.access import (
    FULL_ACCESS,
    NO_ACCESS,
    Access,
    Authenticator,
    Role,
    ensure_first_token,
    new_secret,
)
from penstock.errors import ConnectFailedException, ResponseStatusCode, UnauthorizedException
from penstock.store.catalog import Catalog
from penstock.store.rows import TokenRotation, TokenRow
from penstock.wire.operations import Operation
from penstock.wire.requests import EXTENDED_REQUESTS
from tests.raw_connection import RawConnection
from tests.support import TIMEOUT_S, Json, LocalBroker, append, create, read, wait_until

LOOK = {"ListStreams", "DescribeMessageStream", "Statistics", "WatchStreams"}
APPEND = {"AppendMessage", "AppendMessages"}
READ = {"ReadMessages", "ReadColumns", "ReadStored", "LocateMessages"}
EXPORT = {"PlanExports", "CommitExports", "ReserveBandwidth"}
CHANGE = {"CreateMessageStream", "UpdateMessageStream", "DeleteMessageStream", "RewindExport"}

MAY = {
    Role.admin: LOOK | APPEND | READ | CHANGE | EXPORT,
    Role.producer: LOOK | APPEND,
    Role.consumer: LOOK | READ,
    Role.pipeline: LOOK | READ | APPEND | EXPORT,
    Role.observer: LOOK,
}


def access(role: Role, *patterns: str) -> Access:
    return Access(TokenRow("t", role, patterns, 0))


def admit(authenticator: Authenticator, secret: str) -> Access:
    """The access of a token in the catalog."""
    access = authenticator.find(secret)
    assert access is not None
    return access


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = Catalog(tmp_path / "catalog.sqlite")
    yield catalog
    catalog.close()


def add_token(catalog: Catalog, name: str, role: Role, *patterns: str) -> str:
    secret = new_secret()
    catalog.add_token(TokenRow(name, role, patterns, time.time_ns() // 1_000_000), secret)
    return secret


# Roles and patterns


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("operation", sorted(EXTENDED_REQUESTS))
def test_role_allows_only_its_operations(role: Role, operation: int) -> None:
    wanted = Operation(operation)
    if wanted.name in MAY[role]:
        access(role, "*").require(wanted, "s")
        return

    with pytest.raises(UnauthorizedException) as caught:
        access(role, "*").require(wanted, "s")

    assert f"the role {role} does not allow {wanted.name}" in caught.value.message
    for other in Role:
        assert (other in caught.value.message.split("these roles do")[1]) == (
            wanted.name in MAY[other]
        )


@pytest.mark.parametrize(
    ("patterns", "seen", "unseen"),
    [
        (["*"], ["s", "", "a b"], []),
        (["sensor-*"], ["sensor-1", "sensor-"], ["sensor", "Sensor-1", "my-sensor-1"]),
        (["a", "b?"], ["a", "b1"], ["b", "b12", "ab"]),
        (["[ab]x"], ["ax", "bx"], ["cx", "[ab]x"]),
        ([], [], ["s", ""]),
    ],
)
def test_token_allows_streams_that_match_its_patterns(
    patterns: list[str], seen: list[str], unseen: list[str]
) -> None:
    token = access(Role.admin, *patterns)

    for name in seen:
        assert token.sees(name)
        token.require(Operation.AppendMessage, name)
    for name in unseen:
        assert not token.sees(name)
        with pytest.raises(UnauthorizedException, match="does not allow the stream"):
            token.require(Operation.AppendMessage, name)


def test_access_is_empty_before_the_handshake_and_full_without_authentication() -> None:
    assert not NO_ACCESS.sees("s")
    assert FULL_ACCESS.sees("s")
    for operation in EXTENDED_REQUESTS:
        FULL_ACCESS.require(Operation(operation), "s")
        with pytest.raises(UnauthorizedException):
            NO_ACCESS.require(Operation(operation), "s")


# The authenticator


def test_known_token_is_admitted(catalog: Catalog) -> None:
    secret = add_token(catalog, "t", Role.producer, "a*")
    authenticator = Authenticator(catalog, is_open=False)

    admitted = admit(authenticator, secret)

    assert (admitted.role, admitted.sees("ab"), admitted.sees("b")) == (Role.producer, True, False)
    assert authenticator.admits(admitted)


@pytest.mark.parametrize("secret", ["", "wrong", "ü", "'; --", "x" * 60_000])
def test_unknown_token_is_rejected(catalog: Catalog, secret: str) -> None:
    add_token(catalog, "t", Role.producer, "*")

    with pytest.raises(UnauthorizedException):
        admit(Authenticator(catalog, is_open=False), secret)


def test_any_token_is_admitted_without_authentication(catalog: Catalog) -> None:
    authenticator = Authenticator(catalog, is_open=True)

    for secret in ("", "any"):
        assert admit(authenticator, secret) is FULL_ACCESS
    assert authenticator.admits(FULL_ACCESS)


def test_revoked_token_is_rejected(catalog: Catalog) -> None:
    secret = add_token(catalog, "t", Role.producer, "*")
    authenticator = Authenticator(catalog, is_open=False)
    admitted = admit(authenticator, secret)

    catalog.remove_token("t")

    assert not authenticator.admits(admitted)
    with pytest.raises(UnauthorizedException):
        admit(authenticator, secret)


def test_new_token_of_the_same_name_does_not_admit_the_old_secret(catalog: Catalog) -> None:
    authenticator = Authenticator(catalog, is_open=False)
    old = admit(authenticator, add_token(catalog, "t", Role.producer, "*"))

    # Like a script that replaces a token.
    catalog.remove_token("t")
    wait_until(lambda: time.time_ns() // 1_000_000 > old.token.created_time)
    fresh = admit(authenticator, add_token(catalog, "t", Role.producer, "*"))

    assert authenticator.admits(fresh)
    assert not authenticator.admits(old)


# Expiry and rotation


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


def test_expired_token_is_rejected_with_its_expiry_time(catalog: Catalog) -> None:
    clock = Clock()
    catalog.add_token(TokenRow("t", Role.producer, ("*",), 0, clock.now + 1000), "secret")
    authenticator = Authenticator(catalog, is_open=False, clock=clock)
    admitted = admit(authenticator, "secret")
    assert authenticator.admits(admitted)

    clock.now += 1000

    assert authenticator.has_expired(admitted)
    assert not authenticator.admits(admitted)
    with pytest.raises(UnauthorizedException) as caught:
        admit(authenticator, "secret")
    assert caught.value.message == (
        "the token 't' expired at 2023-11-14 22:13:21 UTC; `penstock tokens rotate t` creates "
        "a new secret"
    )


def test_both_secrets_are_valid_in_the_grace_period(catalog: Catalog) -> None:
    clock = Clock()
    authenticator = Authenticator(catalog, is_open=False, clock=clock)
    catalog.add_token(TokenRow("t", Role.producer, ("*",), 0), "old")
    connected = admit(authenticator, "old")
    catalog.rotate_token("t", "new", TokenRotation(clock.now, None, clock.now + 1000))

    assert authenticator.admits(connected)
    assert admit(authenticator, "old").role is admit(authenticator, "new").role is Role.producer
    renewed = admit(authenticator, "new")
    clock.now += 1000
    assert authenticator.has_expired(connected)
    assert not authenticator.has_expired(renewed)
    assert authenticator.admits(renewed)
    with pytest.raises(UnauthorizedException, match="expired"):
        admit(authenticator, "old")


def test_unknown_role_is_rejected_with_the_known_roles(catalog: Catalog) -> None:
    catalog.add_token(TokenRow("t", "king", ("*",), 0), "secret")
    with pytest.raises(UnauthorizedException) as caught:
        admit(Authenticator(catalog, is_open=False), "secret")
    assert caught.value.message == (
        "the token 't' has the unknown role 'king'; "
        "expected one of admin, producer, consumer, pipeline, observer"
    )


# External tokens


class StubVerifier:
    """Accepts one token."""

    async def verify(self, secret: str) -> Access:
        if secret != "external":
            raise UnauthorizedException("unknown token")
        return Access(TokenRow("external", Role.admin, ("*",), 0))


def test_verifier_checks_tokens_that_are_not_in_the_catalog(
    catalog: Catalog,
) -> None:
    secret = add_token(catalog, "t", Role.producer, "*")
    authenticator = Authenticator(catalog, is_open=False)
    authenticator.verifier = StubVerifier()

    assert asyncio.run(authenticator.verify(secret)).role is Role.producer
    external = asyncio.run(authenticator.verify("external"))
    assert external.role is Role.admin
    assert authenticator.admits(external)
    with pytest.raises(UnauthorizedException, match="unknown token"):
        asyncio.run(authenticator.verify("wrong"))


def test_find_returns_none_for_tokens_of_the_verifier(catalog: Catalog) -> None:
    secret = add_token(catalog, "t", Role.producer, "*")
    authenticator = Authenticator(catalog, is_open=False)
    authenticator.verifier = StubVerifier()

    assert admit(authenticator, secret).role is Role.producer
    assert authenticator.find("external") is None
    with pytest.raises(UnauthorizedException, match="a token is required"):
        authenticator.find("")


# The first token


def test_first_token_is_created_once_for_its_owner_only(tmp_path: Path, catalog: Catalog) -> None:
    ensure_first_token(tmp_path, catalog)
    file = tmp_path / "token"
    secret = file.read_text().strip()

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(secret) >= 43
    assert admit(Authenticator(catalog, is_open=False), secret).role is Role.admin
    ensure_first_token(tmp_path, catalog)
    assert file.read_text().strip() == secret
    assert len(catalog.tokens()) == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b"\xff\xfe\x00token", "it is not UTF-8 text"),
        (b"x", "its length is 1, expected at least 16 characters"),
        (b"fifteen letters\n", "its length is 15, expected at least 16 characters"),
        (b"0123456789 0123456789", "only visible ASCII characters are allowed"),
        ("ünïcödeünïcödeünïcöde".encode(), "only visible ASCII characters are allowed"),
        (b"0123456789\x000123456789", "only visible ASCII characters are allowed"),
    ],
)
def test_invalid_token_file_is_renamed_and_replaced(
    tmp_path: Path,
    catalog: Catalog,
    caplog: pytest.LogCaptureFixture,
    content: bytes,
    reason: str,
) -> None:
    file = tmp_path / "token"
    file.touch(mode=0o644)
    file.write_bytes(content)

    ensure_first_token(tmp_path, catalog)

    secret = file.read_text().strip()
    assert len(secret) >= 43
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (tmp_path / "token.invalid").read_bytes() == content
    authenticator = Authenticator(catalog, is_open=False)
    assert admit(authenticator, secret).role is Role.admin
    with pytest.raises(UnauthorizedException):
        admit(authenticator, content.decode(errors="replace").strip())
    assert f"the token in {file} is not valid: {reason}" in caplog.text


@pytest.mark.parametrize("content", [b"\xff" * 44, b""])
def test_old_token_stays_valid_when_its_file_is_damaged(
    tmp_path: Path, catalog: Catalog, content: bytes
) -> None:
    ensure_first_token(tmp_path, catalog)
    file = tmp_path / "token"
    old = file.read_text().strip()
    file.write_bytes(content)

    ensure_first_token(tmp_path, catalog)

    authenticator = Authenticator(catalog, is_open=False)
    for secret in (old, file.read_text().strip()):
        assert admit(authenticator, secret).role is Role.admin


def test_short_token_of_an_earlier_version_is_revoked(tmp_path: Path, catalog: Catalog) -> None:
    (tmp_path / "token").write_text("x\n")
    catalog.add_token(TokenRow("first", Role.admin, ("*",), 0), "x")

    ensure_first_token(tmp_path, catalog)

    with pytest.raises(UnauthorizedException):
        admit(Authenticator(catalog, is_open=False), "x")


def test_first_token_is_added_to_a_new_catalog(tmp_path: Path) -> None:
    for name in ("first.sqlite", "second.sqlite"):
        catalog = Catalog(tmp_path / name)
        ensure_first_token(tmp_path, catalog)
        secret = (tmp_path / "token").read_text().strip()
        assert admit(Authenticator(catalog, is_open=False), secret).role is Role.admin
        catalog.close()


# With a broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path_factory.mktemp("access") / "root") as broker:
        with broker.connect() as admin:
            for name in ("sensor-1", "sensor-2", "secret"):
                create(admin, name)
                append(admin, name, b"x")
        yield broker


@pytest.fixture
def tokens(broker: LocalBroker) -> Iterator[Catalog]:
    """The catalog as the command line opens it, beside the broker."""
    catalog = Catalog(broker.root / "catalog.sqlite")
    yield catalog
    catalog.close()


def enter(
    broker: LocalBroker, tokens: Catalog, name: str, role: Role, *patterns: str
) -> RawConnection:
    return broker.connect(add_token(tokens, name, role, *patterns))


def test_listing_has_only_streams_of_the_token(broker: LocalBroker, tokens: Catalog) -> None:
    with enter(broker, tokens, "lister", Role.consumer, "sensor-*") as client:
        assert client.call(Operation.ListStreams)["streams"] == ["sensor-1", "sensor-2"]
        statistics = client.call(Operation.Statistics)["statistics"]
        assert [stream["name"] for stream in statistics["streams"]] == ["sensor-1", "sensor-2"]
    with enter(broker, tokens, "no streams", Role.consumer, "nothing") as client:
        assert client.call(Operation.ListStreams)["streams"] == []


def test_streams_outside_of_the_token_are_rejected_whether_they_exist_or_not(
    broker: LocalBroker, tokens: Catalog
) -> None:
    with enter(broker, tokens, "limited", Role.admin, "sensor-*") as client:
        for name in ("secret", "nowhere"):
            message = {"name": name, "firstSequenceNumber": 0, "endSequenceNumber": 1}
            requests: dict[Operation, Json] = {
                Operation.DescribeMessageStream: {"name": name},
                Operation.DeleteMessageStream: {"name": name},
                Operation.AppendMessage: {"name": name, "payload": b"x"},
                Operation.ReadMessages: {"streamName": name},
                Operation.CreateMessageStream: {"definition": {"name": name, "strategyOnFull": 0}},
                Operation.UpdateMessageStream: {"definition": {"name": name, "strategyOnFull": 0}},
                Operation.AppendMessages: {
                    "name": name,
                    "sizes": b"\x01\0\0\0",
                    "payloads": b"x",
                },
                Operation.ReadColumns: message,
                Operation.ReadStored: message,
                Operation.LocateMessages: message,
            }
            for operation, fields in requests.items():
                with pytest.raises(
                    UnauthorizedException, match=f"does not allow the stream '{name}'"
                ):
                    client.call(operation, **fields)
        assert append(client, "sensor-1", b"y") >= 1


def test_producer_appends_and_consumer_reads(broker: LocalBroker, tokens: Catalog) -> None:
    with (
        enter(broker, tokens, "producer", Role.producer, "*") as producer,
        enter(broker, tokens, "consumer", Role.consumer, "*") as consumer,
    ):
        number = append(producer, "sensor-2", b"hello")
        (message,) = read(consumer, "sensor-2", desiredStartSequenceNumber=number)
        assert message["payload"] == b"hello"
        with pytest.raises(UnauthorizedException, match="producer does not allow ReadMessages"):
            read(producer, "sensor-2")
        with pytest.raises(UnauthorizedException, match="consumer does not allow AppendMessage"):
            append(consumer, "sensor-2", b"no")


def test_each_append_of_a_rejected_run_is_answered(broker: LocalBroker, tokens: Catalog) -> None:
    with enter(broker, tokens, "reader", Role.consumer, "*") as client:
        sent = [
            client.send(Operation.AppendMessage, name="sensor-1", payload=b"x") for _ in range(50)
        ]
        answers = [client.receive()[1] for _ in sent]

    assert [answer["requestId"] for answer in answers] == sent
    assert {answer["status"] for answer in answers} == {ResponseStatusCode.Unauthorized}


@pytest.mark.parametrize("token", ["", "wrong"])
def test_wrong_token_is_answered_before_the_close(broker: LocalBroker, token: str) -> None:
    with pytest.raises(ConnectFailedException, match="token") as caught:
        broker.connect(token)

    assert caught.value.status is ResponseStatusCode.Unauthorized


def test_revocation_closes_only_connections_of_the_token(
    broker: LocalBroker, tokens: Catalog
) -> None:
    with (
        enter(broker, tokens, "leaked", Role.admin, "*") as leaked,
        enter(broker, tokens, "kept", Role.admin, "*") as kept,
    ):
        assert tokens.remove_token("leaked")

        leaked.socket.settimeout(TIMEOUT_S)
        assert leaked.socket.recv(1) == b""
        assert kept.call(Operation.ListStreams)["status"] == 0
