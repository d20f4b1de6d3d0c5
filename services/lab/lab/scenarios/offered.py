"""What a scenario lets arrive beside its trace: a tenant's flood, and batch files."""

from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from lab.scenarios.model import Batch, Flood
from lab.sim.workload import BATCH_TASK, DEFAULT_TENANT, Submission
from lab.traces.load import open_trace
from lab.traces.model import TraceRequest

LINES_SEED = 1_000_003
"""Added to the run's seed, so that batch lines of a generated trace are not its requests again."""

LEAST_S = 1.0
"""A line sent when its file is due already still has so long."""

LARGE = 1e9
"""Divides what a hash says into a share."""


def flooded(submissions: Sequence[Submission], flood: Flood, tenants: int) -> list[Submission]:
    """The submissions, in order of arrival, and those that one tenant offers beyond its share.

    An equal share is the trace's requests within the flood divided by the tenants. What is added are copies of these
    requests, whole sessions with prompts that nobody else has, each copy turned round within the flood so that it
    does not repeat the bursts of the original.
    """
    if not submissions:
        return []
    span_s = submissions[-1].arrival_s
    from_s, width_s = flood.from_share * span_s, (flood.to_share - flood.from_share) * span_s
    meanwhile = [one for one in submissions if from_s <= one.arrival_s < from_s + width_s]
    copies = (flood.factor - 1) / tenants
    ids = _first_free_id([one.request for one in submissions])
    added: list[Submission] = []
    number = 0
    while number < copies:
        share = min(1.0, copies - number)
        number += 1
        turned_s = width_s * _drawn(f"turn:{number}")
        for one in meanwhile:
            if share < 1 and _drawn(f"session:{session_of(one.request)}") >= share:
                continue
            time_s = from_s + (one.arrival_s - from_s + turned_s) % width_s
            added.append(
                msgspec.structs.replace(
                    one,
                    arrival_s=time_s,
                    tenant=flood.tenant,
                    request=_moved(one.request, ids * number),
                )
            )
    return [*submissions, *added]


def batch_lines(batch: Batch, submissions: Sequence[Submission], seed: int) -> list[Submission]:
    """The lines of a scenario's batch files.

    Args:
        batch: how many lines there are, of what, and when.
        submissions: what else arrives, in order of arrival: it says how long the run is and how many lines there are.
        seed: draws the lines where their trace is generated.
    """
    if not submissions:
        return []
    span_s = submissions[-1].arrival_s
    count = max(1, round(batch.lines_per_request * len(submissions)))
    trace = open_trace(batch.trace, count, seed + LINES_SEED)
    ids = _first_free_id([one.request for one in submissions])
    lines: list[Submission] = []
    whole = sum(file.lines_share for file in batch.files)
    taken, share = 0, 0.0
    for file in batch.files:
        share += file.lines_share / whole
        until = round(len(trace.requests) * share)
        for number, request in enumerate(trace.requests[taken:until]):
            arrival_s = file.from_share * span_s + number / batch.lines_per_s
            left_s = max(LEAST_S, file.due_share * span_s - arrival_s)
            line = msgspec.structs.replace(
                _moved(request, ids), arrival_s=arrival_s, task=BATCH_TASK, deadline_s=left_s
            )
            lines.append(
                Submission(
                    number=0,
                    arrival_s=arrival_s,
                    tenant=request.tenant or DEFAULT_TENANT,
                    request=line,
                    timeout_s=left_s,
                    entry_site=submissions[0].entry_site,
                )
            )
        taken = until
    return lines


def session_of(request: TraceRequest) -> int:
    """What tells a request's session: its second block, for the first is shared by all."""
    ids = request.block_ids
    return ids[1] if len(ids) > 1 else ids[0] if ids else 0


def dealt(request: TraceRequest, count: int, salt: str) -> int:
    """Which of `count` a request's session is dealt to."""
    digest = blake2b(f"{salt}:{session_of(request)}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % count


def _drawn(text: str) -> float:
    """A share from 0 to 1 that only depends on the text."""
    digest = blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % int(LARGE) / LARGE


def _first_free_id(requests: Sequence[TraceRequest]) -> int:
    return 1 + max((max(request.block_ids, default=0) for request in requests), default=0)


def _moved(request: TraceRequest, by: int) -> TraceRequest:
    """The same request with prompt blocks of its own."""
    return msgspec.structs.replace(request, block_ids=tuple(block + by for block in request.block_ids))
