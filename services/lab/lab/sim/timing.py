"""Profiles of engines that are slower or faster than another one."""

import msgspec

from tokenfleet.contracts.fleet import EngineProfile


def timed(profile: EngineProfile, *, prefill: float, step: float) -> EngineProfile:
    """The profile with its coefficients multiplied: those of prompts, and those of every iteration and decode."""
    return msgspec.structs.replace(
        profile,
        base_s=profile.base_s * step,
        decode_s_per_request=profile.decode_s_per_request * step,
        decode_s_per_context_token=profile.decode_s_per_context_token * step,
        prefill_s_per_token=profile.prefill_s_per_token * prefill,
        attention_s_per_token_pair=profile.attention_s_per_token_pair * prefill,
    )
