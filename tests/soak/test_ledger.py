from __future__ import annotations

from soak.checks import Defect, Found, compare
from soak.ledger import Ledger
from soak.messages import MessageId


def test_expected_contents_follow_from_responses() -> None:
    stream = Ledger().add("a stream")
    source = stream.add_source()
    first = source.send(3)
    source.answer(first, 10)
    source.refuse(first + 2)
    expected = stream.expected()
    assert expected.answered == [(10, MessageId(source.name, 0))]
    assert expected.sent == {source.name: 3}
    assert expected.refused == {MessageId(source.name, 2)}
    assert stream.expected(11).answered == []
    assert " " not in source.name


def test_number_assigned_to_two_sources_is_reported() -> None:
    stream = Ledger().add("stream")
    sources = [stream.add_source(), stream.add_source()]
    for source in sources:
        source.answer(source.send(), 0)
    found = Found(0, 0, 1, {0: MessageId(sources[0].name, 0)})
    findings = compare(stream.name, stream.expected(), found).findings
    assert Defect.REUSED in {finding.defect for finding in findings}


def test_forgotten_acknowledgements_are_not_expected() -> None:
    stream = Ledger().add("stream")
    source = stream.add_source()
    for number in range(5):
        source.answer(source.send(), number)
    assert stream.numbers_since(3) == {3, 4}
    assert stream.forget({4, 9}) == 1
    assert [number for number, _ in stream.expected().answered] == [0, 1, 2, 3]


def test_acknowledgements_of_deleted_streams_are_counted() -> None:
    ledger = Ledger()
    source = ledger.add("stream").add_source()
    source.answer(source.send(), 0)
    ledger.remove("stream")
    assert ledger.answers == 1
    assert ledger.streams() == []
