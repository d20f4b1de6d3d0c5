"""Synthetic traces with the shape of real ones, for machines that lack the files and for any size.

All columns are drawn at once and a request is made when it is looked at, so a million take seconds and a few
hundred megabytes.
"""

from collections.abc import Mapping

import numpy as np

from lab.errors import TraceError
from lab.traces.columns import Labels, RequestColumns, RunBlockIds
from lab.traces.kinds import CHAT, KINDS, Kind
from lab.traces.model import Trace
from lab.traces.sessions import Drawn, draw_sessions

FORMAT = "generated"
DEFAULT_TENANTS = 8
MAX_REQUESTS = 10_000_000
MAX_TENANTS = 10_000
RATES_PER_S = (1e-4, 1e5)

CHAT_ONLY: Mapping[str, float] = {CHAT.name: 1.0}


def generate(
    requests: int,
    seed: int = 0,
    mix: Mapping[str, float] = CHAT_ONLY,
    *,
    rate_per_s: float | None = None,
    tenants: int = DEFAULT_TENANTS,
) -> Trace:
    """A trace of that many requests; equal arguments give equal traces.

    `mix` weighs the kinds of `lab.traces.kinds` by their numbers of requests. The rate is by default the mean
    of the kinds' own, so weighted. Tenants have sessions of all kinds; tenant `i` has 1/i as many as the first.

    Raises:
        TraceError: an argument is out of range or a kind is unknown.
    """
    shares = _shares(mix)
    _check("requests", requests, 1, MAX_REQUESTS)
    _check("tenants", tenants, 1, MAX_TENANTS)
    rate = rate_per_s if rate_per_s is not None else sum(kind.rate_per_s * share for kind, share in shares)
    _check("rate", rate, *RATES_PER_S)
    kinds = "+".join(kind.name for kind, _ in shares)
    return Trace(
        source=f"generated {kinds} (seed {seed})",
        format=FORMAT,
        requests=_draw(requests, shares, rate, tenants, seed),
        assumptions=(
            *(f"synthetic {kind.fit}" for kind, _ in shares),
            "sessions begin at random times, and what would come after the end comes after the beginning",
            "tenants are drawn for each session, the first most often",
        ),
    )


def _shares(mix: Mapping[str, float]) -> list[tuple[Kind, float]]:
    unknown = [name for name in mix if name not in KINDS]
    if unknown or not mix:
        raise TraceError(
            FORMAT, f"no kind {', '.join(map(repr, unknown)) or 'given'}: there are {', '.join(KINDS)}"
        )
    for name, weight in mix.items():
        _check(f"weight of {name}", weight, 1e-6, 1e6)
    total = sum(mix.values())
    return [(KINDS[name], weight / total) for name, weight in mix.items()]


def _check(what: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise TraceError(FORMAT, f"{what} must be from {least:g} to {most:g}, not {value:g}")


def _draw(
    requests: int, shares: list[tuple[Kind, float]], rate_per_s: float, tenants: int, seed: int
) -> RequestColumns:
    tenant_shares = 1 / np.arange(1, tenants + 1)
    tenant_shares /= tenant_shares.sum()
    strata = [
        (code, kind, stratum, share * stratum.share)
        for code, (kind, share) in enumerate(shares)
        for stratum in kind.strata
    ]
    ends = np.rint(np.cumsum([share for *_, share in strata]) * requests).astype(int)
    counts = np.diff(ends, prepend=0).tolist()
    random = np.random.default_rng(seed)
    parts = [
        (
            code,
            draw_sessions(
                stratum,
                requests=count,
                span_s=requests / rate_per_s,
                tenant_shares=tenant_shares,
                system_prompt_blocks=kind.system_prompt_blocks,
                random=random,
            ),
        )
        for (code, kind, stratum, _), count in zip(strata, counts, strict=True)
        if count
    ]
    return _merge(
        [part for _, part in parts],
        [code for code, _ in parts],
        tuple(kind.name for kind, _ in shares),
        tenants,
    )


def _merge(parts: list[Drawn], tasks: list[int], names: tuple[str, ...], tenants: int) -> RequestColumns:
    """The parts as one, in order of arrival, with ids and sessions of their own."""
    system_blocks = max(int(part.run_counts[:, 0].max(initial=0)) for part in parts)
    # Each task has its own system prompt; ids of sessions and requests come after all of these.
    next_id, next_session = system_blocks * len(names), 0
    run_starts, sessions = [], []
    for part, task in zip(parts, tasks, strict=True):
        run_starts.append(part.run_starts + np.array([task * system_blocks, next_id, next_id]))
        sessions.append(part.sessions + next_session)
        next_id += part.id_count
        next_session += part.session_count
    arrival_s = np.concatenate([part.arrival_s for part in parts])
    order = np.argsort(arrival_s, kind="stable")
    sizes = [len(part.arrival_s) for part in parts]
    return RequestColumns(
        arrival_s=arrival_s[order] - arrival_s.min(),
        input_tokens=np.concatenate([part.input_tokens for part in parts])[order],
        output_tokens=np.concatenate([part.output_tokens for part in parts])[order],
        block_ids=RunBlockIds(
            np.concatenate(run_starts)[order], np.concatenate([part.run_counts for part in parts])[order]
        ),
        tenants=Labels(
            np.concatenate([part.tenants for part in parts])[order],
            tuple(f"tenant-{number}" for number in range(1, tenants + 1)),
        ),
        tasks=Labels(np.repeat(tasks, sizes)[order], names),
        sessions=np.concatenate(sessions)[order],
        deadlines_s=np.concatenate([part.deadlines_s for part in parts])[order],
    )
