"""What a replay is asked to do."""

import msgspec

from tokenfleet.contracts.policy import Policy, Routing

POLICIES: tuple[Routing, ...] = ("predicted", "least_requests", "round_robin")


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Times without a note are wall seconds."""

    speed: float = 1.0
    """Arrivals come this many times faster than in the trace."""
    policy: Routing | None = None
    """Routing during the run; None leaves the fleet's live policy alone."""
    model: str | None = None
    """None: the first model the API offers."""
    timeout_s: float = 900.0
    """Engine seconds the client waits for one answer before it hangs up."""
    refused_patience_s: float = 60.0
    """How long a refused connection is tried again before the request counts as never accepted."""
    quiet_s: float = 20.0
    """When the ledger has grown no row for so long, missing rows are not coming."""
    silence_patience_s: float = 120.0
    """How long an accountant that does not answer is waited for."""


def policy_for(name: Routing, live: Policy) -> Policy:
    """The live policy with another routing; the baselines know no admission, so it is off with them."""
    return msgspec.structs.replace(live, routing=name, admission=name == "predicted")
