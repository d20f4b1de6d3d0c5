"""The kinds of bars. Each says what it needs to be run, and judges what came."""

from collections.abc import Iterable, Mapping
from math import inf
from typing import Protocol

import msgspec

from lab.bars.model import (
    BASELINE,
    OURS,
    PEERS,
    SHOWN_ONLY,
    THROUGHPUT,
    WITH_ADMISSION,
    Figure,
    Measured,
    Measurements,
    Needed,
    Source,
    Verdict,
)
from lab.results.model import PolicyResult, title
from lab.results.writing import ABSENT, percent

LEAST_TTFT = Source(
    "shown",
    "Mooncake's conductor is the rule of the least predicted TTFT itself, told each engine's timing",
)


class Bar(Protocol):
    """A promise about one scenario."""

    @property
    def scenario(self) -> str: ...

    @property
    def needs(self) -> Mapping[str, Needed]:
        """Who has to run which scenario."""
        ...

    def judge(self, measurements: Measurements) -> list[Verdict]: ...


class BarBase(msgspec.Struct, frozen=True, kw_only=True):
    scenario: str
    source: Source
    """Where the bar comes from."""

    @property
    def needs(self) -> Mapping[str, Needed]:
        return {self.scenario: Needed(frozenset({OURS}), frozenset({BASELINE, *PEERS}))}


class Limit(BarBase, frozen=True, kw_only=True):
    """A figure is at most, or at least, so much."""

    figure: Figure
    limit: float
    policy: str = OURS
    counted: bool = True

    @property
    def needs(self) -> Mapping[str, Needed]:
        return {self.scenario: Needed(frozenset({self.policy}))}

    def judge(self, measurements: Measurements) -> list[Verdict]:
        figure = self.figure
        value = figure.value(measurements[self.scenario].policies[self.policy])
        return [
            Verdict(
                scenario=self.scenario,
                bar=figure.label,
                needed=f"{_at(figure)} {figure.written(self.limit)}",
                measured=figure.written(value),
                passed=_within(figure, value, self.limit),
                source=self.source,
                policy=self.policy,
                counted=self.counted,
            )
        ]


class BelowPeers(BarBase, frozen=True, kw_only=True):
    """A latency is lower than the best peer's by a share at least."""

    figure: Figure
    share: float

    def judge(self, measurements: Measurements) -> list[Verdict]:
        measured = measurements[self.scenario]
        peers = [name for name in measured.serving if name not in SHOWN_ONLY]
        best = best_of(measured, self.figure, peers)
        rivals = [best, *(name for name in measured.peers if name in SHOWN_ONLY)]
        return [self._against(measured, name) for name in rivals if name]

    def _against(self, measured: Measured, rival: str) -> Verdict:
        shown_only = rival in SHOWN_ONLY
        verdict = _lower(self.scenario, self.figure, self.share, measured, rival, self.source)
        return msgspec.structs.replace(
            verdict,
            bar=f"{self.figure.label} against {title(rival)}{'' if shown_only else ', best peer'}",
            counted=not shown_only,
            source=LEAST_TTFT if shown_only else self.source,
        )


class BelowBaseline(BarBase, frozen=True, kw_only=True):
    """A latency is lower than round robin's, or another baseline's, by a share at least."""

    figure: Figure
    share: float
    rival: str = BASELINE

    @property
    def needs(self) -> Mapping[str, Needed]:
        if self.rival == BASELINE:
            return super().needs
        return {self.scenario: Needed(frozenset({OURS}), frozenset({BASELINE, self.rival}))}

    def judge(self, measurements: Measurements) -> list[Verdict]:
        measured = measurements[self.scenario]
        verdict = _lower(self.scenario, self.figure, self.share, measured, self.rival, self.source)
        return [msgspec.structs.replace(verdict, bar=f"{self.figure.label} against {title(self.rival)}")]


