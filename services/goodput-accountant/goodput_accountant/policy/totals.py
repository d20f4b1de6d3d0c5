"""Figures of ledger rows that add up: of two groups without a common row, the sum is the figures of both.

Reports over long spans add up the totals of hours, groups of a report add up to its total. So nothing here is a ratio,
a rate or a percentile (`report` makes those), and GPU-seconds are whole microseconds, whose sum does not depend on the
order. What each row contributes is said in `accounting`.

- judged, met          rows with `met` True or False, and those with True; the same of admitted rows alone.
- undeclared           rows whose objective has no term; they are never met, nor missed.
- missed terms         judged rows by each term over its limit; a row may miss several.
- answered             rows whose answer began: over them prefix reuse is measured.
- waste                by cause: requests, computed prompt tokens (`prefill_tokens`), output tokens (`decode_tokens`) and
                       GPU-microseconds. `retried` are abandoned attempts of requests that may have ended well.
- GPU-microseconds     by pool, as prices are: all attempts of all rows. `gpu_unknown`: rows with tokens computed or
                       put out by an engine of which nothing is known; their GPU time is in no sum.
- spans                by time scale: first submission and last end, unix ns.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, get_args

import msgspec

from goodput_accountant.policy.accounting import LedgerRow, WasteCause
from goodput_accountant.policy.histograms import Histogram

Cause = WasteCause | Literal["retried"]
CAUSES: tuple[Cause, ...] = (*get_args(WasteCause), "retried")
US_PER_S = 1_000_000


class Waste(msgspec.Struct, frozen=True):
    """What one cause wasted."""

    requests: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    gpu_us: int = 0


class Totals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Figures of a group of rows. Keys without rows are left out of the dictionaries."""

    rows: int = 0
    admitted: int = 0
    degraded: int = 0
    judged: int = 0
    met: int = 0
    judged_admitted: int = 0
    met_admitted: int = 0
    undeclared: int = 0
    undeclared_output_tokens: int = 0
    input_tokens: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    good_tokens: int = 0
    neutral_tokens: int = 0
    answered_input_tokens: int = 0
    answered_reused_tokens: int = 0
    gpu_unknown: int = 0
    outcomes: dict[str, int] = {}
    missed_terms: dict[str, int] = {}
    waste: dict[str, Waste] = {}
    gpu_us: dict[str, int] = {}
    spans: dict[float, tuple[int, int]] = {}
    ttft: Histogram = msgspec.field(default_factory=Histogram)
    tpot: Histogram = msgspec.field(default_factory=Histogram)
    e2e: Histogram = msgspec.field(default_factory=Histogram)
    """Of completed requests."""

    @classmethod
    def of(cls, rows: Iterable[LedgerRow]) -> "Totals":
        """The figures of rows."""
        counts = dict.fromkeys(COUNTS, 0)
        outcomes: dict[str, int] = {}
        missed: dict[str, int] = {}
        waste: dict[str, Waste] = {}
        gpu_us: dict[str, int] = {}
        spans: dict[float, tuple[int, int]] = {}
        ttft: list[float] = []
        tpot: list[float] = []
        e2e: list[float] = []
        for row in rows:
            _count(counts, row)
            _more(outcomes, row.outcome, 1)
            for term in row.missed if row.met is not None else ():
                _more(missed, term, 1)
            for cause, wasted in _wasted(row):
                waste[cause] = _waste_sum(waste.get(cause), wasted)
            if spent_us := last_attempt_gpu_us(row) + _us(row.retried_gpu_s):
                _more(gpu_us, row.pool, spent_us)
            _widen(spans, row.time_scale, row.submitted_ns, row.ended_ns)
            if row.ttft_s is not None:
                ttft.append(row.ttft_s)
            if row.tpot_s is not None:
                tpot.append(row.tpot_s)
            if row.outcome == "completed":
                e2e.append(row.e2e_s)
        return cls(
            **counts,
            outcomes=outcomes,
            missed_terms=missed,
            waste=waste,
            gpu_us=gpu_us,
            spans=spans,
            ttft=Histogram.of(ttft),
            tpot=Histogram.of(tpot),
            e2e=Histogram.of(e2e),
        )

    @classmethod
    def sum(cls, parts: Iterable["Totals"]) -> "Totals":
        """All parts together."""
        known: Sequence[Totals] = tuple(parts)
        outcomes: dict[str, int] = {}
        missed: dict[str, int] = {}
        waste: dict[str, Waste] = {}
        gpu_us: dict[str, int] = {}
        spans: dict[float, tuple[int, int]] = {}
        for part in known:
            for into, more in ((outcomes, part.outcomes), (missed, part.missed_terms), (gpu_us, part.gpu_us)):
                for key, figure in more.items():
                    _more(into, key, figure)
            for cause, wasted in part.waste.items():
                waste[cause] = _waste_sum(waste.get(cause), wasted)
            for scale, (first_ns, last_ns) in part.spans.items():
                _widen(spans, scale, first_ns, last_ns)
        return cls(
            **{name: sum(getattr(part, name) for part in known) for name in COUNTS},
            outcomes=outcomes,
            missed_terms=missed,
            waste=waste,
            gpu_us=gpu_us,
            spans=spans,
            ttft=Histogram.sum(part.ttft for part in known),
            tpot=Histogram.sum(part.tpot for part in known),
            e2e=Histogram.sum(part.e2e for part in known),
        )

    def __add__(self, other: "Totals") -> "Totals":
        return Totals.sum((self, other))

    def __sub__(self, other: "Totals") -> "Totals":
        """Without rows that were counted in before (those that a correction replaced).

        The spans stay as they are: what is left says no more whose submission was the first.
        """
        return Totals(
            **{name: getattr(self, name) - getattr(other, name) for name in COUNTS},
            outcomes=_difference(self.outcomes, other.outcomes),
            missed_terms=_difference(self.missed_terms, other.missed_terms),
            waste=_waste_difference(self.waste, other.waste),
            gpu_us=_difference(self.gpu_us, other.gpu_us),
            spans=self.spans,
            ttft=self.ttft - other.ttft,
            tpot=self.tpot - other.tpot,
            e2e=self.e2e - other.e2e,
        )

    @property
    def duration_s(self) -> float:
        """Engine seconds from the first submission to the last end, those of different time scales added."""
        spans = self.spans.items()
        return sum(max(last_ns - first_ns, 0) / 1e9 * scale for scale, (first_ns, last_ns) in spans)

    @property
    def wasted_tokens(self) -> int:
        """Prompt and output tokens of all causes."""
        return sum(wasted.prefill_tokens + wasted.decode_tokens for wasted in self.waste.values())


