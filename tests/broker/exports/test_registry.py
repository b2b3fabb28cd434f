"""Which exports there are, and which of them go on when a definition changes."""

from __future__ import annotations

from penstock.broker.exports.registry import Registry
from penstock.store.rows import UploadProgress
from tests.broker.exports.workbench import Workbench, to_http, to_s3, upload


def names(registry: Registry) -> list[tuple[str, str]]:
    return [(export.stream.name, export.identifier) for export in registry]


def test_they_are_those_of_the_streams_as_they_are_now(bench: Workbench) -> None:
    registry = Registry(bench.streams, [])
    bench.create("a", to_http("one"))
    bench.create("b", {**to_http("two"), **to_s3("three")})
    assert names(registry) == [("a", "one"), ("b", "two"), ("b", "three")]
    bench.update("b", to_http("two"))
    bench.delete("a")
    assert names(registry) == [("b", "two")]
    assert list(registry.of(bench.streams.find("b"))) == ["two"]


def test_one_that_is_changed_goes_on(bench: Workbench) -> None:
    registry = Registry(bench.streams, [])
    stream = bench.create("s", to_http())
    (export,) = registry
    bench.update("s", to_http(priority=3))
    assert registry.of(stream) == {"e": export}
    assert export.config.priority == 3
    assert registry.has(export)


def test_one_that_is_added_again_or_of_another_kind_is_another_one(bench: Workbench) -> None:
    registry = Registry(bench.streams, [])
    bench.create("s", to_http())
    (export,) = registry
    bench.update("s", to_s3())
    (other,) = registry
    assert export is not other
    assert not registry.has(export)
    bench.update("s", {})
    bench.update("s", to_s3())
    assert not registry.has(other)
    (last,) = registry
    bench.delete("s")
    assert list(registry.known()) == [last]
    bench.create("s", to_s3())
    assert not registry.has(last)


def test_uploads_that_were_going_on_are_those_of_their_export(bench: Workbench) -> None:
    stream = bench.create("s", {"s3TaskExecutor": [{"identifier": "a"}, {"identifier": "b"}]})
    begun = [
        UploadProgress(
            export_id=stream.stored.progress["b"].export_id,
            stream="s",
            identifier="b",
            upload=upload(number),
        )
        for number in (1, 2)
    ]
    registry = Registry(bench.streams, begun)
    exports = registry.of(stream)
    assert exports["a"].uploads == []
    assert exports["b"].uploads == [upload(1), upload(2)]
