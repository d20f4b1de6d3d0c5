"""Engine profiles and the timing form: how long iterations, prefills and decode steps take.

One iteration with `d` decoding requests holding `c` context tokens in total, and prefill chunks of `k` tokens
at context `x`, takes `t0 + td*d + tc*c + sum(tp*k + ta*k*(x + k/2))` seconds: weights are read once, each
decoding request reads its KV cache, and prefill is bound by arithmetic, linear in the tokens plus attention
over what stands before them.
"""

from collections.abc import Callable, Iterable

from tokenfleet.contracts.fleet import EngineProfile

IterationTiming = Callable[[int, float, Iterable[tuple[int, int]]], float]
"""Another engine's own form: seconds of one iteration from what `iteration_s` takes after the profile. Its
decode steps must not become shorter as their context grows."""

LLAMA70B_TP4_H100 = EngineProfile(
    name="llama70b-tp4-h100",
    base_s=0.015,
    decode_s_per_request=0.02e-3,
    decode_s_per_context_token=35e-9,
    prefill_s_per_token=71.4e-6,
    attention_s_per_token_pair=1.3e-9,
    kv_capacity_tokens=450_560,
    iteration_budget_tokens=2_048,
    max_running_requests=128,
    gpus=4,
)
"""A 70-billion-parameter Llama on four H100s with tensor parallelism.

A roofline estimate: 140 GFLOP per token at half of the dense bf16 peak; 140 GB of weights and 320 KiB of KV
per token at 70 % of 13.4 TB/s.
"""

PROFILES: dict[str, EngineProfile] = {profile.name: profile for profile in (LLAMA70B_TP4_H100,)}


def iteration_s(
    profile: EngineProfile,
    decoding: int,
    decode_context_tokens: float,
    chunks: Iterable[tuple[int, int]] = (),
) -> float:
    """Seconds of one iteration.

    Args:
        profile: the engine's coefficients.
        decoding: requests that decode in it, one token each.
        decode_context_tokens: the tokens of all those requests so far, prompts and output.
        chunks: prefill chunks as (new tokens, context tokens before them).
    """
    seconds = (
        profile.base_s
        + profile.decode_s_per_request * decoding
        + profile.decode_s_per_context_token * decode_context_tokens
    )
    for tokens, context_tokens in chunks:
        seconds += tokens * (
            profile.prefill_s_per_token + profile.attention_s_per_token_pair * (context_tokens + tokens / 2)
        )
    return seconds


def decode_step_s(profile: EngineProfile, decoding: int, context_tokens: float) -> float:
    """Seconds until each of `decoding` requests, holding `context_tokens` in total, has its next token."""
    return iteration_s(profile, decoding, context_tokens)


def prefill_s(
    profile: EngineProfile,
    new_tokens: int,
    context_tokens: int,
    decoding: int = 0,
    decode_context_tokens: float = 0,
) -> float:
    """Seconds to compute a whole prompt part alone in the budget, in chunks, beside a given decode load.

    Decodes take their tokens from the budget first, so the number of iterations is
    `ceil(new / (budget - decoding))`. Attention over chunks adds up to the same whatever their size:
    `ta * new * (context + new/2)`.

    Args:
        profile: the engine's coefficients.
        new_tokens: tokens to compute.
        context_tokens: tokens before them whose KV is there already.
        decoding: requests that decode all along.
        decode_context_tokens: their tokens at the start; they grow by one each per iteration.
    """
    if new_tokens <= 0:
        return 0.0
    iterations = -(-new_tokens // max(1, profile.iteration_budget_tokens - decoding))
    grown_tokens = decoding * iterations * (iterations - 1) / 2
    return (
        iterations * iteration_s(profile, decoding, decode_context_tokens)
        + profile.decode_s_per_context_token * grown_tokens
        + new_tokens
        * (
            profile.prefill_s_per_token
            + profile.attention_s_per_token_pair * (context_tokens + new_tokens / 2)
        )
    )
