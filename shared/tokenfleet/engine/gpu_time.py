"""GPU-seconds that a request is estimated to have taken from its engine.

Time on a GPU is shared by all requests of an iteration, so what one of them took is a matter of convention:

- prefill   `gpus * (k * (tp + ta * (x + k/2)) + t0 * k / budget)`: its arithmetic, and the share of the fixed cost of
            iterations full of prefill; `k` tokens computed at context `x`.
- decode    `gpus * n * (td + tc * (input + n/2) + t0 / (max_running / 4))`: `n` output tokens, each reading the context so
            far, in batches of a quarter of what the engine can run.

Coefficients as in `tokenfleet.contracts.fleet.EngineProfile`. An idle GPU costs as much as a busy one: these figures
compare uses of a fleet, they do not add up to its bill.
"""

from tokenfleet.contracts.fleet import EngineProfile

USUAL_BATCH_SHARE = 0.25


def prefill_gpu_s(profile: EngineProfile, computed_tokens: int, context_tokens: int) -> float:
    """For computing so many prompt tokens after a context that was cached."""
    return (
        profile.gpus
        * computed_tokens
        * (
            profile.prefill_s_per_token
            + profile.attention_s_per_token_pair * (context_tokens + computed_tokens / 2)
            + profile.base_s / profile.iteration_budget_tokens
        )
    )


def decode_gpu_s(profile: EngineProfile, output_tokens: int, input_tokens: int) -> float:
    """For so many output tokens after a prompt of so many."""
    batch = max(1.0, profile.max_running_requests * USUAL_BATCH_SHARE)
    return (
        profile.gpus
        * output_tokens
        * (
            profile.decode_s_per_request
            + profile.decode_s_per_context_token * (input_tokens + output_tokens / 2)
            + profile.base_s / batch
        )
    )
