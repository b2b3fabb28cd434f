"""Metrics, as Prometheus reads them."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import pairwise

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from penstock import __version__
from penstock.broker.access import Role
from penstock.broker.counters import Distribution, Durations
from penstock.web import metrics
from penstock.web.metrics import DECLARED, TELEMETRY, Kind
from tests.broker.exports.workbench import to_http, to_s3
from tests.support import TIMEOUT_S, append, create, read, wait_until
from tests.web.site import Site, commit, plan

STREAM = "a b,.-_"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site in which every metric has a value."""
    with Site(tmp_path_factory.mktemp("site") / "root") as site, site.connect() as client:
        create(client, STREAM, exportDefinition=to_http("to the cloud"), flushOnWrite=True)
        create(client, "tasks", exportDefinition=to_s3())
        create(client, "empty")
        for _ in range(3):
            append(client, STREAM, b"12345")
        read(client, STREAM, minMessageCount=2)
        (found,) = plan(client)
        commit(client, found, settledEnd=1, exportedMessages=1, exportedBytes=5, sentBytes=70)
        (found,) = plan(client)
        failed = {"settledEnd": 1, "exportedMessages": 0, "sentBytes": 30, "error": "down"}
        commit(client, found, **failed, pauseMillis=300_000)
        wait_until(lambda: b"retry_in_seconds{" in site.get("/metrics").body)
        yield site


@pytest.fixture
def text(site: Site) -> str:
    answer = site.get("/metrics")
    assert answer.status == 200
    return answer.body.decode()


@pytest.fixture
def families(text: str) -> dict[str, Metric]:
    """By declared name."""
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    """The value of the sample with this name and these labels."""
    (found,) = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    return float(found)


EXPORT = {"stream": STREAM, "export": "to the cloud", "kind": "http"}


def test_every_declared_metric_is_served_with_kind_and_help(families: dict[str, Metric]) -> None:
    for declared in DECLARED:
        family = families[declared.name]
        assert family.type == declared.kind
        assert family.documentation == declared.help
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(declared.labels)
    ours = {name for name in families if name.startswith("penstock_")}
    assert ours == {declared.name for declared in DECLARED}


def test_every_declared_metric_has_a_sample(families: dict[str, Metric]) -> None:
    assert [declared.name for declared in DECLARED if not families[declared.name].samples] == []


def test_names_follow_the_conventions_of_prometheus() -> None:
    names = [declared.name for declared in DECLARED]
    assert len(set(names)) == len(names)
    for declared in DECLARED:
        assert re.fullmatch(r"penstock_[a-z0-9_]+", declared.name)
        assert not declared.name.endswith(("_total", "_count", "_sum", "_bucket"))
        assert declared.help
        assert "|" not in declared.help


def test_process_metrics_are_served(families: dict[str, Metric]) -> None:
    assert value(families, "process_resident_memory_bytes") > 1_000_000
    assert value(families, "process_open_fds") > 5


def test_requests_of_clients_are_counted(families: dict[str, Metric]) -> None:
    assert value(families, "penstock_build_info", version=__version__) == 1
    assert value(families, "penstock_connections") == 1
    assert value(families, "penstock_appended_messages_total") == 3
    assert value(families, "penstock_appended_bytes_total") == 15
    assert value(families, "penstock_read_messages_total") == 2
    assert value(families, "penstock_read_bytes_total") == 10
    assert value(families, "penstock_streams") == 3
    assert value(families, "penstock_streams_unreadable") == 0
    assert value(families, "penstock_disk_free_bytes") > 0
    assert value(families, "penstock_log_records_total", level="ERROR") >= 0


def test_streams_have_their_own_samples(families: dict[str, Metric]) -> None:
    assert value(families, "penstock_stream_messages", stream=STREAM) == 3
    assert value(families, "penstock_stream_messages", stream="empty") == 0
    assert value(families, "penstock_stream_appended_bytes_total", stream=STREAM) == 15
    newest = families["penstock_stream_newest_message_time_seconds"]
    assert [sample.labels["stream"] for sample in newest.samples] == [STREAM]
    started = value(families, "penstock_start_time_seconds")
    assert started <= newest.samples[0].value < started + 3600


