"""What the goodput accountant answers."""

import msgspec


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