NO_WASTE = Waste()
COUNTS = tuple(field.name for field in msgspec.structs.fields(Totals) if field.type is int)
"""The fields that are plain numbers."""


def last_attempt_gpu_us(row: LedgerRow) -> int:
    """GPU-microseconds of a row's last attempt; 0 where its engine is not known."""
    return _us(row.prefill_gpu_s) + _us(row.decode_gpu_s)


def _count(counts: dict[str, int], row: LedgerRow) -> None:
    counts["rows"] += 1
    counts["admitted"] += row.admitted
    counts["degraded"] += row.degraded
    if row.met is not None:
        counts["judged"] += 1
        counts["met"] += row.met
        counts["judged_admitted"] += row.admitted
        counts["met_admitted"] += row.met and row.admitted
    if row.objective_ttft_s is None and row.objective_tpot_s is None and row.objective_e2e_s is None:
        counts["undeclared"] += 1
        counts["undeclared_output_tokens"] += row.output_tokens
    counts["input_tokens"] += row.input_tokens
    counts["computed_tokens"] += row.computed_tokens
    counts["output_tokens"] += row.output_tokens
    counts["good_tokens"] += row.good_output_tokens
    counts["neutral_tokens"] += row.neutral_output_tokens
    if row.answered:
        counts["answered_input_tokens"] += row.input_tokens
        counts["answered_reused_tokens"] += row.reused_tokens
    unknown = row.prefill_gpu_s is None and row.decode_gpu_s is None
    counts["gpu_unknown"] += unknown and row.computed_tokens + row.output_tokens > 0


def _wasted(row: LedgerRow) -> Iterator[tuple[Cause, Waste]]:
    if row.waste_cause is not None:
        tokens = row.wasted_input_tokens, row.wasted_output_tokens
        yield row.waste_cause, Waste(1, *tokens, last_attempt_gpu_us(row))
    retried_us = _us(row.retried_gpu_s)
    if row.retried_input_tokens or row.retried_output_tokens or retried_us:
        yield "retried", Waste(1, row.retried_input_tokens, row.retried_output_tokens, retried_us)


def _us(seconds: float | None) -> int:
    return round((seconds or 0.0) * US_PER_S)


def _more(into: dict[str, int], key: str, figure: int) -> None:
    into[key] = into.get(key, 0) + figure


def _waste_sum(one: Waste | None, other: Waste, sign: int = 1) -> Waste:
    known = one or NO_WASTE
    return Waste(
        requests=known.requests + sign * other.requests,
        prefill_tokens=known.prefill_tokens + sign * other.prefill_tokens,
        decode_tokens=known.decode_tokens + sign * other.decode_tokens,
        gpu_us=known.gpu_us + sign * other.gpu_us,
    )


def _widen(spans: dict[float, tuple[int, int]], scale: float, first_ns: int, last_ns: int) -> None:
    first, last = spans.get(scale, (first_ns, last_ns))
    spans[scale] = min(first, first_ns), max(last, last_ns)


def _difference(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {key: left for key in {**one, **other} if (left := one.get(key, 0) - other.get(key, 0))}


def _waste_difference(one: dict[str, Waste], other: dict[str, Waste]) -> dict[str, Waste]:
    left = {cause: _waste_sum(one.get(cause), other.get(cause, NO_WASTE), -1) for cause in {**one, **other}}
    return {cause: waste for cause, waste in left.items() if waste != NO_WASTE}
