from __future__ import annotations

from soak.messages import MessageId, identify, make_payload


def test_message_is_identified_by_its_bytes() -> None:
    for counter in range(500):
        payload = make_payload("stream/0", counter)
        assert identify(payload) == MessageId("stream/0", counter)


def test_changed_message_is_not_identified() -> None:
    payload = make_payload("stream/0", 7)
    assert identify(payload[:-1]) is None
    assert identify(payload + b"x") is None
    for place in range(len(payload)):
        changed = bytearray(payload)
        changed[place] ^= 1
        assert identify(bytes(changed)) != MessageId("stream/0", 7)


def test_arbitrary_bytes_are_not_identified() -> None:
    for payload in (b"", b"x", b"a b c", b"a 1 ", b"\xff 1 x", b"a " + b"9" * 40 + b" x"):
        assert identify(payload) is None
