"""The example for KEDA asks what FleetMind answers, and scales nothing until somebody says so."""

from typing import Any
from urllib.parse import urlsplit

import yaml
from aiohttp import web
from unit.infra.deployment import CONTAINERS, INFRA, environment

from fleetmind.plan_page import PlanPage
from tokenfleet.contracts.policy import PoolScaling, Scaling, scaling_problems

SCALED: dict[str, Any] = yaml.safe_load((INFRA / "keda" / "scaledobject.yaml").read_text())
SPEC: dict[str, Any] = SCALED["spec"]
(TRIGGER,) = SPEC["triggers"]
FIELDS = {"pool", "site", "replicas", "current", "dry_run", "reason"}


def test_it_is_paused_has_a_fallback_and_keeps_to_bounds_that_the_policy_takes():
    assert (SCALED["apiVersion"], SCALED["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    assert SCALED["metadata"]["annotations"] == {"autoscaling.keda.sh/paused": "true"}
    least, most = SPEC["minReplicaCount"], SPEC["maxReplicaCount"]
    assert least <= SPEC["fallback"]["replicas"] <= most
    assert SPEC["fallback"]["failureThreshold"] > 0
    pool = urlsplit(TRIGGER["metadata"]["url"]).path.rpartition("/")[2]
    assert not scaling_problems(Scaling(pools={pool: PoolScaling(min=least, max=most)}))


def test_the_number_of_replicas_is_the_metric_itself_which_only_an_average_of_one_gives():
    """KEDA uses a fallback with metrics of the type AverageValue only."""
    assert (TRIGGER["type"], TRIGGER["metricType"]) == ("metrics-api", "AverageValue")
    assert TRIGGER["metadata"]["targetValue"] == "1"
    assert TRIGGER["metadata"]["valueLocation"] in FIELDS


async def test_it_asks_a_service_that_exists_at_its_admin_port_for_what_it_answers():
    url = urlsplit(TRIGGER["metadata"]["url"])
    assert url.hostname in CONTAINERS
    assert str(url.port) == environment(str(url.hostname))["TOKENFLEET_ADMIN_PORT"]
    app = web.Application()
    PlanPage("A", lambda: 0.0, str).add_to(app)
    routes = [resource.canonical for resource in app.router.resources()]
    assert f"{url.path.rpartition('/')[0]}/{{pool}}" in routes
