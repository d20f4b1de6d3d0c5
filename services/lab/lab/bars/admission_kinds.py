"""The kinds of bars that are about admission: what is refused, who waits, and what is left for others."""

from collections.abc import Mapping

from lab.bars.kinds import BarBase, best_of, range_of
from lab.bars.model import (
    BASELINE,
    GOODPUT,
    THROUGHPUT,
    WITH_ADMISSION,
    Figure,
    Measured,
    Measurements,
    Needed,
    Verdict,
)
from lab.results.model import BatchFigures, title
from lab.results.writing import ABSENT, percent

OURS = frozenset({WITH_ADMISSION})


class Ahead(BarBase, frozen=True, kw_only=True):
    """Goodput is so many times that of the best of some peers, at no less output in all than that peer's."""

    factor: float
    rivals: tuple[str, ...]
    which: str
    """Those peers in words."""
    policy: str = WITH_ADMISSION

    @property
    def needs(self) -> Mapping[str, Needed]:
        return {self.scenario: Needed(frozenset({self.policy}), frozenset({BASELINE, *self.rivals}))}

    def judge(self, measurements: Measurements) -> list[Verdict]:
        measured = measurements[self.scenario]
        rival = best_of(measured, GOODPUT, self.rivals)
        if rival is None:
            return []
        value = GOODPUT.value(measured.policies[self.policy])
        theirs = GOODPUT.value(measured.policies[rival])
        least = None if theirs is None else self.factor * theirs
        ratio = f" ({value / theirs:.2f} times)" if value is not None and theirs else ""
        goodput = Verdict(
            scenario=self.scenario,
            bar=f"{GOODPUT.label}, best peer {self.which}",
            needed=f"at least {GOODPUT.written(least)} ({self.factor:g} times {title(rival)})",
            measured=f"{GOODPUT.written(value)}{ratio}",
            passed=value is not None and least is not None and value >= least,
            source=self.source,
            policy=self.policy,
        )
        output = NoLess(scenario=self.scenario, source=self.source, rival=rival, policy=self.policy)
        return [goodput, *output.judge(measurements)]


class NoLess(BarBase, frozen=True, kw_only=True):
    """All output is no less than a peer's by more than noise: the greater of the two ranges over the seeds."""

    rival: str
    policy: str = WITH_ADMISSION

    @property
    def needs(self) -> Mapping[str, Needed]:
        return {self.scenario: Needed(frozenset({self.policy}), frozenset({BASELINE, self.rival}))}

    def judge(self, measurements: Measurements) -> list[Verdict]:
        policies = measurements[self.scenario].policies
        ours, theirs = policies[self.policy], policies[self.rival]
        value, least = THROUGHPUT.value(ours), THROUGHPUT.value(theirs)
        noise = max(range_of(THROUGHPUT, ours), range_of(THROUGHPUT, theirs))
        written = THROUGHPUT.written
        return [
            Verdict(
                scenario=self.scenario,
                bar=THROUGHPUT.label,
                needed=f"at least {written(least)} ({title(self.rival)}), noise {written(noise)}",
                measured=written(value),
                passed=value is not None and least is not None and value >= least - noise,
                source=self.source,
                policy=self.policy,
            )
        ]


class Moves(BarBase, frozen=True, kw_only=True):
    """A latency is greater than in another scenario by a share at most."""

    against: str
    figure: Figure
    most: float

    @property
    def needs(self) -> Mapping[str, Needed]:
        return dict.fromkeys((self.scenario, self.against), Needed(OURS))

    def judge(self, measurements: Measurements) -> list[Verdict]:
        value = self.figure.value(measurements[self.scenario].policies[WITH_ADMISSION])
        other = self.figure.value(measurements[self.against].policies[WITH_ADMISSION])
        change = value / other - 1 if value is not None and other else None
        written = self.figure.written
        return [
            Verdict(
                scenario=self.scenario,
                bar=f"{self.figure.label} against {self.against}",
                needed=f"less than {percent(self.most)} above {written(other)}",
                measured=ABSENT if change is None else f"{written(value)} ({change:+.1%})".replace("%", " %"),
                passed=change is not None and change < self.most,
                source=self.source,
                policy=WITH_ADMISSION,
            )
        ]


class Fills(BarBase, frozen=True, kw_only=True):
    """Batch gets a share of what other requests leave of the pool, as `lab.sim.batch` defines it."""

    saturated: str
    """The scenario with the same batch lines and nothing else."""
    least: float

    @property
    def needs(self) -> Mapping[str, Needed]:
        return {
            self.scenario: Needed(OURS),
            self.saturated: Needed(OURS, frozenset({BASELINE, "least_requests"})),
        }

    def judge(self, measurements: Measurements) -> list[Verdict]:
        batch = measurements[self.scenario].policies[WITH_ADMISSION].batch
        most = _saturated_per_s(measurements[self.saturated])
        share = _share_of_rest(batch, most)
        rest = f" of {most - batch.others_work_per_s:.2f}" if batch and most is not None else ""
        return [
            Verdict(
                scenario=self.scenario,
                bar="batch's share of the remaining capacity",
                needed=f"at least {percent(self.least)}",
                measured=ABSENT
                if share is None or batch is None
                else f"{percent(share)} ({batch.work_per_s:.2f}{rest} engine seconds/s)",
                passed=share is not None and share >= self.least,
                source=self.source,
                policy=WITH_ADMISSION,
            )
        ]


def _saturated_per_s(measured: Measured) -> float | None:
    """The most work that anybody gets done of batch lines alone."""
    return max((one.batch.work_per_s for one in measured.policies.values() if one.batch), default=None)


def _share_of_rest(batch: BatchFigures | None, saturated_per_s: float | None) -> float | None:
    if batch is None or saturated_per_s is None:
        return None
    rest = saturated_per_s - batch.others_work_per_s
    return batch.work_per_s / rest if rest > 0 else None
