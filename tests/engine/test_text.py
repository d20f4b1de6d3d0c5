"""Text and chats: ingress makes the token ids that the engine will compute, so their blocks have the same names."""

import httpx2 as httpx
import pytest
from engine.vllm_engine import BLOCK_TOKENS, MODEL, say
from engine.world import SEEN_WITHIN_S, World
from running_stack import until

pytestmark = pytest.mark.engine

WORDS = [
    "fleet",
    "request",
    "engine",
    "prefix",
    "block",
    "token",
    "index",
    "traffic",
    "brief",
    "right",
    "which",
    "why",
    "what",
]


def text(world: World, words: int) -> str:
    """Words in an order that nobody has sent before."""
    return " ".join(world.dice.choice(WORDS) for _ in range(words))


def send_chat(world: World, model: str, system: str, question: str) -> httpx.Response:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    with world.client as client:
        return client.post(
            "/v1/chat/completions", json={"model": model, "messages": messages, "max_tokens": 4}
        )


def chat(world: World, model: str, system: str, question: str) -> httpx.Response:
    answer = send_chat(world, model, system, question)
    assert answer.status_code == 200, answer.text
    return answer


def assert_known_exactly(world: World, answer: httpx.Response, least_reused_tokens: int) -> None:
    """What TokenPilot was told and predicted is what the engine counted."""
    routed, usage = world.routed(answer), answer.json()["usage"]
    assert routed.input_tokens == usage["prompt_tokens"]
    assert routed.reused_tokens == usage["prompt_tokens_details"]["cached_tokens"]
    assert routed.reused_tokens >= least_reused_tokens
    say(
        f"{routed.instance}: {routed.reused_tokens} of {routed.input_tokens} tokens predicted, and found, cached"
    )


def test_a_texts_tokens_and_its_reuse_are_known_exactly(world: World):
    prefix = text(world, 400)
    first = world.complete(prefix + " " + text(world, 20))
    world.settle()
    again = world.complete(prefix + " " + text(world, 20))
    assert again.headers["x-tokenfleet-instance"] == first.headers["x-tokenfleet-instance"]
    assert_known_exactly(world, again, 5 * BLOCK_TOKENS)


def test_a_chats_tokens_and_its_reuse_are_known_exactly(world: World):
    system = text(world, 400)
    first = chat(world, MODEL, system, "which engine, and why?")
    world.settle()
    again = chat(world, MODEL, system, "what else is right?")
    assert again.headers["x-tokenfleet-instance"] == first.headers["x-tokenfleet-instance"]
    assert_known_exactly(world, again, 5 * BLOCK_TOKENS)


def test_without_a_tokenizer_of_its_own_ingress_asks_the_engine(world: World):
    name, version = "vllm-asked", "asked"
    file = world.register(world.engines["vllm-1"], name, version)
    try:
        model = f"{MODEL}@{version}"
        until(lambda: model in str(world.stack.health()), SEEN_WITHIN_S)
        system = text(world, 400)

        def exact() -> bool:
            # The services hear of a new pool, and ingress of its /tokenize, within a second or two.
            answer = send_chat(world, model, system, "which engine, and why?")
            if answer.status_code != 200 or answer.headers["x-request-id"] not in world.observer.routed:
                return False
            return world.routed(answer).input_tokens == answer.json()["usage"]["prompt_tokens"]

        until(exact, SEEN_WITHIN_S, every_s=0.5)
        names = [*world.engines, name]
        until(lambda: world.observer.record(name) is not None, SEEN_WITHIN_S)
        until(
            lambda: world.tokenpilot()["blocks"] == len(set().union(*map(world.observer.blocks, names))),
            SEEN_WITHIN_S,
        )
        answer = chat(world, model, system, "and now?")
        assert answer.headers["x-tokenfleet-instance"] == name
        assert_known_exactly(world, answer, 5 * BLOCK_TOKENS)
    finally:
        file.unlink()
    until(lambda: world.observer.record(name) is None, SEEN_WITHIN_S)
