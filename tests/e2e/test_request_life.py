"""One request seen from everywhere: its events, its ledger row, its trace."""

import asyncio
import json
from typing import Any

import httpx2 as httpx
import nats
import pytest
from ledger_rows import row_of
from nats.errors import TimeoutError as NatsTimeoutError
from otlp_receiver import OtlpReceiver
from running_stack import RunningStack, until

pytestmark = pytest.mark.e2e

SECRET_TEXT = "the-quick-brown-fox-" * 40


def complete(stack: RunningStack, name: str, **fields: Any) -> httpx.Response:
    return httpx.post(
        f"{stack.api_url}/v1/completions",
        headers={"Authorization": f"Bearer {stack.api_key}", "x-request-id": name},
        json={"model": "llama-70b", "prompt": SECRET_TEXT, "max_tokens": 30, "stream": True, **fields},
        timeout=30.0,
    )


async def stored_events(stack: RunningStack, request_id: str) -> list[tuple[str, bytes]]:
    """The kind and bytes of every event of a request, in the order JetStream has them."""
    settings = stack.settings()
    assert settings.nats_password is not None
    client = await nats.connect(
        settings.nats_url,
        user=settings.nats_user,
        password=settings.nats_password.get_secret_value(),
        inbox_prefix=f"_INBOX_{settings.nats_user}",
    )
    found: list[tuple[str, bytes]] = []
    subscription = await client.jetstream().subscribe("tf.v1.*.request.>", ordered_consumer=True)
    try:
        while True:
            message = await subscription.next_msg(timeout=1.0)
            if json.loads(message.data)["request_id"] == request_id:
                found.append((message.subject.split(".")[5], message.data))
    except NatsTimeoutError:
        return found
    finally:
        await client.close()


def test_each_step_is_an_event_in_jetstream_and_the_end_is_a_ledger_row(running_stack: RunningStack):
    running_stack.wait_ready(4)
    answer = complete(running_stack, "life-1")
    assert answer.status_code == 200
    row = until(lambda: row_of(running_stack, "life-1"))
    events = asyncio.run(stored_events(running_stack, answer.headers["x-request-id"]))
    kinds = [kind for kind, _ in events]
    assert kinds == ["submitted", "placed", "admitted", "routed", "first_token", "completed"]
    assert row["outcome"] == "completed"
    assert row["met"] is True
    assert (row["input_tokens"], row["output_tokens"]) == (len(SECRET_TEXT) // 4, 30)
    assert row["request_class"] == "interactive"
    assert row["pool"] == "llama-70b@1"
    assert row["instance"] == answer.headers["x-tokenfleet-instance"]
    assert 0 < row["ttft_s"] <= row["e2e_s"]
    assert row["tpot_s"] > 0
    assert row["predicted_ttft_s"] > 0
    for _, data in events:
        assert b"quick-brown" not in data, "an event reveals the prompt"
    for name in ("ingress", "tokenpilot", "slomax", "fleetmind", "goodput-accountant"):
        assert "quick-brown" not in running_stack.log(name), "a log reveals the prompt"


def test_a_repeated_prefix_goes_where_it_is_cached_and_is_reported_as_reused(running_stack: RunningStack):
    running_stack.wait_ready(4)
    prompt = "a long shared preamble, " * 2_000  # 12,000 tokens
    first = complete(running_stack, "prefix-1", prompt=prompt + "one")
    until(lambda: row_of(running_stack, "prefix-1"))
    second = complete(running_stack, "prefix-2", prompt=prompt + "two")
    row = until(lambda: row_of(running_stack, "prefix-2"))
    assert second.headers["x-tokenfleet-instance"] == first.headers["x-tokenfleet-instance"]
    assert row["reused_tokens"] > 11_000


def test_spans_of_all_services_join_in_one_trace(running_stack: RunningStack, otlp: OtlpReceiver):
    running_stack.wait_ready(4)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    answer = httpx.post(
        f"{running_stack.api_url}/v1/completions",
        headers={
            "Authorization": f"Bearer {running_stack.api_key}",
            "x-request-id": "traced-1",
            "traceparent": parent,
        },
        json={"model": "llama-70b", "prompt": "hello", "max_tokens": 4},
        timeout=30.0,
    )
    assert answer.status_code == 200
    wanted = {"ingress", "fleetmind", "slomax", "tokenpilot", "goodput-accountant"}

    def services() -> set[str]:
        return {
            span.service.removeprefix("tokenfleet-")
            for span in otlp.spans
            if span.trace_id == parent.split("-")[1]
        }

    until(lambda: services() >= wanted, timeout_s=15.0)


def test_metrics_bear_the_genai_names(running_stack: RunningStack, otlp: OtlpReceiver):
    running_stack.wait_ready(4)
    assert complete(running_stack, "metrics-1").status_code == 200
    text = httpx.get(f"{running_stack.api_url}/metrics", timeout=5.0).text
    for name in (
        "gen_ai_server_time_to_first_token",
        "gen_ai_server_time_per_output_token",
        "gen_ai_server_request_duration",
        "gen_ai_client_token_usage",
    ):
        assert name in text
    until(lambda: "tokenfleet.instance.liveness" in otlp.metric_names["tokenfleet-telemetry-collector"], 15.0)
