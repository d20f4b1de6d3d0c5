"""A policy in a file: only what it says differs, and what is wrong is named."""

import json
from pathlib import Path

import pytest

from lab.whatif.policy_file import differences, read_policy
from tokenfleet.contracts.policy import ClassObjective, Policy
from tokenfleet.errors import PolicyError

LIVE = Policy(misses_allowed=0.5, objectives={"interactive": ClassObjective(ttft_s=2.0, tpot_s=0.05)})


def written(folder: Path, text: str, name: str = "policy.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_what_a_file_does_not_say_stays_as_it_was_live(tmp_path: Path):
    policy = read_policy(
        written(tmp_path, 'routing = "round_robin"\n[objectives.interactive]\nttft_s = 3\n'), LIVE
    )
    assert policy.routing == "round_robin"
    assert policy.misses_allowed == 0.5
    assert policy.objectives == {"interactive": ClassObjective(ttft_s=3.0, tpot_s=0.05)}
    assert differences(LIVE, policy) == {
        "routing": ("predicted", "round_robin"),
        "objectives.interactive.ttft_s": (2.0, 3.0),
    }


def test_json_does_as_well_and_null_takes_a_term_away(tmp_path: Path):
    text = json.dumps({"objectives": {"interactive": {"tpot_s": None}}, "shares": {"batch": {"floor": 0.1}}})
    policy = read_policy(written(tmp_path, text, "policy.json"), LIVE)
    assert policy.objectives["interactive"] == ClassObjective(ttft_s=2.0)
    assert policy.shares["batch"].floor == 0.1


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("routin = 'round_robin'", "no setting routin"),
        ("[queue]\nwait = 1", "no setting queue.wait"),
        ("[objectives.interactive]\nttft = 1", "no setting objectives.interactive.ttft"),
        ("routing = 'fastest'", "routing: Invalid enum value 'fastest'"),
        ("misses_allowed = -1", "misses_allowed: Expected `float` > 0"),
        ("[shares.batch]\nfloor = 'much'", "shares"),
        ("[shares.batch]\nfloor = 0.9", "add up to 1.6"),
        ("queue = 3", "queue: Expected `object`"),
        ("routing = ", "is not TOML"),
        ("", "no setting in it"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, named: str):
    with pytest.raises(PolicyError) as raised:
        read_policy(written(tmp_path, text), LIVE)
    assert named in str(raised.value)
    assert str(tmp_path / "policy.toml") in str(raised.value)


@pytest.mark.parametrize(("text", "named"), [("{", "is not JSON"), ("[1]", "is an object of settings")])
def test_broken_json_is_told(tmp_path: Path, text: str, named: str):
    with pytest.raises(PolicyError, match=named):
        read_policy(written(tmp_path, text, "policy.json"), LIVE)
