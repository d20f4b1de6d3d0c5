"""The command: what it prints, its exit status, and what it says of wrong options."""

import json
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from unit.lab_whatif.recorded import BEGIN_S, changed, run_events, situation, situations, write_file

from lab.whatif.command import NOT_TRUSTED, whatif
from lab.whatif.errors import WhatIfError
from tokenfleet.errors import PolicyError, TokenFleetError

NAMES = [f"i{number}" for number in range(4)]
FROM = datetime.fromtimestamp(BEGIN_S, UTC).isoformat()
TO = datetime.fromtimestamp(BEGIN_S + 1_000, UTC).isoformat()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events")
    return write_file(folder / "events.jsonl.gz", situations([situation(NAMES)]) + run_events(requests=60))


def run(log: Path, *more: str) -> Result:
    arguments = ["--from", FROM, "--to", TO, "--events", str(log), "--seeds", "2", "--processes", "1"]
    return CliRunner().invoke(whatif, [*arguments, *more])


def test_a_what_if_of_an_exported_file_prints_all_columns_and_writes_json(log: Path, tmp_path: Path):
    policy = tmp_path / "policy.toml"
    policy.write_text("routing = 'round_robin'\n")
    out = tmp_path / "whatif.json"
    result = run(log, "--policy", str(policy), "--instances", "3", "--json", str(out))
    assert result.exit_code == 0, result.output
    for said in (
        "recorded",
        "re-run",
        "what-if",
        "goodput",
        "Reproduced",
        "routing: predicted -> round_robin",
    ):
        assert said in result.output
    document = json.loads(out.read_text())
    assert document["trust"]["trusted"] is True
    assert len(document["runs"]["what_if"]) == 2
    assert set(document["difference"]["goodput_tokens_per_s"]) == {"mean", "low", "high"}
    assert document["instances"] == {"llama-70b@v1": [4, 3]}


def test_what_cannot_be_trusted_is_printed_all_the_same_and_ends_with_its_own_status(tmp_path: Path):
    half = write_file(
        tmp_path / "half.jsonl.gz", situations([situation(NAMES[:1])]) + run_events(requests=60)
    )
    result = run(half)
    assert result.exit_code == NOT_TRUSTED
    assert "cannot be trusted" in result.output
    assert "differs: TTFT P50" in result.output
    assert "met, of offered" in result.output
    assert "3  it is not" in CliRunner().invoke(whatif, ["--help"]).output


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--from", TO, "--to", FROM), "--from is not before --to"),
        (("--from", "yesterday"), "neither a time such as"),
        (("--seeds", "0"), "--seeds"),
        (("--instances", "none"), "not a number of instances"),
        (("--instances", "0"), "not a number of instances"),
        (("--policy", "/no/such/file.toml"), "does not exist"),
        (("--events", "/no/such/file.jsonl.gz"), "does not exist"),
        (("--warm-up", "long"), "not a duration"),
    ],
)
def test_a_wrong_option_is_named(log: Path, more: tuple[str, ...], said: str):
    result = run(log, *more)
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", " ").split())


def test_an_empty_window_says_so(log: Path):
    result = run(log, "--from", "2h", "--to", "1h")
    assert isinstance(result.exception, WhatIfError)
    assert "No request was submitted in this window" in str(result.exception)


def test_a_wrong_policy_is_an_error_before_anything_runs(log: Path, tmp_path: Path):
    policy = tmp_path / "policy.toml"
    policy.write_text("rooting = 'round_robin'\n")
    result = run(log, "--policy", str(policy))
    assert isinstance(result.exception, PolicyError)


def test_a_file_that_is_no_event_log_is_named(tmp_path: Path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(b"\xff\xd8\xff")
    result = run(path)
    assert isinstance(result.exception, TokenFleetError)
    assert "photo.jpg" in str(result.exception)


def test_a_window_in_which_nothing_completed_cannot_be_run(tmp_path: Path):
    events = run_events(requests=3)
    for number in range(3):
        events = changed(events, f"r{number}", outcome="failed", output_tokens=0)
    path = write_file(tmp_path / "failed.jsonl.gz", situations([situation(NAMES)]) + events)
    result = run(path)
    assert isinstance(result.exception, WhatIfError)
    assert "Not one request of this window completed" in str(result.exception)


def test_a_message_of_a_version_to_come_is_counted_and_hinders_nothing(tmp_path: Path):
    events = run_events(requests=60)
    newer = ("tf.v1.local.situation", msgspec.json.encode({"schema": 2}))
    path = write_file(tmp_path / "newer.jsonl.gz", [*situations([situation(NAMES)]), newer, *events])
    result = run(path)
    assert result.exit_code == 0
    assert "1 messages could not be read" in result.output
