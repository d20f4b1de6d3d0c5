"""`tokenfleet explain` on a running stack: a request's decision, from what was recorded."""

import json
from typing import Any

import httpx2 as httpx
import pytest
from running_stack import RunningStack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


def complete(stack: RunningStack, name: str) -> httpx.Response:
    answer = httpx.post(
        f"{stack.api_url}/v1/completions",
        headers={"Authorization": f"Bearer {stack.api_key}", "x-request-id": name},
        json={"model": "llama-70b", "prompt": "explain me " * 600, "max_tokens": 20, "stream": True},
        timeout=60.0,
    )
    assert answer.status_code == 200
    return answer


def explained(stack: RunningStack, request_id: str) -> dict[str, Any]:
    result = stack.command("explain", request_id, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_request_is_explained_by_its_own_id_and_by_the_clients(running_stack: RunningStack):
    running_stack.wait_ready(4)
    answer = complete(running_stack, "explain-me")
    explanation = explained(running_stack, "explain-me")
    assert explanation["request_id"] == answer.headers["x-request-id"]
    assert explained(running_stack, answer.headers["x-request-id"])["client_request_id"] == "explain-me"
    assert (explanation["class"], explanation["pool"]) == ("interactive", "llama-70b@1")
    (attempt,) = explanation["attempts"]
    decision = attempt["decision"]
    assert attempt["instance"] == decision["instance"] == answer.headers["x-tokenfleet-instance"]
    assert {candidate["instance"] for candidate in decision["candidates"]} == {
        "engine-1",
        "engine-2",
        "engine-3",
    }
    best = decision["candidates"][0]
    assert best["cost_s"] >= best["predicted_ttft_s"] > 0
    assert best["kv_usage"] is not None
    assert attempt["ttft"]["predicted_s"] > 0
    assert attempt["ttft"]["actual_s"] > 0
    assert explanation["tpot"]["ratio"] > 0
    assert [step["event"] for step in explanation["steps"]] == [
        *("submitted", "placed", "admitted", "routed", "first_token", "completed"),
    ]


def test_for_a_person_there_are_tables(running_stack: RunningStack):
    running_stack.wait_ready(4)
    answer = complete(running_stack, "explain-to-me")
    text = running_stack.command("explain", "explain-to-me").stdout
    assert answer.headers["x-request-id"] in text
    for part in ("Candidates", "Predicted and happened", "What was recorded", "→"):
        assert part in text


def test_an_unknown_id_is_one_clear_message(running_stack: RunningStack):
    result = running_stack.command("explain", "nobody-sent-this", "--since", "5m")
    assert result.returncode == 1
    assert "nobody-sent-this" in result.stderr and "last 5 m" in result.stderr
    assert "Traceback" not in result.stderr
