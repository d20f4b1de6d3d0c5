"""What became of requests, counted by class and window. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from math import isfinite

from slomax.policy.entry import Entry


@dataclass(slots=True)
class Evidence:
    """Counts of one class in one window."""

    offered: int = 0
    refused: int = 0
    """Because their objective was predicted to be missed; those served nevertheless included, who say nothing of margins."""
    ended: int = 0
    """Admitted ones that are over; clients that left are not counted."""
    met: int = 0
    missed_ttft: int = 0
    missed_tpot: int = 0
    output_tokens: int = 0
    good_tokens: int = 0
    patient: bool = False
    """Nobody waits for first tokens of this class."""

    @property
    def attained(self) -> float:
        """Of the admitted."""
        return self.met / self.ended if self.ended else 1.0

    @property
    def met_of_offered(self) -> float:
        """Of those that are over, refused ones included."""
        over = self.ended + self.refused
        return self.met / over if over else 1.0

    @property
    def good_share(self) -> float:
        """Good output of all that the offered requests would have given, had the refused been like the others."""
        if not self.ended:
            return 1.0
        each = self.output_tokens / self.ended
        would = self.output_tokens + self.refused * each
        return self.good_tokens / would if would else 1.0

    def add(self, other: "Evidence") -> None:
        for one in fields(self):
            if one.name != "patient":
                setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def halve(self) -> None:
        """Let all counts weigh half of what they do."""
        for one in fields(self):
            if one.name != "patient":
                setattr(self, one.name, getattr(self, one.name) // 2)

    @staticmethod
    def total(windows: "Iterable[Evidence]") -> "Evidence":
        """All of some classes."""
        total = Evidence()
        for window in windows:
            total.add(window)
        return total


def judge_outcome(
    entry: Entry, first_token_s: float | None, ended_s: float, output_tokens: int, *, completed: bool
) -> Evidence:
    """One admitted request that is over, as evidence.

    Args:
        entry: the request.
        first_token_s: when it came, on the same clock as `ended_s`; None: not known (not streamed, or never).
        ended_s: when it ended.
        output_tokens: of its answer.
        completed: whether the answer was whole.
    """
    objective = entry.objective
    missed_ttft = missed_tpot = False
    if first_token_s is not None:
        if objective.ttft_s is not None:
            missed_ttft = first_token_s - entry.arrived_s > objective.ttft_s
        if objective.tpot_s is not None and output_tokens > 1:
            missed_tpot = (ended_s - first_token_s) / (output_tokens - 1) > objective.tpot_s
    elif not completed:
        missed_ttft = True
    late = objective.e2e_s is not None and ended_s - entry.arrived_s > objective.e2e_s
    met = completed and not (missed_ttft or missed_tpot or late)
    return Evidence(
        ended=1,
        met=int(met),
        missed_ttft=int(missed_ttft),
        missed_tpot=int(missed_tpot),
        output_tokens=output_tokens,
        good_tokens=output_tokens if met else 0,
        patient=entry.patient,
    )


def absurd(counts: Mapping[str, float], window_s: float, age_s: float) -> str | None:
    """Why a goodput window of the ledger cannot be believed, or None.

    Args:
        counts: offered, completed, rejected, timed_out, cancelled, failed, lost, met, output_tokens, good_tokens.
        window_s: its length in seconds.
        age_s: since its end.
    """
    if not all(isfinite(value) and value >= 0 for value in counts.values()):
        return "a count is negative or not a number"
    if not (isfinite(window_s) and window_s > 0):
        return "its length is not positive"
    if not -60.0 <= age_s <= 600.0:
        return f"it ended {age_s:.0f} s ago"
    ends = ("completed", "rejected", "timed_out", "cancelled", "failed", "lost")
    over = sum(counts[name] for name in ends)
    if counts["met"] > counts["completed"] or counts["good_tokens"] > counts["output_tokens"]:
        return "more was good than there was"
    if over > counts["offered"]:
        return "more ended than were offered"
    return None
