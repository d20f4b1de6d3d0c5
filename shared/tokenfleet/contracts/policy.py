"""Live configuration: the policy and the tenants, kept in KV buckets, watched by the services."""

from typing import Annotated, Literal

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

Routing = Literal["predicted", "least_requests", "round_robin"]


class ClassObjective(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The promise of a class. TTFT grows in proportion for inputs above `ttft_input_tokens`."""

    ttft_s: Positive | None = None
    ttft_input_tokens: Positive = 16_000
    tpot_s: Positive | None = None
    e2e_s: Positive | None = None


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What operators may change while the fleet runs (`tokenfleet policy set`)."""

    routing: Routing = "predicted"
    admission: bool = True
    wait_share_of_slack: Share = 0.4
    """Refuse when the predicted wait exceeds this share of the slack left after the own prefill."""
    long_context_tokens: Annotated[int, msgspec.Meta(gt=0)] = 16_000
    request_timeout_s: Positive = 600.0
    objectives: dict[str, ClassObjective] = msgspec.field(
        default_factory=lambda: {
            "interactive": ClassObjective(ttft_s=4.0, tpot_s=0.1),
            "long_context": ClassObjective(ttft_s=4.0, tpot_s=0.1),
            "batch": ClassObjective(e2e_s=3600.0),
        }
    )


class Tenant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One customer. Keys are stored only as SHA-256 of 256-bit random secrets."""

    tenant: str
    key_hashes: tuple[str, ...] = ()
    tier: Literal["priority", "default", "flex"] = "default"
    models: tuple[str, ...] | None = None
    """Models it may use; None: all."""
    sites: tuple[str, ...] | None = None
    """Sites its requests may run on; None: all."""
    max_concurrency: int = 1024
    schema: int = 1
