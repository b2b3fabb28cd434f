"""The exports of all streams, through changes of their definitions."""

from __future__ import annotations

import asyncio

from penstock.broker.exports.export import Export
from penstock.broker.exports.message_export import MessageExport
from penstock.broker.exports.registry import Registry
from penstock.broker.exports.task_export import TaskExport
from penstock.broker.streams import Stream
from penstock.model import ExportConfig
from tests.broker.exports.workbench import Workbench, failure, to_http, to_s3, upload


def make_registry(bench: Workbench) -> Registry:
    def make(stream: Stream, kind: str, config: ExportConfig) -> Export:
        return MessageExport(stream, kind, config, bench.dead_letters, 0.0)

    return Registry(bench.streams, make)


def names(registry: Registry) -> list[tuple[str, str]]:
    return [(export.stream.name, export.identifier) for export in registry]


def test_registry_has_the_exports_of_the_current_definitions(bench: Workbench) -> None:
    registry = make_registry(bench)
    bench.create("a", to_http("one"))
    bench.create("b", {**to_http("two"), **to_s3("three")})
    assert names(registry) == [("a", "one"), ("b", "two"), ("b", "three")]
    bench.update("b", to_http("two"))
    bench.delete("a")
    assert names(registry) == [("b", "two")]
    assert list(registry.of(bench.streams.find("b"))) == ["two"]


def test_changed_export_is_kept(bench: Workbench) -> None:
    registry = make_registry(bench)
    stream = bench.create("s", to_http())
    (export,) = registry
    bench.update("s", to_http(priority=3))
    assert registry.of(stream) == {"e": export}
    assert export.config.priority == 3
    assert registry.has(export)


def test_export_that_is_added_again_or_changes_its_kind_is_a_new_one(bench: Workbench) -> None:
    registry = make_registry(bench)
    bench.create("s", to_http())
    (export,) = registry
    bench.update("s", to_s3())
    (other,) = registry
    assert export is not other
    assert export.name != other.name
    assert not registry.has(export)
    bench.update("s", {})
    bench.update("s", to_s3())
    assert not registry.has(other)
    (last,) = registry
    bench.delete("s")
    assert not registry.has(last)
    bench.create("s", to_s3())
    assert not registry.has(last)
    assert next(iter(registry)).name != last.name


def test_kinds_have_classes_of_their_own(bench: Workbench) -> None:
    stream = bench.create("s", {**to_http("a"), **to_s3("b")})
    exports = bench.exports.of(stream)
    assert isinstance(exports["a"], MessageExport)
    assert isinstance(exports["b"], TaskExport)


def test_uploads_that_had_begun_belong_to_their_export(bench: Workbench) -> None:
    bench.create("s", {"s3TaskExecutor": [{"identifier": "a"}, {"identifier": "b"}]}, 3)
    (found,) = [each for each in bench.plan() if each.identifier == "b"]
    bench.commit(failure(found, uploads=[upload(1), upload(2)]))
    bench.restart()
    assert bench.task_export("s", "a").uploads == []
    assert bench.task_export("s", "b").uploads == [upload(1), upload(2)]


def test_moved_export_is_a_new_one_that_counts_on(bench: Workbench) -> None:
    stream = bench.create("s", to_http(), 0, maxSize=4096, streamSegmentSize=1024)
    bench.append("s", 20, size=500)
    before = bench.export("s")
    lost = bench.activity("s").lost_messages
    assert lost == stream.log.oldest > 0
    asyncio.run(bench.streams.rewind("s", "e", 0))
    after = bench.export("s")
    assert after is not before
    assert after.name != before.name
    assert bench.activity("s").lost_messages == lost
