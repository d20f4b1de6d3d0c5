"""A recording's requests as the submissions of one run.

Arrivals are as far apart as they were, in engine seconds. Blocks keep their identity, at the block size they were hashed
at. A client that left is taken to leave after the same time again. What differs between seeds is what nobody knows: the
length of answers that did not complete, and how long each decision takes, drawn from those recorded; in the simulator
itself decisions take no time, so a request reaches it that much later.
"""

import random
from collections.abc import Sequence

import msgspec

from lab.sim.workload import Submission
from lab.traces.model import TraceRequest
from lab.whatif.errors import WhatIfError
from lab.whatif.fleet import Fleet
from lab.whatif.lengths import Lengths
from lab.whatif.recording import Recorded, Recording
from slomax.policy.classify import class_objective, classify
from tokenfleet import subjects
from tokenfleet.blocks import unpack
from tokenfleet.contracts.policy import Policy, Tenant
from tokenfleet.contracts.requests import RequestSpec

USUAL_DECISION_S = 0.005
"""Engine seconds, where no decision was recorded."""
NOWHERE = "none"
"""The version of those whose model no pool serves."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """One request, ready to be submitted in any run."""

    recorded: Recorded
    arrival_s: float
    version: str
    request_class: str
    """Under the live policy."""
    block_ids: tuple[int, ...]
    due_s: float | None
    """Of a batch's line, by when it is due, in seconds of the run."""
    tenant: Tenant

    @property
    def spec(self) -> RequestSpec:
        return self.recorded.submitted.request

    @property
    def output_tokens(self) -> int | None:
        """As it was; None when nobody saw the whole answer."""
        ended = self.recorded.ended
        return max(1, ended.output_tokens) if ended and ended.outcome == "completed" else None

    @property
    def left_after_s(self) -> float | None:
        """When its client left, counted from its arrival; None when it stayed."""
        ended = self.recorded.ended
        return max(ended.e2e_s, 1e-3) if ended and ended.outcome == "cancelled" else None


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """All requests of a recording."""

    requests: Sequence[Prepared]
    lengths: Lengths
    decisions_s: Sequence[float]
    """What decisions took, in engine seconds."""
    unknown_lengths: int
    """Of the window's requests, those whose answers' lengths are drawn."""
    without_blocks: int
    """Requests whose blocks cannot be compared with those of the engines."""

    def submissions(self, policy: Policy, seed: int) -> tuple[list[Submission], list[Prepared]]:
        """What arrives in one run, in order of time, and the request behind each."""
        drawn = random.Random(seed)  # noqa: S311 - draws lengths, guards nothing
        made: list[tuple[float, int, Prepared]] = []
        for one in self.requests:
            tokens = one.output_tokens
            if tokens is None:
                seen = one.recorded.ended.output_tokens if one.recorded.ended else 0
                tokens = self.lengths.draw(
                    drawn,
                    one.request_class,
                    one.spec.input_tokens,
                    seen=seen,
                    most=one.spec.max_output_tokens,
                )
            made.append((one.arrival_s + drawn.choice(self.decisions_s), tokens, one))
        made.sort(key=lambda entry: entry[0])
        submissions = [
            _submission(number, reached_s, tokens, one, policy)
            for number, (reached_s, tokens, one) in enumerate(made)
        ]
        return submissions, [one for _, _, one in made]


def traffic_of(recording: Recording, fleet: Fleet) -> Traffic:
    """The requests of a recording on the clock of its fleet.

    Raises:
        WhatIfError: not one request completed, so that nothing is known of how long answers are.
    """
    names: dict[int, int] = {}
    block_size = fleet.cluster.block_size
    prepared: list[Prepared] = []
    without_blocks = 0
    for one in recording.requests:
        submitted, spec = one.submitted, one.submitted.request
        tenant = fleet.cluster.tenants.get(submitted.tenant, Tenant(tenant=submitted.tenant))
        # Small numbers instead of hashes: equal where those are equal.
        ids = tuple(names.setdefault(block, len(names) + 1) for block in unpack(spec.blocks))
        if ids and not _comparable(spec.block_size_tokens, block_size):
            without_blocks += 1
            ids = ()
        prepared.append(
            Prepared(
                recorded=one,
                arrival_s=fleet.clock.at_s(submitted.time_ns),
                version=_version(one, fleet),
                request_class=classify(spec, fleet.policy)[0],
                block_ids=ids,
                due_s=fleet.clock.at_s(spec.due_ns) if spec.due_ns else None,
                tenant=tenant,
            )
        )
    lengths = Lengths(
        (one.request_class, one.recorded.ended)
        for one in prepared
        if one.recorded.ended is not None and one.recorded.ended.outcome == "completed"
    )
    if not lengths:
        raise WhatIfError(
            "Not one request of this window completed, so nothing is known of how long answers are. Choose a longer "
            "window, or a longer --warm-up."
        )
    return Traffic(
        requests=prepared,
        lengths=lengths,
        decisions_s=[one.recorded.decision_s for one in prepared if one.recorded.decision_s is not None]
        or [USUAL_DECISION_S],
        unknown_lengths=sum(one.output_tokens is None and one.recorded.counted for one in prepared),
        without_blocks=without_blocks,
    )


def _comparable(size: int, other: int) -> bool:
    return size > 0 and (size % other == 0 or other % size == 0)


def _version(one: Recorded, fleet: Fleet) -> str:
    """The pool it was placed in, or else the largest that serves its model."""
    pools = fleet.pools
    if one.ended is not None and one.ended.pool in pools:
        return subjects.token(one.ended.pool)
    spec = one.submitted.request
    serving = [
        pool
        for pool, _ in pools.most_common()
        if subjects.split_model(pool)[0] == spec.model
        and spec.version in (None, subjects.split_model(pool)[1])
    ]
    return subjects.token(serving[0]) if serving else NOWHERE


def _submission(
    number: int, reached_s: float, output_tokens: int, one: Prepared, policy: Policy
) -> Submission:
    spec = one.spec
    promised = class_objective(classify(spec, policy)[0], policy, one.tenant)
    timeout_s = promised.timeout_s or policy.request_timeout_s
    if one.due_s is not None:
        timeout_s = max(timeout_s, one.due_s - one.arrival_s)
    waits_s = timeout_s if one.left_after_s is None else min(timeout_s, one.left_after_s)
    return Submission(
        number=number,
        arrival_s=reached_s,
        tenant=one.recorded.submitted.tenant,
        request=TraceRequest(
            arrival_s=reached_s,
            input_tokens=max(1, spec.input_tokens),
            output_tokens=output_tokens,
            block_ids=one.block_ids,
            trace_block_tokens=spec.block_size_tokens or 1,
            task=spec.task,
        ),
        timeout_s=max(1e-3, one.arrival_s + waits_s - reached_s),
        entry_site=spec.entry_site,
        version=one.version,
        spec=msgspec.structs.replace(
            spec,
            blocks=b"",
            input_tokens=max(1, spec.input_tokens),
            deadline_ns=round((one.arrival_s + timeout_s) * 1e9),
            due_ns=0 if one.due_s is None else round(one.due_s * 1e9),
            excluded_instances=(),
        ),
    )
