"""Alert rules, dashboard and docs/monitoring.md use existing metrics, labels and sections."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from enum import Enum
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_client import CollectorRegistry, ProcessCollector

from penstock.broker.access import Role
from penstock.errors import ResponseStatusCode
from penstock.model import Persistence, StrategyOnFull
from penstock.model.status_message import Status
from penstock.web.metrics import DECLARED, TELEMETRY, Kind
from tests.deploy.project import DEPLOY, PROJECT
from tests.support import TIMEOUT_S

Json = dict[str, Any]

PROMETHEUS = DEPLOY / "prometheus"
GRAFANA = DEPLOY / "grafana"
ALERTS = PROMETHEUS / "alerts.yml"
PAGE = PROJECT / "docs" / "monitoring.md"

SUFFIXES = {
    Kind.counter: ("_total",),
    Kind.gauge: ("",),
    Kind.histogram: ("_bucket", "_sum", "_count"),
}
# Labels that Prometheus adds to every series.
TARGET_LABELS = {"job", "instance"}
# Series of Prometheus itself.
OWN_SERIES = {
    "up": set[str](),
    "ALERTS": {"alertname", "alertstate", "severity"},
}
# The keywords and functions of PromQL that are used.
_WORDS = {
    *("and", "by", "ignoring", "offset", "on", "or", "unless", "without"),
    *("changes", "clamp_min", "count", "histogram_quantile", "increase", "max", "max_over_time"),
    *("min", "min_over_time", "predict_linear", "rate", "sort_desc", "sum", "time", "vector"),
}


def _process_metrics() -> set[str]:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return {sample.name for family in registry.collect() for sample in family.samples}


def _series() -> dict[str, set[str]]:
    """All series of a scrape, with their labels."""
    found = {name: set[str]() for name in _process_metrics()}
    for each in DECLARED:
        for suffix in SUFFIXES[each.kind]:
            labels = {*each.labels, *(("le",) if suffix == "_bucket" else ())}
            found[each.name + suffix] = labels
    return found


KNOWN = {name: labels | TARGET_LABELS for name, labels in (_series() | OWN_SERIES).items()}


class ExpressionNames(NamedTuple):
    """The metrics and labels of an expression."""

    # Metrics, each with the labels of its selector.
    selectors: list[tuple[str, set[str]]]
    # Labels for grouping and matching.
    labels: set[str]

    @property
    def known_labels(self) -> set[str]:
        return set[str]().union(*(KNOWN[name] for name, _ in self.selectors))


def read_expression(expression: str) -> ExpressionNames:
    """Finds names in a PromQL expression whose selectors start with the name of a metric."""
    # Without strings and durations.
    plain = re.sub(r'"[^"]*"', '""', expression)
    plain = re.sub(r"\[[^\]]*\]", "", plain)
    labels = {
        label
        for group in re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", plain)
        for label in re.findall(r"\w+", group)
    }
    plain = re.sub(r"\b(?:by|without|on|ignoring)\s*\([^)]*\)", "", plain)
    plain = re.sub(r"\boffset\s+\w+", "", plain)
    selectors = [
        (name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside or "")))
        for name, inside in re.findall(r"\b([a-zA-Z_]\w*)\s*(?:\{([^}]*)\})?", plain)
        if name not in _WORDS
    ]
    return ExpressionNames(selectors, labels)


def alerts() -> list[Json]:
    return [
        rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    ]


def dashboard() -> Json:
    found: Json = json.loads((GRAFANA / "penstock.json").read_text())
    return found


def panels() -> list[Json]:
    found: list[Json] = dashboard()["panels"]
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Yields all expressions, each with its location."""
    for alert in alerts():
        yield alert["alert"], alert["expr"]
    for panel in panels():
        for target in panel.get("targets", []):
            yield f"panel {panel['title']!r}", target["expr"]
    for annotation in dashboard()["annotations"]["list"]:
        if "expr" in annotation:
            yield f"annotation {annotation['name']!r}", annotation["expr"]
    for line in re.findall(r"^ *expr: (.*)$", PAGE.read_text(), re.MULTILINE):
        yield PAGE.name, line


