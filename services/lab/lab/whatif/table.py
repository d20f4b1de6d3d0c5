"""A comparison as a table and words."""

from collections.abc import Iterator

from rich.table import Table

from lab.whatif.comparison import TOLERANCE, Comparison
from lab.whatif.statistics import CONFIDENCE

ABSENT = "-"
ROWS = (
    ("goodput, tokens/s", "goodput_tokens_per_s", "{:,.1f}", 1.0),
    ("all output, tokens/s", "output_tokens_per_s", "{:,.1f}", 1.0),
    ("completed", "completed", "{:,.0f}", 1.0),
    ("refused", "refused", "{:,.0f}", 1.0),
    ("timed out", "timed_out", "{:,.0f}", 1.0),
    ("failed", "failed", "{:,.0f}", 1.0),
    ("met, of offered, %", "attainment_offered", "{:.1f}", 100.0),
    ("met, of admitted, %", "attainment_admitted", "{:.1f}", 100.0),
    ("TTFT P50, s", "ttft_p50_s", "{:.3f}", 1.0),
    ("TTFT P95, s", "ttft_p95_s", "{:.3f}", 1.0),
    ("TPOT P95, ms", "tpot_p95_s", "{:.1f}", 1000.0),
    ("prompt tokens reused, %", "prefix_reuse", "{:.1f}", 100.0),
)
"""Label, figure, how it is written, and by what it is multiplied for that."""


def table(comparison: Comparison) -> Table:
    """Recorded, re-run and what-if, and the difference with its interval."""
    shown = Table(
        title=f"{comparison.requests:,} requests, medians of {comparison.seeds} seeds",
        title_justify="left",
        caption=f"Engine time. Difference: what-if minus re-run, mean and {CONFIDENCE:.0%} interval over seeds.",
        caption_justify="left",
    )
    shown.add_column("", no_wrap=True)
    for heading in ("recorded", "re-run", "what-if", "difference"):
        shown.add_column(heading, justify="right", no_wrap=True)
    classes = sorted(name for name in comparison.recorded if name.startswith("class."))
    of_classes = [
        (f"met, {name.removeprefix('class.')}, %", name, "{:.1f}", 100.0)
        for name in dict.fromkeys([*classes, *(n for n in comparison.rerun if n.startswith("class."))])
    ]
    for label, name, written, factor in (*ROWS, *of_classes):
        columns = (comparison.recorded, comparison.rerun, comparison.what_if or {})
        values = [_written(column.get(name), written, factor) for column in columns]
        shown.add_row(label, *values, _difference(comparison, name, written, factor))
    return shown


def verdict(comparison: Comparison) -> Iterator[str]:
    """What is to be known about the table, a line each."""
    trust = comparison.trust
    if trust.goodput_off is None:
        off = "no good token was recorded, and the re-run has " + ("none either" if trust.trusted else "some")
    else:
        off = f"the re-run's goodput is {trust.goodput_off:+.1%} off the recorded"
    if trust.trusted:
        yield f"Reproduced: {off} (allowed: {TOLERANCE:.0%})."
        yield from (f"  note: {reason}" for reason in trust.likely)
    else:
        yield f"This what-if cannot be trusted: {off} (allowed: {TOLERANCE:.0%})."
        yield from (f"  differs: {line}" for line in trust.measured)
        yield from (f"  likely: {reason}" for reason in trust.likely)
        if not trust.likely:
            yield (
                "  likely: nothing in the recording stands out; engines that are not as their profiles say, or a "
                "machine too busy to keep engine time, would do this"
            )
    yield from (f"  note: {note}" for note in comparison.notes)


def changes(comparison: Comparison) -> Iterator[str]:
    """How the what-if differs from what was live."""
    for name, (live, other) in comparison.settings.items():
        yield f"  {name}: {live} -> {other}"
    for pool, (live, other) in comparison.instances.items():
        yield f"  instances of {pool}: {live} -> {other}"


def _written(value: float | None, written: str, factor: float) -> str:
    return ABSENT if value is None else written.format(value * factor)


def _difference(comparison: Comparison, name: str, written: str, factor: float) -> str:
    difference = comparison.difference.get(name)
    if difference is None:
        return ABSENT
    signed = written.replace("{:", "{:+")
    mean = signed.format(difference.mean * factor)
    if difference.low is None or difference.high is None:
        return mean
    return f"{mean} [{signed.format(difference.low * factor)}, {signed.format(difference.high * factor)}]"
