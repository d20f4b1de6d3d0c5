"""Choices for tests: only what a test is about needs to be said."""

from collections.abc import Mapping, Sequence
from typing import Any

from fleets import request, view

from tokenfleet.contracts.policy import Routing
from tokenfleet.contracts.requests import Candidate
from tokenfleet.fleet_view import InstanceView
from tokenfleet.load import LoadView, OutputLengths
from tokenpilot.policy.choose import Choice, Situation, choose
from tokenpilot.policy.demand import Demand
from tokenpilot.policy.roster import roster_of

FLEET = [view("a"), view("b"), view("c")]


def choice_for(
    input_tokens: int = 1_000,
    load: LoadView | None = None,
    matched: Mapping[str, int] | None = None,
    *,
    fleet: Sequence[InstanceView] = FLEET,
    demand: Demand | None = None,
    now_s: float = 0.0,
    routing: Routing = "predicted",
    excluded: tuple[str, ...] = (),
    **known: Any,
) -> Choice | None:
    """What is chosen, among idle instances that hold nothing where not said otherwise."""
    load = load or LoadView()
    for each in fleet:
        load.joined(each.record)
    situation = Situation(
        request(input_tokens, excluded_instances=excluded),
        roster_of(fleet, load),
        matched or {},
        load,
        OutputLengths(),
        demand or Demand(),
        now_s,
        **known,
    )
    return choose(situation, routing=routing)


def choice_of(*args: Any, **known: Any) -> Choice:
    """The same, where there is one."""
    choice = choice_for(*args, **known)
    assert choice is not None
    return choice


def chosen(*args: Any, **known: Any) -> str:
    """The name of the instance chosen."""
    return choice_of(*args, **known).instance.record.instance


def told(choice: Choice) -> dict[str, Candidate]:
    """The candidates by name."""
    return {candidate.instance: candidate for candidate in choice.candidates}
