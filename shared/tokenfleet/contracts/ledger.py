"""What the goodput accountant answers."""

import msgspec

from tokenfleet.contracts.requests import Outcome


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Of the requests that have the figure; None when none has."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


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
    """Rows wanted: by the prefix of the client's request ids, by time, or both."""

    client_request_id_prefix: str | None = None
    from_ns: int | None = None
    to_ns: int | None = None
    pool: str | None = None
    tenant: str | None = None
    list_ids: bool = False
    """Also answer the client request ids of the rows (replay checks that none is missing)."""


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ledger's figures over all the rows asked for, and per class."""

    total: Summary
    classes: dict[str, Summary]
    client_request_ids: tuple[str, ...] = ()
    prediction: Prediction = Prediction()


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
