"""What a run shows, in order and in sentences: computed from its figures, in TokenFleet's favour or not."""

from collections.abc import Callable

import msgspec

from lab.results.model import LENGTHS, OURS, PolicyResult, Run, compares, is_ours, title
from lab.results.writing import Written, milliseconds, percent, seconds, whole


def ranked(run: Run) -> list[str]:
    """TokenFleet, its variants, then the baselines; each by goodput, the best first."""
    return sorted(
        run.policies,
        key=lambda name: (
            name != OURS,
            not is_ours(name),
            -run.policies[name].goodput_tokens_per_s,
            name,
        ),
    )


def best_baseline(run: Run) -> str:
    """The baseline with the most goodput. There must be one."""
    return max(run.baselines, key=lambda name: (run.baselines[name].goodput_tokens_per_s, name))


def summary(run: Run) -> str:
    """The run in a few sentences: goodput against the bound and the best baseline, attainment, TTFT, refusals.

    Of a run in which TokenFleet or all baselines are missing: what the best policy delivers.
    """
    if not compares(run):
        best = max(run.policies, key=lambda name: (run.policies[name].goodput_tokens_per_s, name))
        delivered = run.policies[best].goodput_tokens_per_s
        return (
            f"{title(best)} delivers {whole(delivered)} tokens/s of goodput"
            f"{_of_bound(delivered, run.bound.goodput_tokens_per_s)}. "
            "TokenFleet was not compared with a baseline in this run."
        )
    ours, rival = run.ours, best_baseline(run)
    theirs = run.policies[rival]
    sentences = [
        f"TokenFleet delivers {whole(ours.goodput_tokens_per_s)} tokens/s of goodput"
        f"{_of_bound(ours.goodput_tokens_per_s, run.bound.goodput_tokens_per_s)}, "
        f"{_compared(ours.goodput_tokens_per_s, theirs.goodput_tokens_per_s)} the best baseline, {title(rival)} "
        f"({whole(theirs.goodput_tokens_per_s)}){_overlap(ours, theirs)}.",
        f"Of all offered requests {percent(ours.attainment_offered)} meet their objective "
        f"({title(rival)}: {percent(theirs.attainment_offered)}); "
        f"it refuses {percent(_share(ours.rejected, ours.offered))} "
        f"({title(rival)}: {percent(_share(theirs.rejected, theirs.offered))}).",
        f"TTFT is {seconds(ours.ttft_s.p50)} s at P50 and {seconds(ours.ttft_s.p95)} s at P95 "
        f"({title(rival)}: {seconds(theirs.ttft_s.p50)} s and {seconds(theirs.ttft_s.p95)} s; "
        f"bound: {seconds(run.bound.ttft_s.p50)} s and {seconds(run.bound.ttft_s.p95)} s).",
    ]
    return " ".join(sentences)


class Lag(msgspec.Struct, frozen=True):
    """A figure in which some baseline beats TokenFleet."""

    figure: str
    ours: str
    baseline: str
    theirs: str

    def __str__(self) -> str:
        return f"{self.figure}: {self.ours} against {self.theirs} ({title(self.baseline)})"


def lags(run: Run) -> list[Lag]:
    """Every figure shown in which the best baseline for it beats TokenFleet, by class and by input length too.

    Empty also where there is nothing to compare.
    """
    if not compares(run):
        return []
    found = [
        _lag(run, "goodput, tokens/s", lambda p: p.goodput_tokens_per_s, whole, more=True),
        _lag(run, "met of offered", lambda p: p.attainment_offered, percent, more=True),
        _lag(run, "TTFT P50, s", lambda p: p.ttft_s.p50, seconds, more=False),
        _lag(run, "TTFT P95, s", lambda p: p.ttft_s.p95, seconds, more=False),
        _lag(run, "TTFT P99, s", lambda p: p.ttft_s.p99, seconds, more=False),
        _lag(run, "TPOT P95, ms", lambda p: p.tpot_s.p95, milliseconds, more=False),
    ]
    for name in run.classes:
        found.append(
            _lag(run, f"met of offered, {name}", _class_attainment(name), percent, more=True),
        )
        found.append(_lag(run, f"goodput of {name}, tokens/s", _class_goodput(name), whole, more=True))
    for key in run.input_lengths:
        label = LENGTHS[key]
        found.append(
            _lag(run, f"met of offered, prompts {label}", _length_attainment(key), percent, more=True)
        )
    return [lag for lag in found if lag]


Value = Callable[[PolicyResult], float | None]


def _lag(run: Run, figure: str, value: Value, written: Written, *, more: bool) -> Lag | None:
    """A lag if some baseline's figure is better and it shows in the figures as written."""
    ours = value(run.ours)
    known = {name: v for name, result in run.baselines.items() if (v := value(result)) is not None}
    if ours is None or not known:
        return None
    best = (max if more else min)(known, key=lambda name: (known[name], name))
    ahead = known[best] > ours if more else known[best] < ours
    if not ahead or written(known[best]) == written(ours):
        return None
    return Lag(figure, written(ours), best, written(known[best]))


def _class_attainment(name: str) -> Value:
    return lambda p: p.classes[name].attainment_offered if name in p.classes else None


def _class_goodput(name: str) -> Value:
    return lambda p: p.classes[name].goodput_tokens_per_s if name in p.classes else None


def _length_attainment(key: str) -> Value:
    return lambda p: p.input_lengths[key].attainment_offered if key in p.input_lengths else None


def _of_bound(value: float, bound: float) -> str:
    return f" ({percent(value / bound)} of the bound's {whole(bound)})" if bound else ""


def _compared(ours: float, theirs: float) -> str:
    if not theirs:
        return "against nothing from" if ours else "as little as"
    change = ours / theirs - 1
    if abs(change) < 0.0005:
        return "the same as"
    return f"{percent(abs(change))} {'more' if change > 0 else 'less'} than"


def _overlap(ours: PolicyResult, theirs: PolicyResult) -> str:
    """Says so when the spreads over seeds overlap: then the difference may be chance."""
    if not (ours.min and ours.max and theirs.min and theirs.max):
        return ""
    apart = (
        ours.min.goodput_tokens_per_s > theirs.max.goodput_tokens_per_s
        or theirs.min.goodput_tokens_per_s > ours.max.goodput_tokens_per_s
    )
    return "" if apart else "; their ranges over the seeds overlap"


def _share(part: float, whole_: float) -> float | None:
    return part / whole_ if whole_ else None
