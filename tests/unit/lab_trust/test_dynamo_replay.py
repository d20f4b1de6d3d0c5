"""Dynamo's replay stays outside: pinned, absent by default, and fed exactly the simulator's requests."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.errors import TrustError
from lab.traces.load import load_trace, open_trace
from lab.trust.command import trust
from lab.trust.dynamo_engine import ReplayEngine
from lab.trust.dynamo_replay import REQUIREMENTS, run_replay, write_trace


def test_without_an_installation_the_message_says_how_to_get_one(tmp_path: Path):
    with pytest.raises(TrustError, match="--install"):
        run_replay(
            tmp_path / "trace.jsonl",
            512,
            router="round_robin",
            workers=1,
            speed=1.0,
            engine=ReplayEngine(),
            environment=tmp_path / "none",
        )


def test_requirements_are_pinned_by_hash_and_name_no_address():
    text = REQUIREMENTS.read_text()
    pinned = [line for line in text.splitlines() if "==" in line]
    assert any(line.startswith("ai-dynamo-runtime==") for line in pinned)
    assert text.count("--hash=sha256:") >= len(pinned)
    assert "://" not in text


def test_a_written_trace_reads_back_with_the_same_arrivals_and_prefixes(tmp_path: Path):
    trace = open_trace("generated", 50)
    path = tmp_path / "trace.jsonl"
    write_trace(trace, path)
    read = load_trace(path)
    assert [(r.input_tokens, r.output_tokens, r.block_ids) for r in read.requests] == [
        (r.input_tokens, r.output_tokens, r.block_ids) for r in trace.requests
    ]
    assert [r.arrival_s for r in read.requests] == pytest.approx([r.arrival_s for r in trace.requests])


def test_dynamo_needs_something_to_do():
    result = CliRunner().invoke(trust, ["dynamo"])
    assert result.exit_code == 2
    assert "--install" in result.output