def test_names_in_an_expression_are_found() -> None:
    names = read_expression(
        'sum by (le) (rate(a_bucket{kind="b{c}", x=~"$y"}[5m] offset 30m)) > 1e3 '
        "unless on (z) d == 1"
    )

    assert names == ExpressionNames([("a_bucket", {"kind", "x"}), ("d", set())], {"le", "z"})


def test_metrics_and_labels_of_expressions_exist() -> None:
    assert len(list(expressions())) > 80
    for where, expression in expressions():
        used = read_expression(expression)
        assert used.selectors, where
        for name, labels in used.selectors:
            assert name in KNOWN, f"{where} uses {name}, which does not exist"
            assert labels <= KNOWN[name], f"{where}: {name} has no label {labels - KNOWN[name]}"
        assert used.labels <= used.known_labels, where


def test_expressions_select_kinds_that_exist() -> None:
    kinds = set(re.findall(r'kind="(\w+)"', " ".join(TELEMETRY.values())))
    for where, expression in expressions():
        assert set(re.findall(r'kind!?="(\w+)"', expression)) <= kinds, where


# The allowed values of labels.
CHOICES: dict[tuple[str, str], type[Enum]] = {
    ("penstock_requests_failed_total", "status"): ResponseStatusCode,
    ("penstock_s3_tasks_total", "status"): Status,
    ("penstock_stream_info", "strategy_on_full"): StrategyOnFull,
    ("penstock_stream_info", "persistence"): Persistence,
}


@pytest.mark.parametrize(("metric", "label"), CHOICES)
def test_statuses_and_strategies_in_expressions_exist(metric: str, label: str) -> None:
    chosen = {
        value
        for _, expression in expressions()
        for inside in re.findall(rf"\b{metric}{{([^}}]*)}}", expression)
        for value in re.findall(rf'\b{label}!?="([^"]*)"', inside)
    }

    assert chosen
    assert chosen <= set(CHOICES[metric, label].__members__)


def test_every_alert_has_severity_and_annotations() -> None:
    names = [alert["alert"] for alert in alerts()]
    assert len(names) == len(set(names)) > 15
    for alert in alerts():
        assert alert["alert"].startswith("Penstock")
        assert alert["labels"]["severity"] in ("critical", "warning", "info"), alert["alert"]
        assert set(alert["annotations"]) == {"summary", "description", "action", "runbook"}


def test_runbook_sections_of_alerts_exist() -> None:
    for alert in alerts():
        runbook = alert["annotations"]["runbook"]
        found = re.fullmatch(r'(docs/[\w-]+\.md), "(.+)"', runbook)
        assert found, runbook
        page = (PROJECT / found[1]).read_text()
        assert f"\n## {found[2]}\n" in page, f"{alert['alert']}: no section {runbook}"


def test_labels_in_annotations_exist() -> None:
    for alert in alerts():
        known = read_expression(alert["expr"]).known_labels
        named = set(re.findall(r"\$labels\.(\w+)", " ".join(alert["annotations"].values())))
        assert named <= known, alert["alert"]


def test_documentation_lists_every_alert_with_severity_and_duration() -> None:
    rows = re.findall(r"^\| `(Penstock\w+)` \| (\w+) \|([^|]*)\|", PAGE.read_text(), re.MULTILINE)

    assert sorted((name, severity, time.strip()) for name, severity, time in rows) == sorted(
        (alert["alert"], alert["labels"]["severity"], alert.get("for", "")) for alert in alerts()
    )


def test_every_alert_has_a_test() -> None:
    tested = (PROMETHEUS / "alerts_test.yml").read_text()
    for alert in alerts():
        assert f'alertname="{alert["alert"]}"' in tested, alert["alert"]


