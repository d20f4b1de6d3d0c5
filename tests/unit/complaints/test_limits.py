"""What users of other routers report of identities and limits, turned into what TokenFleet does instead.

Rows are those of docs/peers-complaints.md.
"""

import pytest

from ingress.policy.asked import UnacceptableError, read
from ingress.policy.token_rate import Exceeded, Reservation, TokenRates, used_tokens
from tokenfleet.contracts.policy import Policy, Tier
from tokenfleet.contracts.requests import Ended, Outcome

CLASSES = Policy().objectives
ENDED = Ended(
    event_id="r.end", request_id="r", attempt=1, tenant="acme", pool="m@1", site="local", time_ns=2,
    outcome="completed", reason="stop", status=200, model="m", stream=True, submitted_ns=1, e2e_s=1.0,
    instance="a", input_tokens=300, output_tokens=50,
)  # fmt: skip


class TestHeadersGiveNobodyMoreThanItsKeyDoes:
    """Row 9 (llm-d-async #380, aisix #766): tenant, priority and fairness id were whatever a header said."""

    @pytest.mark.parametrize(
        ("asked", "tenants", "in_force"),
        [
            ("priority", "default", "default"),
            ("priority", "flex", "flex"),
            ("priority", "priority", "priority"),
            ("auto", "priority", "default"),
            (None, "flex", "flex"),
            ("flex", "priority", "flex"),
        ],
    )
    def test_a_tier_is_what_was_asked_for_but_at_most_the_tenants(
        self, asked: str | None, tenants: Tier, in_force: Tier
    ):
        assert read({}, asked, tenants, CLASSES).service_tier == in_force

    def test_naming_a_class_does_not_lead_out_of_flex(self):
        named = {"x-gateway-inference-objective": "interactive"}
        assert read(named, None, "flex", CLASSES).task is None
        assert read(named, None, "default", CLASSES).task == "interactive"

    def test_an_objective_that_does_not_exist_is_refused_rather_than_passed_over(self):
        with pytest.raises(UnacceptableError, match="no such objective"):
            read({"x-gateway-inference-objective": "vip"}, None, "priority", CLASSES)

    def test_what_a_request_is_told_to_be_has_no_tenant_in_it(self):
        headers = ("x-tenant", "x-tenant-id", "x-user", "x-priority", "tenant")
        claims: dict[str, str] = dict.fromkeys(headers, "somebody-else")
        assert read(claims, None, "default", CLASSES) == read({}, None, "default", CLASSES)


class TestLimitsAreWhatTheySay:
    """Row 22 (aibrix #848, envoy ai-gateway #1866, #1571): surprising limits, not applied to every attempt."""

    def test_tokens_per_minute_are_tokens_per_minute(self):
        rates = TokenRates()
        taken = [rates.reserve("acme", 1_000, 300, 50, 0.0) for _ in range(3)]
        assert [isinstance(each, Reservation) for each in taken] == [True, True, False]
        later = rates.reserve("acme", 1_000, 300, 50, 30.0)
        assert isinstance(later, Reservation)

    def test_who_is_over_the_limit_is_told_when_it_would_do(self):
        rates = TokenRates()
        rates.reserve("acme", 1_000, 950, 50, 0.0)
        refused = rates.reserve("acme", 1_000, 300, 50, 0.0)
        assert isinstance(refused, Exceeded)
        assert refused.retry_after_s is not None
        assert isinstance(rates.reserve("acme", 1_000, 300, 50, refused.retry_after_s), Reservation)

    def test_what_was_reserved_and_not_used_is_given_back_and_what_was_used_beyond_is_charged(self):
        rates = TokenRates()
        reserved = rates.reserve("acme", 1_000, 100, 800, 0.0)
        assert isinstance(reserved, Reservation)
        assert isinstance(rates.reserve("acme", 1_000, 500, 100, 0.0), Exceeded)
        rates.settle(reserved, 120)
        small = rates.reserve("acme", 1_000, 500, 100, 0.0)
        assert isinstance(small, Reservation)
        rates.settle(small, 5_000)
        assert isinstance(rates.reserve("acme", 1_000, 1, 1, 60.0), Exceeded)

    def test_one_tenants_use_leaves_anothers_limit_alone(self):
        rates = TokenRates()
        rates.reserve("acme", 1_000, 950, 50, 0.0)
        assert isinstance(rates.reserve("beta", 1_000, 950, 50, 0.0), Reservation)

    @pytest.mark.parametrize(
        ("outcome", "instance", "output_tokens", "used"),
        [
            ("completed", "a", 50, 350),
            ("cancelled", "a", 20, 320),
            ("timed_out", "a", 20, 320),
            ("failed", "a", 0, 0),
            ("rejected", None, 0, 0),
            ("cancelled", None, 0, 0),
        ],
    )
    def test_a_tenant_pays_for_the_answer_it_got_and_not_for_attempts_that_engines_failed(
        self, outcome: Outcome, instance: str | None, output_tokens: int, used: int
    ):
        fields = {name: getattr(ENDED, name) for name in ENDED.__struct_fields__}
        ended = Ended(**{**fields, "outcome": outcome, "instance": instance, "output_tokens": output_tokens})
        assert used_tokens(ended) == used
        retried = Ended(**{**fields, "retried_input_tokens": 300, "retried_output_tokens": 10, "attempt": 2})
        assert used_tokens(retried) == used_tokens(ENDED)
