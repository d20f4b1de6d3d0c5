"""The latest roll-ups as metrics: per instance, pool and site."""

from typing import Any

from fleets import record, state
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from telemetry_collector.export import export
from telemetry_collector.policy.rollup import roll_up, roll_up_site
from tokenfleet.fleet_view import FleetView


def exported(view: FleetView) -> dict[str, list[tuple[dict[str, Any], float]]]:
    """Attributes and value of every sample, by metric."""
    pools = roll_up(view, "local", 0.1, time_ns=7)
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    export(provider.get_meter("test"), lambda: pools, lambda: roll_up_site(pools, "local", 7))
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: [(dict(point.attributes or {}), point.value) for point in metric.data.data_points]  # type: ignore[union-attr]
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
    }


def fleet() -> FleetView:
    view = FleetView()
    for name, running in (("a", 4), ("b", None)):
        view.apply_record(name, record(name), 0.0)
        view.apply_state(state(name, running=running), 0.0)
    return view


def test_a_site_is_its_pools_added_up():
    samples = exported(fleet())
    assert samples["tokenfleet.site.ready"] == [({"tokenfleet.site": "local"}, 2)]
    assert samples["tokenfleet.site.running"] == [({"tokenfleet.site": "local"}, 4)]


def test_what_an_engine_does_not_tell_has_no_sample_rather_than_a_zero():
    running = exported(fleet())["tokenfleet.instance.running"]
    assert [attributes["tokenfleet.instance"] for attributes, _ in running] == ["a"]


def test_every_instance_says_how_old_its_reading_is():
    ages = exported(fleet())["tokenfleet.instance.telemetry_age"]
    assert [(attributes["tokenfleet.instance"], age) for attributes, age in ages] == [("a", 0.1), ("b", 0.1)]
