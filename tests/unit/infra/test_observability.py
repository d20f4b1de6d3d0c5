"""Prometheus, Grafana and the collector look where the services are, for metrics that the services export."""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import urlsplit

import pytest
import yaml
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import REGISTRY, generate_latest
from unit.infra.deployment import CONTAINERS, INFRA, OFF_THE_BUS, REPOSITORY, SERVICES, environment

from node_agent import instruments
from telemetry_collector.export import export

UNITS = {"s": "seconds"}
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}

DASHBOARD: dict[str, Any] = json.loads((INFRA / "grafana" / "dashboards" / "tokenfleet.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
_SELECTOR = re.compile(r"\{([^}]*)\}")
_GROUPING = re.compile(r"\bby \(([^)]*)\)")


def series_names(kind: str, name: str, unit: str) -> set[str]:
    """Prometheus's names for an OpenTelemetry instrument, as the exporter makes them."""
    kind = kind.removeprefix("create_").removeprefix("observable_")
    base = "_".join(filter(None, (name.replace(".", "_"), UNITS.get(unit, ""))))
    return {base + suffix for suffix in SUFFIXES.get(kind, ("",))}


@cache
def source_trees() -> list[ast.AST]:
    return [ast.parse(path.read_text()) for path in sorted((REPOSITORY / "services").glob("*/*/**/*.py"))]


def instruments_in_the_source() -> Iterator[tuple[str, str, str]]:
    """Kind, name and unit of the instruments whose names are written out."""
    for tree in source_trees():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            name = node.args[0]
            if node.func.attr.startswith("create_") and isinstance(name, ast.Constant):
                units = [
                    k.value.value
                    for k in node.keywords
                    if k.arg == "unit" and isinstance(k.value, ast.Constant)
                ]
                yield node.func.attr, str(name.value), str(units[0]) if units else ""


def instruments_made_in_loops() -> Iterator[tuple[str, str, str]]:
    """The same of those whose names are put together."""
    meter = MagicMock()
    export(meter, list, MagicMock())
    instruments.register(meter, MagicMock())
    for kind, arguments, _ in meter.method_calls:
        yield kind, arguments[0], arguments[2] if len(arguments) > 2 else ""


@cache
def exported_series() -> frozenset[str]:
    found = [*instruments_in_the_source(), *instruments_made_in_loops()]
    return frozenset().union(*(series_names(*instrument) for instrument in found))


def labels_in(query: str) -> set[str]:
    matchers = ",".join(_SELECTOR.findall(query))
    grouping = ",".join(_GROUPING.findall(query))
    return set(re.findall(r"(\w+)\s*[=!]", matchers)) | {
        label.strip() for label in grouping.split(",") if label
    }


def series_in(query: str) -> set[str]:
    return set(re.findall(r"\b(?:tokenfleet|gen_ai)_\w+", _GROUPING.sub("", _SELECTOR.sub("", query))))


def test_names_are_translated_as_the_exporter_translates_them():
    reader = PrometheusMetricReader(disable_target_info=True)
    provider = MeterProvider(metric_readers=[reader])
    try:
        meter = provider.get_meter("test")
        meter.create_counter("test.names.tokens", unit="{token}").add(1)
        meter.create_histogram("test.names.duration", unit="s").record(1)
        meter.create_up_down_counter("test.names.in_flight").add(1)
        meter.create_observable_gauge("test.names.age", [lambda _: [Observation(1)]], "s")
        exposed = set(re.findall(r"^(test_names_\w+)", generate_latest(REGISTRY).decode(), re.MULTILINE))
    finally:
        provider.shutdown()

    assert exposed == (
        series_names("create_counter", "test.names.tokens", "{token}")
        | series_names("create_histogram", "test.names.duration", "s")
        | series_names("create_up_down_counter", "test.names.in_flight", "")
        | series_names("create_observable_gauge", "test.names.age", "s")
    )


@pytest.mark.parametrize("query", QUERIES)
def test_the_dashboard_asks_for_metrics_that_are_exported(query: str):
    assert series_in(query)
    assert series_in(query) <= exported_series()


@pytest.mark.parametrize("query", QUERIES)
def test_the_dashboard_groups_and_filters_by_labels_that_are_exported(query: str):
    written = {
        str(node.value).replace(".", "_")
        for tree in source_trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }

    assert labels_in(query) <= written | {"le"}


@pytest.mark.parametrize(
    "metric",
    [
        'tokenfleet_ledger_tokens_total{tokenfleet_worth="good"}',
        "gen_ai_server_time_to_first_token_seconds_bucket",
        "gen_ai_server_time_per_output_token_seconds_bucket",
        "tokenfleet_instance_liveness",
        "tokenfleet_instance_waiting",
        "tokenfleet_ingress_degraded_total",
        "tokenfleet_ledger_backlog",
    ],
)
def test_the_dashboard_shows_what_an_operator_looks_for_first(metric: str):
    assert any(metric in query for query in QUERIES)


def test_every_panel_reads_a_provisioned_data_source():
    folder = INFRA / "grafana" / "provisioning" / "datasources"
    sources = yaml.safe_load((folder / "tokenfleet.yaml").read_text())["datasources"]

    assert {panel["datasource"]["uid"] for panel in PANELS} <= {source["uid"] for source in sources}
    for source in sources:
        assert urlsplit(source["url"]).hostname in CONTAINERS


def test_prometheus_scrapes_every_service_where_it_answers():
    jobs = yaml.safe_load((INFRA / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    targets = {
        name: lookup["port"] for job in jobs for lookup in job["dns_sd_configs"] for name in lookup["names"]
    }

    assert targets == {
        service: int(
            environment(service)[
                "TOKENFLEET_ENGINE_PORT" if service in OFF_THE_BUS else "TOKENFLEET_ADMIN_PORT"
            ]
        )
        for service in SERVICES
    }


@pytest.mark.parametrize("service", SERVICES)
def test_prometheus_shares_a_network_with_every_service(service: str):
    assert set(CONTAINERS["prometheus"]["networks"]) & set(CONTAINERS[service]["networks"])


def test_the_collector_listens_where_the_services_are_told_to_send():
    collector = yaml.safe_load((INFRA / "otel" / "collector.yaml").read_text())
    example = (REPOSITORY / ".env.example").read_text()
    (host, port) = re.findall(r"OTEL_EXPORTER_OTLP_ENDPOINT=http://([\w-]+):(\d+)", example)[0]

    assert host in CONTAINERS
    assert collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"] == f"0.0.0.0:{port}"


def test_every_pipeline_of_the_collector_is_made_of_parts_that_are_configured():
    collector = yaml.safe_load((INFRA / "otel" / "collector.yaml").read_text())

    assert collector["service"]["pipelines"].keys() == {"traces", "metrics"}
    for pipeline in collector["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            assert set(names) <= collector[kind].keys()