@pytest.mark.parametrize(
    "words",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_accepts_the_rules(words: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian has it in the package prometheus)")
    _run_promtool(promtool, *words)


def test_promtool_accepts_the_expressions_of_the_dashboard(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian has it in the package prometheus)")
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, (_, expression) in enumerate(expressions())
    ]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    _run_promtool(promtool, "check", "rules", str(path))


def _run_promtool(promtool: str, *words: str) -> None:
    finished = subprocess.run(
        [promtool, *words],
        cwd=PROMETHEUS,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_prometheus_token_has_the_role_observer() -> None:
    words = f"penstock tokens create prometheus --role {Role.observer}"
    for path in (PROMETHEUS / "prometheus.yml", PAGE):
        assert words in path.read_text(), path.name


def test_prometheus_uses_the_rules_and_the_default_port() -> None:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())

    assert config["rule_files"] == [ALERTS.name]
    [job] = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["127.0.0.1:8089"]}]
    # The alert for an unreachable broker uses this name.
    assert f'up{{job="{job["job_name"]}"}}' in ALERTS.read_text()


def test_panels_have_unique_ids_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
    positions = [(panel["title"], panel["gridPos"]) for panel in panels()]
    for title, position in positions:
        assert position["x"] + position["w"] <= 24, title
    for (one, here), (other, there) in combinations(positions, 2):
        is_beside = here["x"] + here["w"] <= there["x"] or there["x"] + there["w"] <= here["x"]
        is_below = here["y"] + here["h"] <= there["y"] or there["y"] + there["h"] <= here["y"]
        assert is_beside or is_below, f"{one} and {other}"


def test_panels_have_description_and_unit() -> None:
    for panel in panels():
        if panel["type"] != "row":
            assert panel["description"], panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


def test_panels_use_the_variables_of_the_dashboard() -> None:
    board = dashboard()
    variables = {each["name"] for each in board["templating"]["list"]}
    assert variables == {"datasource", "instance", "stream"}
    for panel in panels():
        for target in panel.get("targets", []):
            assert target["datasource"]["uid"] == "${datasource}", panel["title"]
            assert "$instance" in target["expr"], panel["title"]
            named = set(re.findall(r"\$(?!__)(\w+)", target["expr"]))
            assert named <= variables, panel["title"]


def test_dashboard_has_the_telemetry_of_stream_manager() -> None:
    shown = {
        target["legendFormat"]: target["expr"]
        for panel in panels()
        for target in panel.get("targets", [])
        if "[1d]" in target["expr"]
    }
    for name, metric in TELEMETRY.items():
        # It equals BytesUploadedToS3.
        if name != "BytesUploadedToS3ExportTaskExecutor":
            expression = metric.removesuffix("}").replace("{", '{instance=~"$instance", ')
            assert expression in shown[name], name


def test_provisioning_matches_the_compose_file() -> None:
    [source] = yaml.safe_load(
        (GRAFANA / "provisioning" / "datasources" / "penstock.yml").read_text()
    )["datasources"]
    [provider] = yaml.safe_load(
        (GRAFANA / "provisioning" / "dashboards" / "penstock.yml").read_text()
    )["providers"]
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    services = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())["services"]

    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]
    address = source["url"].removeprefix("http://")
    assert f"--web.listen-address={address}" in services["prometheus"]["command"]
    mounted = {
        inside: (DEPLOY / "docker" / outside).resolve()
        for outside, inside, *_ in (each.split(":") for each in services["grafana"]["volumes"])
    }
    assert mounted["/etc/grafana/provisioning"] == GRAFANA / "provisioning"
    directory = provider["options"]["path"]
    assert GRAFANA / "penstock.json" in (
        mounted.get(f"{directory}/penstock.json"),
        mounted.get(directory, Path()) / "penstock.json",
    )
