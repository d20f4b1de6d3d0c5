"""Sites, summaries and requests for FleetMind's tests."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from fleets import PROFILE

from fleetmind.policy.leases import VALID_S
from fleetmind.policy.placement import Placer
from tokenfleet.contracts.control import Capacity, InstanceCapacity, Liveness
from tokenfleet.contracts.policy import Tenant
from tokenfleet.contracts.requests import RequestSpec
from tokenfleet.contracts.sites import LeaseGrant, SiteSummary
from tokenfleet.load.prefixes import pack_prefixes
from tokenfleet.load.summary import LENGTHS_TOKENS

MODEL = "llama-70b"
TENANT = Tenant(tenant="t")


def capacity(
    site: str,
    version: str = "v1",
    ready: int = 1,
    instances: int = 1,
    liveness: Liveness = "dead",
    **more: Any,
) -> Capacity:
    fields: dict[str, Any] = {"region": None, "adapters": [], "max_prompt_tokens": 131_071 if ready else None}
    return Capacity(
        time_ns=1,
        site=site,
        pool=f"{MODEL}@{version}",
        model=MODEL,
        version=version,
        instances=[
            InstanceCapacity(instance=f"{site}-{index}", liveness="alive" if ready else liveness, age_s=0.0)
            for index in range(instances)
        ],
        ready=ready,
        waiting=0,
        running=0,
        kv_free_tokens=None,
        free_slots=None,
        **{**fields, **more},
    )


def summary(
    site: str,
    backlog_s: Sequence[float],
    version: str = "v1",
    waiting_s: float = 0.0,
    cached: Sequence[Sequence[int]] | None = None,
) -> SiteSummary:
    """What a site's TokenPilot would say: reference engines with so much before each, nobody harmed, KV free."""
    count = len(backlog_s)
    columns = [
        np.array(backlog_s),
        np.full(count, PROFILE.prefill_s_per_token),
        np.full(count, PROFILE.attention_s_per_token_pair),
        np.full(count, PROFILE.base_s),
        np.full(count, 2_048.0),
        np.full(count, 131_071.0),
        *[np.zeros(count)] * (2 * len(LENGTHS_TOKENS)),
    ]
    said = SiteSummary(
        site=site,
        pool=f"{MODEL}@{version}",
        time_ns=1,
        loads=np.stack(columns).astype("<f4").tobytes(),
        waiting_s=waiting_s,
    )
    if cached is None:
        return said
    prefixes, one_in = pack_prefixes(cached)
    return msgspec.structs.replace(said, prefixes=prefixes, one_in=one_in)


def request(input_tokens: int = 1_000, **changes: Any) -> RequestSpec:
    base = RequestSpec(
        model=MODEL,
        entry_site="A",
        ingress="ingress-1",
        input_tokens=input_tokens,
        max_output_tokens=256,
        block_size_tokens=16,
    )
    return msgspec.structs.replace(base, **changes)


def placer(site: str = "A", **backlogs: Sequence[float]) -> Placer:
    """An entry that knows some sites by their backlogs, each 30 ms away and with plenty granted."""
    view = Placer(site)
    for name, backlog_s in backlogs.items():
        know(view, name, backlog_s)
    return view


def know(view: Placer, site: str, backlog_s: Sequence[float], now_s: float = 0.0, **more: Any) -> None:
    view.sites.apply(capacity(site, ready=len(backlog_s), instances=len(backlog_s), **more), now_s)
    view.sites.summarised(summary(site, backlog_s), now_s)
    if site != view.site:
        view.measured_s[site] = 0.03
        granted(view, site, now_s)


def granted(view: Placer, site: str, now_s: float = 0.0, work_s: float = 100.0, version: str = "v1") -> None:
    pool = f"{MODEL}@{version}"
    sequence = view.wallet.ask(site, pool, now_s)
    grant = LeaseGrant(
        holder="h",
        site=site,
        pool=pool,
        sequence=sequence,
        lease_id=f"{site}.{sequence}",
        work_s=work_s,
        valid_s=VALID_S,
        limit_s=8.0,
    )
    view.wallet.receive(grant, now_s)