class NotBeaten(BarBase, frozen=True, kw_only=True):
    """No peer has a better figure by more than noise.

    Noise is the greater of the two policies' ranges over the seeds. A peer that turns requests away is compared with
    TokenFleet in its default configuration, which does so too.
    """

    figure: Figure

    def judge(self, measurements: Measurements) -> list[Verdict]:
        measured = measurements[self.scenario]
        pairs = (
            (OURS, measured.serving, ""),
            (WITH_ADMISSION, measured.refusing, " that refuses (TokenFleet too)"),
        )
        return [
            max((self._against(measured, ours, name, which) for name in names), key=lambda one: one[0])[1]
            for ours, names, which in pairs
            if names and ours in measured.policies
        ]

    def _against(self, measured: Measured, ours: str, rival: str, which: str) -> tuple[float, Verdict]:
        """By how much more than noise a peer is better, and the verdict."""
        mine, theirs = measured.policies[ours], measured.policies[rival]
        value, best = self.figure.value(mine), self.figure.value(theirs)
        noise = max(range_of(self.figure, mine), range_of(self.figure, theirs))
        if value is None:
            beyond = inf
        elif best is None:
            beyond = -inf
        else:
            beyond = (best - value if self.figure.more_is_better else value - best) - noise
        written = self.figure.written
        verdict = Verdict(
            scenario=self.scenario,
            bar=f"{self.figure.label}, no better peer{which}",
            needed=f"{_at(self.figure)} {written(best)} ({title(rival)}), noise {written(noise)}",
            measured=written(value),
            passed=beyond <= 0,
            source=self.source,
        )
        return beyond, verdict


class Throughput(BarBase, frozen=True, kw_only=True):
    """All output per second is no lower than the best peer's, within a share."""

    within: float

    def judge(self, measurements: Measurements) -> list[Verdict]:
        measured = measurements[self.scenario]
        rival = best_of(measured, THROUGHPUT, list(measured.peers))
        best = THROUGHPUT.value(measured.policies[rival]) if rival else None
        value = THROUGHPUT.value(measured.policies[OURS])
        least = None if best is None else best * (1 - self.within)
        return [
            Verdict(
                scenario=self.scenario,
                bar=THROUGHPUT.label,
                needed=f"at least {THROUGHPUT.written(least)} ({percent(1 - self.within)} of {title(rival or '')})",
                measured=THROUGHPUT.written(value),
                passed=value is not None and least is not None and value >= least,
                source=self.source,
            )
        ]


class Cost(BarBase, frozen=True, kw_only=True):
    """A share falls by at most so much against another scenario."""

    against: str
    figure: Figure
    most: float
    policy: str = OURS
    counted: bool = True
    """Otherwise it is only shown."""

    @property
    def needs(self) -> Mapping[str, Needed]:
        return dict.fromkeys((self.scenario, self.against), Needed(frozenset({self.policy})))

    def judge(self, measurements: Measurements) -> list[Verdict]:
        value = self.figure.value(measurements[self.scenario].policies[self.policy])
        other = self.figure.value(measurements[self.against].policies[self.policy])
        cost = None if value is None or other is None else other - value
        return [
            Verdict(
                scenario=self.scenario,
                bar=f"{self.figure.label} against {self.against}",
                needed=f"at most {self.most * 100:.1f} points below {self.figure.written(other)}",
                measured=ABSENT
                if cost is None
                else f"{self.figure.written(value)} ({-cost * 100:+.1f} points)",
                passed=cost is not None and cost <= self.most,
                counted=self.counted,
                source=self.source,
                policy=self.policy,
            )
        ]


def _lower(
    scenario: str, figure: Figure, share: float, measured: Measured, rival: str, source: Source
) -> Verdict:
    value, theirs = figure.value(measured.policies[OURS]), figure.value(measured.policies[rival])
    most = None if theirs is None else theirs * (1 - share)
    change = f" ({value / theirs - 1:+.1%})".replace("%", " %") if value is not None and theirs else ""
    by = f" ({percent(share)} below {figure.written(theirs)})" if share else ""
    return Verdict(
        scenario=scenario,
        bar=figure.label,
        needed=f"at most {figure.written(most)}{by}",
        measured=f"{figure.written(value)}{change}",
        passed=value is not None and most is not None and value <= most,
        source=source,
    )


def best_of(measured: Measured, figure: Figure, names: Iterable[str]) -> str | None:
    """Which of some policies has the best figure; None where none has it."""
    known = {name: value for name in names if (value := figure.value(measured.policies[name])) is not None}
    if not known:
        return None
    return (max if figure.more_is_better else min)(known, key=lambda name: (known[name], name))


def range_of(figure: Figure, result: PolicyResult) -> float:
    """How far apart a policy's seeds are."""
    low, high = (one and figure.value(one) for one in (result.min, result.max))
    return 0.0 if low is None or high is None else high - low


def _at(figure: Figure) -> str:
    return "at least" if figure.more_is_better else "at most"


def _within(figure: Figure, value: float | None, limit: float) -> bool:
    if value is None:
        return False
    return value >= limit if figure.more_is_better else value <= limit
