"""The latest roll-ups as gauges, for Prometheus and OTLP alike."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from opentelemetry.metrics import CallbackOptions, CallbackT, Meter, Observation

from tokenfleet.contracts.control import Capacity, SiteCapacity

LIVENESS_VALUE = {"dead": 0, "suspect": 1, "alive": 2}

INSTANCE_GAUGES = (
    ("liveness", "liveness", "2 alive, 1 suspect, 0 dead."),
    ("waiting", "waiting", "Requests queued in the engine."),
    ("running", "running", "Requests the engine is running."),
    ("kv_usage", "kv_usage", "Share of KV blocks in use."),
    ("telemetry_age", "age_s", "Seconds since the last reading."),
)
POOL_GAUGES = (
    ("ready", "ready", "Instances that take requests."),
    ("free_slots", "free_slots", "Requests the ready instances could still run at once."),
    ("kv_free_tokens", "kv_free_tokens", "KV tokens free on ready instances."),
)

SITE_GAUGES = (
    ("instances", "instances", "Instances registered at the site."),
    ("ready", "ready", "Instances of all pools that take requests."),
    ("waiting", "waiting", "Requests queued in the engines of all pools."),
    ("running", "running", "Requests the engines of all pools are running."),
)

Latest = Callable[[], Sequence[Capacity]]


def export(meter: Meter, latest: Latest, site: Callable[[], SiteCapacity]) -> None:
    """Register a gauge per figure; what is unknown has no sample rather than a zero."""
    for name, attribute, description in INSTANCE_GAUGES:
        meter.create_observable_gauge(
            f"tokenfleet.instance.{name}", [_instances(latest, attribute)], description=description
        )
    for name, attribute, description in POOL_GAUGES:
        meter.create_observable_gauge(
            f"tokenfleet.pool.{name}", [_pools(latest, attribute)], description=description
        )
    for name, attribute, description in SITE_GAUGES:
        meter.create_observable_gauge(
            f"tokenfleet.site.{name}", [_site(site, attribute)], description=description
        )


def _instances(latest: Latest, attribute: str) -> CallbackT:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        for pool in latest():
            for instance in pool.instances:
                value: Any = getattr(instance, attribute)
                if value is not None:
                    labels = {"tokenfleet.pool": pool.pool, "tokenfleet.instance": instance.instance}
                    number: float = LIVENESS_VALUE[value] if attribute == "liveness" else value
                    yield Observation(number, labels)

    return observe


def _pools(latest: Latest, attribute: str) -> CallbackT:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        for pool in latest():
            value: Any = getattr(pool, attribute)
            if value is not None:
                yield Observation(value, {"tokenfleet.pool": pool.pool, "tokenfleet.site": pool.site})

    return observe


def _site(site: Callable[[], SiteCapacity], attribute: str) -> CallbackT:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        capacity = site()
        yield Observation(getattr(capacity, attribute), {"tokenfleet.site": capacity.site})

    return observe
