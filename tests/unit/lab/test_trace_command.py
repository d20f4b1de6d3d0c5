"""`tokenfleet trace` shows who sends what, and what was assumed."""

import json
from pathlib import Path

from click.testing import CliRunner

from lab.traces.command import trace

QWEN_ROW = {
    "chat_id": 1,
    "parent_chat_id": -1,
    "timestamp": 0.0,
    "input_length": 40,
    "output_length": 10,
    "type": "search",
    "turn": 1,
    "hash_ids": [7, 8, 9],
}


def test_a_generated_mix_is_shown_by_task_tenant_and_session(tmp_path):
    out = tmp_path / "summary.json"
    name = "generated:chat=3,batch=1?requests=400&seed=3&tenants=7"
    result = CliRunner().invoke(trace, [name, "--json", str(out)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "chat" in result.output
    assert "7 tenants: tenant-" in result.output
    assert "and 2 more" in result.output
    assert "sessions of" in result.output
    assert "assumed: synthetic batch" in result.output
    summary = json.loads(out.read_text())
    assert summary["requests"] == 400
    assert summary["tasks"]["batch"] == {**summary["tasks"]["batch"], "requests": 100, "with_deadline": 100}
    assert sum(summary["tenants"].values()) == 400


def test_a_file_without_tenants_shows_none(tmp_path: Path):
    path = tmp_path / "qwen.jsonl"
    path.write_text(json.dumps(QWEN_ROW) + "\n")
    result = CliRunner().invoke(trace, [str(path)], catch_exceptions=False)
    assert "search" in result.output
    assert "1 sessions" in result.output
    assert "tenants" not in result.output
    assert "16 tokens" in result.output
