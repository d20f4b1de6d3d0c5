"""The accountant's instruments."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from goodput_accountant.policy.accounting import UNCLASSIFIED, LedgerRow
from tokenfleet.contracts.dead_letters import DeadLetterReason


class Metrics:
    """What the ledger took in, in this process."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._rows = meter.create_counter("tokenfleet.ledger.rows", description="New ledger rows.")
        self._duplicates = meter.create_counter(
            "tokenfleet.ledger.duplicates", description="Events whose row was there already."
        )
        self._dead_letters = meter.create_counter(
            "tokenfleet.ledger.dead_letters", description="Events that could not be booked."
        )
        self._lost = meter.create_counter(
            "tokenfleet.ledger.lost", description="Requests closed because nobody said how they ended."
        )
        self._tokens = meter.create_counter(
            "tokenfleet.ledger.tokens", unit="{token}", description="Output tokens by what they were worth."
        )
        self._batch = meter.create_histogram(
            "tokenfleet.ledger.batch.duration", unit="s", description="From a batch's arrival to its commit."
        )
        self._windows = meter.create_counter(
            "tokenfleet.ledger.windows", description="Goodput windows published."
        )

    def appended(self, rows: Sequence[LedgerRow], event_ids: frozenset[str]) -> None:
        """A committed batch: the rows it had, and those that were new."""
        # A request twice in one batch is one row, not two.
        new = {row.event_id: row for row in rows if row.event_id in event_ids}.values()
        counts: Counter[tuple[str, str, str]] = Counter()
        tokens: Counter[tuple[str, str, str]] = Counter()
        for (row_class, pool, outcome, cause), group in _alike(new).items():
            request_class = row_class or UNCLASSIFIED
            counts[request_class, pool, outcome] += len(group)
            tokens[request_class, pool, "good"] += sum(row.good_output_tokens for row in group)
            tokens[request_class, pool, "neutral"] += sum(row.neutral_output_tokens for row in group)
            tokens[request_class, pool, cause or "neutral"] += sum(row.wasted_output_tokens for row in group)
            tokens[request_class, pool, "retried"] += sum(row.retried_output_tokens for row in group)
        for (request_class, pool, outcome), count in counts.items():
            self._rows.add(count, {**_group(request_class, pool), "tokenfleet.outcome": outcome})
        for (request_class, pool, worth), count in tokens.items():
            self._tokens.add(count, {**_group(request_class, pool), "tokenfleet.worth": worth})
        self._duplicates.add(len(rows) - len(new))

    def dead_letter(self, reason: DeadLetterReason) -> None:
        self._dead_letters.add(1, {"tokenfleet.reason": reason})

    def closed_as_lost(self, count: int) -> None:
        self._lost.add(count)

    def batch_took(self, seconds: float) -> None:
        self._batch.record(seconds)

    def windows_published(self, count: int) -> None:
        self._windows.add(count)

    def observe_backlog(self, read: Callable[[], int | None]) -> None:
        """Report how many events are stored but not acknowledged, once `read` knows."""

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            backlog = read()
            return () if backlog is None else (Observation(backlog),)

        self._meter.create_observable_gauge(
            "tokenfleet.ledger.backlog",
            callbacks=[observe],
            description="Events in the stream that the ledger has not acknowledged.",
        )


def _alike(rows: Iterable[LedgerRow]) -> dict[tuple[str | None, str, str, str | None], list[LedgerRow]]:
    """By class, pool, outcome and cause of waste: few groups of many rows."""
    groups: dict[tuple[str | None, str, str, str | None], list[LedgerRow]] = defaultdict(list)
    for row in rows:
        groups[row.request_class, row.pool, row.outcome, row.waste_cause].append(row)
    return groups


def _group(request_class: str, pool: str) -> dict[str, str]:
    return {"tokenfleet.class": request_class, "tokenfleet.pool": pool}
