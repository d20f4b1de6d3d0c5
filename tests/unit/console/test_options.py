"""Which engines a stack starts, on which nodes, with which models."""

import pytest

from console.options import ModelShare, StackOptions, parse_model, plan_engines
from tokenfleet.errors import ConfigurationError


def test_by_default_eight_engines_of_one_model_share_two_nodes_evenly():
    plans = plan_engines(StackOptions())
    assert len({plan.instance for plan in plans}) == 8
    assert [sum(plan.node == node for plan in plans) for node in ("node-1", "node-2")] == [4, 4]
    assert {(plan.model, plan.version) for plan in plans} == {("llama-70b", "1")}


def test_models_without_a_number_share_what_the_others_leave():
    models = (ModelShare("a", engines=3), ModelShare("b"), ModelShare("c", "2"))
    plans = plan_engines(StackOptions(engines=8, models=models))
    counts = {model: sum(plan.model == model for plan in plans) for model in "abc"}
    assert counts == {"a": 3, "b": 3, "c": 2}
    assert {plan.version for plan in plans if plan.model == "c"} == {"2"}


def test_each_models_engines_are_spread_over_the_nodes_because_a_node_may_fail():
    plans = plan_engines(StackOptions(engines=4, nodes=2, models=(ModelShare("a"), ModelShare("b"))))
    for model in "ab":
        assert {plan.node for plan in plans if plan.model == model} == {"node-1", "node-2"}


@pytest.mark.parametrize(
    "models",
    [
        (ModelShare("a", engines=9),),
        (ModelShare("a", engines=3),),
        (ModelShare("a", engines=8), ModelShare("b")),
    ],
)
def test_engines_that_cannot_be_dealt_are_refused(models: tuple[ModelShare, ...]):
    with pytest.raises(ConfigurationError, match="8 engines cannot be dealt"):
        plan_engines(StackOptions(engines=8, models=models))


def test_no_engines_plans_none():
    assert plan_engines(StackOptions(start_engines=False)) == []


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("llama", ModelShare("llama", "1", None)),
        ("llama=4", ModelShare("llama", "1", 4)),
        ("org/llama-70b@2", ModelShare("org/llama-70b", "2", None)),
        ("llama@2024-01=2", ModelShare("llama", "2024-01", 2)),
    ],
)
def test_a_model_option_names_model_version_and_engines(text: str, share: ModelShare):
    assert parse_model(text) == share


@pytest.mark.parametrize("text", ["", "=4", "llama=", "llama=many", "llama=0", "llama@"])
def test_a_malformed_model_option_is_refused_with_the_form_expected(text: str):
    with pytest.raises(ConfigurationError, match="--model"):
        parse_model(text)


def test_an_unknown_profile_is_refused_before_anything_starts():
    with pytest.raises(ConfigurationError, match="llama70b-tp4-h100"):
        plan_engines(StackOptions(profile="abacus"))
