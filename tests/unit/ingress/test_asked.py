"""What a client may ask for in headers, and what it cannot raise itself above."""

import pytest

from ingress.policy.asked import Asked, UnacceptableError, go_duration_s, read, tier_in_force
from tokenfleet.contracts.policy import Tier
from tokenfleet.contracts.requests import Objective

CLASSES = ("interactive", "long_context", "batch", "voice")


def asked(headers: dict[str, str], service_tier: str | None = None, tenant_tier: Tier = "default") -> Asked:
    return read(headers, service_tier, tenant_tier, CLASSES)


def test_a_request_that_asks_for_nothing_is_of_the_default_tier() -> None:
    assert asked({}) == Asked()
    assert Asked().service_tier == "default"


@pytest.mark.parametrize(
    ("wanted", "tenant_tier", "tier"),
    [
        (None, "priority", "default"),
        ("auto", "priority", "default"),
        ("default", "priority", "default"),
        ("priority", "priority", "priority"),
        ("flex", "priority", "flex"),
        ("priority", "default", "default"),
        ("flex", "default", "flex"),
        (None, "flex", "flex"),
        ("priority", "flex", "flex"),
    ],
)
def test_the_tier_in_force_is_what_was_asked_at_most_the_tenants(
    wanted: str | None, tenant_tier: Tier, tier: Tier
) -> None:
    assert tier_in_force(wanted, tenant_tier) == tier


@pytest.mark.parametrize("wanted", ["scale", "Priority", "", "batch"])
def test_an_unknown_tier_is_refused_with_those_that_there_are(wanted: str) -> None:
    with pytest.raises(UnacceptableError, match="auto, default, priority, flex") as caught:
        asked({}, wanted)
    assert caught.value.name == "service_tier"


def test_objectives_are_read_in_milliseconds() -> None:
    assert asked({"x-slo-ttft-ms": "1500", "x-slo-tpot-ms": "62.5"}).objective == Objective(
        ttft_s=1.5, tpot_s=0.0625
    )
    assert asked({"x-slo-ttft-ms": " 1500 "}).objective == Objective(ttft_s=1.5)


def test_the_present_name_of_a_header_counts_before_its_older_one() -> None:
    both = {"x-slo-ttft-ms": "9000", "x-llm-d-slo-ttft-ms": "1500"}
    assert asked(both).objective == Objective(ttft_s=1.5)
    assert asked(both | {"x-llm-d-slo-ttft-ms": ""}).objective == Objective(ttft_s=9.0), "empty says nothing"
    assert asked({"x-llm-d-inference-objective": "voice"}).task == "voice"
    assert asked({"x-llm-d-inference-fairness-id": "ann"}).fairness_id == "ann"


@pytest.mark.parametrize(
    "header",
    ["x-slo-ttft-ms", "x-slo-tpot-ms", "x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms", "x-queue-ttl-ms"],
)
@pytest.mark.parametrize(
    "value", ["0", "-1", "nan", "inf", "1e3", "1s", "many", "1,5", "0x10", "999999999999", "٣"]
)
def test_what_is_no_time_is_refused_by_name(header: str, value: str) -> None:
    with pytest.raises(UnacceptableError, match="milliseconds") as caught:
        asked({header: value})
    assert caught.value.name == header


def test_a_class_of_the_policy_becomes_the_task() -> None:
    assert asked({"x-gateway-inference-objective": "voice"}).task == "voice"


def test_an_unknown_class_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UnacceptableError, match="batch, interactive, long_context, voice"):
        asked({"x-gateway-inference-objective": "sheddable"})


def test_anybody_may_ask_for_batch_even_where_the_policy_promises_it_nothing() -> None:
    headers = {"x-gateway-inference-objective": "batch"}
    assert read(headers, None, "default", ["interactive"]).task == "batch"
    assert read(headers, None, "flex", ["interactive"]).task == "batch"


@pytest.mark.parametrize(("service_tier", "tenant_tier"), [(None, "flex"), ("flex", "priority")])
def test_naming_a_class_does_not_lead_out_of_flex(service_tier: str | None, tenant_tier: Tier) -> None:
    request = asked({"x-gateway-inference-objective": "voice"}, service_tier, tenant_tier)
    assert (request.service_tier, request.task) == ("flex", None)


@pytest.mark.parametrize("value", ["ann", "user:42", "ann+x@example.org", "a" * 128])
def test_a_fairness_id_is_kept_as_it_is(value: str) -> None:
    assert asked({"x-gateway-inference-fairness-id": value}).fairness_id == value


@pytest.mark.parametrize("value", ["a" * 129, "a b", "a\tb", "ä", "a;b", "<script>"])
def test_a_fairness_id_is_bounded(value: str) -> None:
    with pytest.raises(UnacceptableError, match="1 to 128"):
        asked({"x-gateway-inference-fairness-id": value})


@pytest.mark.parametrize(
    ("value", "seconds"), [("2s", 2.0), ("1500ms", 1.5), ("1m30s", 90.0), ("0.5h", 1800.0), ("250us", 250e-6)]
)
def test_the_queue_ttl_is_a_duration_as_llm_d_has_it(value: str, seconds: float) -> None:
    assert asked({"x-llm-d-inference-ttl": value}).queue_ttl_s == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["2", "0s", "-2s", "s", "2 s", "1d", ".s", "9999999h", "1.2.3s"])
def test_what_is_no_duration_is_refused(value: str) -> None:
    with pytest.raises(UnacceptableError, match="duration"):
        asked({"x-llm-d-inference-ttl": value})


def test_of_two_queue_ttls_the_shorter_counts() -> None:
    assert asked({"x-queue-ttl-ms": "500", "x-llm-d-inference-ttl": "2s"}).queue_ttl_s == 0.5
    assert asked({"x-queue-ttl-ms": "5000", "x-llm-d-inference-ttl": "2s"}).queue_ttl_s == 2.0
    assert asked({"x-queue-ttl-ms": "5000"}).queue_ttl_s == 5.0


def test_a_duration_needs_its_units() -> None:
    assert go_duration_s("10") is None
    assert go_duration_s("1h2m3s4ms") == pytest.approx(3723.004)


def test_a_header_that_claims_a_tenant_says_nothing() -> None:
    assert asked({"x-tenant": "other", "x-tokenfleet-tenant": "other", "x-priority": "9"}) == Asked()
