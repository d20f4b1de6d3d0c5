"""`tokenfleet policy set KEY=VALUE`: what is accepted, and that a mistake changes nothing."""

import pytest

from console.operator import apply
from tokenfleet.contracts.policy import Policy
from tokenfleet.errors import PolicyError


def test_values_are_json_or_words():
    changed = apply(Policy(), ["routing=round_robin", "admission=false", "long_context_tokens=9000"])
    assert (changed.routing, changed.admission, changed.long_context_tokens) == ("round_robin", False, 9000)


def test_nested_keys_change_one_term_and_keep_the_others():
    changed = apply(Policy(), ["objectives.interactive.ttft_s=2"])
    assert changed.objectives["interactive"].ttft_s == 2
    assert changed.objectives["interactive"].tpot_s == Policy().objectives["interactive"].tpot_s
    assert changed.objectives["batch"] == Policy().objectives["batch"]


def test_null_lifts_a_term_and_a_new_class_can_be_added():
    changed = apply(Policy(), ["objectives.batch.e2e_s=null", "objectives.bulk.e2e_s=60"])
    assert changed.objectives["batch"].e2e_s is None
    assert changed.objectives["bulk"].e2e_s == 60


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("routing", "KEY=VALUE"),
        ("=1", "KEY=VALUE"),
        ("routing=dice", "routing"),
        ("wait_share_of_slack=1.5", "wait_share_of_slack"),
        ("speed=3", "no setting named speed"),
        ("objectives.interactive.ttft=2", "no setting named objectives.interactive.ttft"),
        ("objectives.interactive.ttft_s=-1", "ttft_s"),
        ("objectives.interactive=fast", "interactive"),
        ("objectives=7", "objectives"),
        ("routing.speed=1", "single value"),
    ],
)
def test_a_wrong_assignment_is_refused_and_named(assignment: str, complaint: str):
    with pytest.raises(PolicyError, match=complaint):
        apply(Policy(), [assignment])
