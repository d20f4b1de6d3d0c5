"""What the goodput accountant answers."""

from typing import Any, Literal

import msgspec

from tokenfleet.contracts.requests import Outcome

GroupBy = Literal["class", "tenant", "pool", "site", "version", "model", "instance"]
SortBy = Literal["goodput", "waste", "misses", "cost", "gpu"]


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Of the requests that have the figure; None when none has."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class WasteFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one cause wasted."""

    requests: int
    prefill_tokens: int
    """Prompt tokens an engine computed for nothing."""
    decode_tokens: int
    gpu_s: float
    """As estimated, where the engine is known."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one group of ledger rows. Times in engine seconds."""

    offered: int
    completed: int
    rejected: int
    timed_out: int
    cancelled: int
    failed: int
    ledger_rows: int
    duration_s: float
    input_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    goodput_tokens_per_s: float
    wasted_tokens: int
    attainment_offered: float | None
    """Share of offered requests with an objective that completed and met it; None if none had one."""
    attainment_admitted: float | None
    prefix_reuse: float | None
    """Reused share of the input tokens of requests an engine answered."""
    degraded: int
    ttft_s: Percentiles
    tpot_s: Percentiles
    e2e_s: Percentiles
    lost: int = 0
    """Requests of which nobody said how they ended."""
    met: int = 0
    missed: int = 0
    missed_terms: dict[str, int] = {}
    """Requests by each term (ttft, tpot, e2e) over its limit."""
    undeclared: int = 0
    """Requests without any term in their objective: in neither attainment, never met, never missed."""
    undeclared_output_tokens: int = 0
    computed_tokens: int = 0
    good_output_tokens: int = 0
    neutral_output_tokens: int = 0
    """Output neither good nor wasted: completed, and nothing of its promise could be judged."""
    waste: dict[str, WasteFigures] = {}
    """By cause: timed_out, cancelled, failed, lost, late, retried."""
    gpu_s: float = 0.0
    """GPU-seconds of all attempts, as estimated."""
    gpu_unknown: int = 0
    """Requests whose engine is not known, so that their GPU-seconds are in no figure."""
    cost: float | None = None
    """`gpu_s / 3600` times the price of a GPU-hour; None where a pool that computed something has no price."""
    cost_per_million_good_tokens: float | None = None
    approximate: bool = False
    """Whether the percentiles come from hourly histograms (within 2 %) and not from the rows."""


class PredictionError(msgspec.Struct, frozen=True, kw_only=True):
    """How far a predicted time was off: its absolute error as a share of what it turned out to be (APE)."""

    n: int = 0
    """Requests that have both."""
    median_ape: float | None = None
    p90_ape: float | None = None


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The errors of what was predicted when requests were first routed."""

    ttft: PredictionError = PredictionError()
    tpot: PredictionError = PredictionError()


class ReportRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rows wanted: by the prefix of the client's request ids, by time of submission, pool or tenant, or several."""

    client_request_id_prefix: str | None = None
    from_ns: int | None = None
    to_ns: int | None = None
    pool: str | None = None
    tenant: str | None = None
    list_ids: bool = False
    """Also answer the client request ids of the rows (replay checks that none is missing)."""
    group_by: GroupBy = "class"
    sort: SortBy | None = None
    """Groups with the most of it first; by name if None."""
    limit: int | None = None
    """No more groups than this."""
    priced: bool = True
    """Whether to say what it cost."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger's figures over all the rows asked for, per class, and per whatever they are grouped by."""

    total: Summary
    classes: dict[str, Summary]
    client_request_ids: tuple[str, ...] = ()
    prediction: Prediction = Prediction()
    group_by: GroupBy = "class"
    groups: dict[str, Summary] = {}
    """In the order asked for; the same as `classes` where grouped by class."""
    groups_left_out: int = 0


class RowCursor(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the ledger: the row that was read last."""

    day: int
    """Of submission (UTC), in days since 1970."""
    sequence: int
    """In the chain of its day."""


class RowKey(msgspec.Struct, frozen=True, kw_only=True):
    """Which row it is: a request may have several, and a tenant learns nothing of others' rows from its own."""

    request_id: str
    revision: int


class RowsRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of the rows that count: by day of submission, those of a day in the order they were written.

    Of the rows that bear an `id` there is one page, the latest submitted first.
    """

    client_request_id_prefix: str | None = None
    from_ns: int | None = None
    to_ns: int | None = None
    pool: str | None = None
    tenant: str | None = None
    id: str | None = None
    """TokenFleet's request id or the one the client gave."""
    after: RowCursor | None = None
    after_row: RowKey | None = None
    """The same by the row itself; it must be the tenant's if one is named."""
    limit: int = 2_000


class LedgerRows(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of rows, as large as a message may be. A page may be empty and not the last."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    next: RowCursor | None = None
    """Where the next page begins; None after the last."""
    done: int = 0
    """How many rows of the days asked for have been looked at, this page included."""
    total: int = 0
    """How many there are."""


class LedgerLookup(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the requests that bear an id: TokenFleet's own or the one the client gave."""

    id: str


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which request it is and when it was, so that its events are found in the stream."""

    request_id: str
    submitted_ns: int
    ended_ns: int
    outcome: Outcome
    client_request_id: str | None = None


class LedgerEntries(msgspec.Struct, frozen=True, kw_only=True):
    """The requests found, the latest submitted first; only some of them when a client used an id very often."""

    entries: tuple[LedgerEntry, ...]