def test_exports_have_their_own_samples(families: dict[str, Metric]) -> None:
    assert value(families, "penstock_export_lag_messages", **EXPORT) == 2
    assert value(families, "penstock_export_lag_seconds", **EXPORT) >= 0
    assert value(families, "penstock_export_paused", **EXPORT) == 0
    assert value(families, "penstock_export_failures_in_a_row", **EXPORT) == 1
    assert value(families, "penstock_export_retry_in_seconds", **EXPORT) > 1
    assert value(families, "penstock_export_processed_messages_total", **EXPORT) == 1
    assert value(families, "penstock_export_bytes_total", **EXPORT) == 5


def test_unused_kinds_of_exports_start_at_zero(families: dict[str, Metric]) -> None:
    assert value(families, "penstock_deliveries_total", kind="http") == 2
    assert value(families, "penstock_delivery_failures_total", kind="http") == 1
    assert value(families, "penstock_sent_bytes_total", kind="http") == 100
    assert value(families, "penstock_sent_bytes_total", kind="kinesis") == 0


def test_equivalents_of_telemetry_are_served(text: str) -> None:
    for ours in TELEMETRY.values():
        assert f"\n{ours} " in text


# Histograms


def test_histograms_are_cumulative(site: Site) -> None:
    # Wait for a periodic sync.
    wait_until(lambda: "penstock_sync_seconds_count 0.0" not in site.get("/metrics").body.decode())
    found = text_string_to_metric_families(site.get("/metrics").body.decode())
    histograms = {each.name: each for each in found if each.type == Kind.histogram}

    for name, labels in (
        ("penstock_sync_seconds", {}),
        ("penstock_flush_seconds", {}),
        ("penstock_delivery_seconds", {"kind": "http"}),
    ):
        samples = [s for s in histograms[name].samples if labels.items() <= s.labels.items()]
        buckets = [s for s in samples if s.name.endswith("_bucket")]
        bounds = [float(sample.labels["le"]) for sample in buckets]
        assert bounds == sorted(set(bounds))
        assert bounds[-1] == math.inf
        assert all(a.value <= b.value for a, b in pairwise(buckets))
        (counted,) = [s.value for s in samples if s.name.endswith("_count")]
        assert buckets[-1].value == counted > 0
        (total,) = [s.value for s in samples if s.name.endswith("_sum")]
        assert total >= 0


def test_buckets_of_a_histogram_are_sums() -> None:
    durations = Durations((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        durations.note(seconds)

    found = durations.snapshot()
    assert found == Distribution((0.1, 1.0), (2, 1, 1), 7.65)
    assert metrics._buckets(found) == [("0.1", 2.0), ("1.0", 3.0), ("+Inf", 4.0)]


# Tokens and format


def test_token_sees_its_streams_and_the_totals(site: Site) -> None:
    token = site.make_token(Role.consumer, "tas*")
    text = site.get("/metrics", token).body.decode()

    assert 'penstock_stream_messages{stream="tasks"}' in text
    assert 'stream="empty"' not in text
    assert "to the cloud" not in text
    assert "penstock_appended_messages_total 3.0" in text


def test_labels_are_escaped() -> None:
    declared = metrics.DeclaredMetric(
        "m", Kind.gauge, "help", lambda _: [(('a"b\\c\nd',), 1.0)], ("x",)
    )
    family = metrics._family(declared, [(('a"b\\c\nd',), 1.0)])

    assert [sample.labels for sample in family.samples] == [{"x": 'a"b\\c\nd'}]


def test_response_has_the_text_format_of_prometheus(site: Site) -> None:
    answer = site.get("/metrics")

    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert answer.headers["content-type"].count("charset=utf-8") == 1
    assert answer.body.endswith(b"\n")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_metrics(text: str) -> None:
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=text,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
