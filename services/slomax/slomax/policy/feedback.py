"""Moves margins and shares by what became of requests: bounded steps, hysteresis, a way back. Pure.

Every `WINDOW_S` the outcomes of that time are judged. A margin moves only when two windows in a row ask for the same
move, or when all windows since the last move together say so beyond chance; by one step, within `BOUNDS` of the
configured value. A tightening after which less of what was offered became good output is taken back. Without outcomes,
everything returns to what is configured step by step.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt

from slomax.policy.admission import Margins
from slomax.policy.outcomes import Evidence
from tokenfleet.contracts.policy import ClassObjective, ClassShare, Policy

WINDOW_S = 15.0
"""Engine seconds. Longer than most answers, so that a window sees the effect of the one before."""
LEAST_ENDED = 30
"""Fewer outcomes than this say nothing."""
DEADBAND = 0.02
"""Of attainment around its target: within it nothing moves."""
CHANCE = 2.5
"""Standard errors of a window's attainment that are taken for chance. A window holds some hundred outcomes."""
SEVERAL = 2
"""Windows in a row that must ask for the same move."""
SMALL_CHANCE, LEAST_WINDOWS, MOST_WINDOWS = 2.0, 4, 40
"""The same of all windows since the last move, at least so many: a small lack that lasts is seen too. After so many,
the older ones count half."""
PAUSE_WINDOWS = 1
"""Windows after a move in which its effect is awaited."""
STEP = 0.85
"""One step of a margin down; its inverse up."""
BOUNDS = {"wait_share_of_slack": (0.4, 1.2), "misses_allowed": (0.4, 1.5), "queue_share": (0.25, 1.0)}
"""Of each margin, as multiples of the configured value."""
REFUSED_ENOUGH = 0.01
"""A share of refusals worth loosening a margin for."""
WORSE = 0.95
"""Less good output than this, of what it was per token offered, takes a tightening back."""
BACKED_OFF_WINDOWS = 4
"""How long a move that was taken back is not tried again."""
MISSING_WINDOWS = 4
"""Windows without outcomes after which margins return to what is configured."""
FLOOR_STEP, FLOOR_MOST = 0.05, 0.2
"""By how much a class's floor moves at a time, and in all above the configured one."""
SERVED_WORSE, SERVED_AS_WELL = 0.25, 0.04
"""Behind the other classes in requests served well: beyond the first a floor is raised, within the second lowered. Of thirty
requests a share is off by 0.07 by chance, and by twice that in a minute that happens to bring several long prompts."""


@dataclass(frozen=True, slots=True)
class Adjustment:
    """One change, and why."""

    time_s: float
    knob: str
    before: float
    after: float
    reason: str
    evidence: Evidence
    request_class: str | None = None


@dataclass(slots=True)
class _Moved:
    """The last tightening, and how well things went before it."""

    knob: str
    good_share: float


@dataclass(slots=True)
class Controller:
    """One pool's margins and floors."""

    _factors: dict[str, float] = field(default_factory=lambda: dict.fromkeys(BOUNDS, 1.0))
    _raised: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _since_move: Evidence = field(default_factory=Evidence)
    _windows_since_move: int = 0
    _floor_wishes: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """By class, which way its floor should go, and for how many judgements in a row."""
    _of_class: dict[str, tuple[Evidence, Evidence]] = field(
        default_factory=lambda: defaultdict(lambda: (Evidence(), Evidence()))
    )
    """By class, what became of it and of the others since its floor was judged last."""
    _wanted: str | None = None
    _wanted_windows: int = 0
    _pause: int = 0
    _silent: int = 0
    _moved: _Moved | None = None
    _backed_off: dict[str, int] = field(default_factory=dict[str, int])

    def margins(self, policy: Policy) -> Margins:
        """The margins in force."""
        factors = self._factors if policy.feedback else dict.fromkeys(BOUNDS, 1.0)
        return Margins(
            min(policy.wait_share_of_slack * factors["wait_share_of_slack"], 1.0),
            policy.hold_share_of_slack,
            policy.misses_allowed * factors["misses_allowed"],
            factors["queue_share"],
        )

    def shares(self, policy: Policy) -> Mapping[str, ClassShare]:
        """Floors and ceilings in force."""
        if not policy.feedback or not any(self._raised.values()):
            return policy.shares
        return {
            name: ClassShare(
                floor=min(share.floor + self._raised[name], share.ceiling), ceiling=share.ceiling
            )
            for name, share in policy.shares.items()
        }

    def judge(self, windows: Mapping[str, Evidence], policy: Policy, now_s: float) -> list[Adjustment]:
        """A window is over.

        Args:
            windows: what was seen in it, by class.
            policy: what is configured.
            now_s: engine seconds.
        """
        if not policy.feedback:
            return []
        prompt = {name: seen for name, seen in windows.items() if not seen.patient}
        everyone = Evidence.total(prompt.values())
        self._backed_off = {knob: left - 1 for knob, left in self._backed_off.items() if left > 1}
        if everyone.ended < LEAST_ENDED:
            return self._without_evidence(everyone, now_s)
        self._silent = 0
        if self._windows_since_move >= MOST_WINDOWS:
            self._since_move.halve()
            self._windows_since_move //= 2
        self._since_move.add(everyone)
        self._windows_since_move += 1
        undone = self._undo(everyone, now_s)
        if undone:
            return undone
        changes = self._move_margin(everyone, _target(prompt, policy), now_s)
        return changes + self._move_floors(prompt, policy, now_s)

    # -- margins

    def _move_margin(self, seen: Evidence, target: float, now_s: float) -> list[Adjustment]:
        wanted = self._wish(seen, target)
        self._wanted_windows = self._wanted_windows + 1 if wanted == self._wanted else 1
        self._wanted = wanted
        if self._pause > 0:
            self._pause -= 1
            return []
        if wanted is None or self._wanted_windows < SEVERAL:
            return []
        knob, _, direction = wanted.partition(" ")
        tightens = direction == "down"
        if tightens and knob in self._backed_off:
            return []
        reason = (
            f"{seen.attained:.1%} of admitted requests met their objective, {target:.1%} should"
            if tightens
            else f"{seen.attained:.1%} met their objective and {seen.refused} of {seen.offered} were refused"
        )
        change = self._set(knob, self._factors[knob] * (STEP if tightens else 1 / STEP), reason, seen, now_s)
        if not change:
            return []
        self._moved = _Moved(knob, seen.good_share) if tightens else None
        self._pause = PAUSE_WINDOWS
        self._wanted_windows = 0
        return change

    def _wish(self, seen: Evidence, target: float) -> str | None:
        """The move that a window asks for."""
        lasting, spread = self._since_move, sqrt(target * (1 - target))
        lacks = seen.attained < target - max(DEADBAND, CHANCE * spread / sqrt(max(seen.ended, 1)))
        lasts = self._windows_since_move >= LEAST_WINDOWS and (
            lasting.attained < target - SMALL_CHANCE * spread / sqrt(max(lasting.ended, 1))
        )
        if lacks or lasts:
            return (
                "misses_allowed down"
                if lasting.missed_tpot > lasting.missed_ttft
                else "wait_share_of_slack down"
            )
        if min(seen.attained, lasting.attained) <= target + min(DEADBAND, (1 - target) / 2):
            return None
        lowered = [knob for knob, factor in self._factors.items() if factor < 1.0]
        if lowered:
            return f"{min(lowered, key=self._factors.__getitem__)} up"
        if seen.refused > REFUSED_ENOUGH * seen.offered:
            return "misses_allowed up"
        return None

    def _undo(self, seen: Evidence, now_s: float) -> list[Adjustment]:
        """Take the last tightening back if it did harm."""
        moved = self._moved
        if moved is None or self._pause > 0:
            return []
        self._moved = None
        if seen.good_share >= WORSE * moved.good_share:
            return []
        self._backed_off[moved.knob] = BACKED_OFF_WINDOWS
        reason = f"{seen.good_share:.1%} of offered output was good after tightening, {moved.good_share:.1%} before"
        self._pause = PAUSE_WINDOWS
        return self._set(moved.knob, self._factors[moved.knob] / STEP, reason, seen, now_s)

    def _set(self, knob: str, factor: float, reason: str, seen: Evidence, now_s: float) -> list[Adjustment]:
        least, most = BOUNDS[knob]
        before, after = self._factors[knob], min(max(factor, least), most)
        if abs(after - 1.0) < (1 - STEP) / 2:
            after = 1.0
        if after == before:
            return []
        self._factors[knob] = after
        self._since_move, self._windows_since_move = Evidence(), 0
        return [Adjustment(now_s, knob, before, after, reason, seen)]

    def _without_evidence(self, seen: Evidence, now_s: float) -> list[Adjustment]:
        """Too few outcomes: what was learned from others grows old."""
        self._silent += 1
        self._wanted, self._wanted_windows, self._moved = None, 0, None
        self._since_move, self._windows_since_move = Evidence(), 0
        if self._silent < MISSING_WINDOWS:
            return []
        changes: list[Adjustment] = []
        reason = f"{seen.ended} outcomes in {WINDOW_S:.0f} s are too few: back to what is configured"
        for knob, factor in self._factors.items():
            if factor != 1.0:
                nearer = min(factor / STEP, 1.0) if factor < 1.0 else max(factor * STEP, 1.0)
                changes += self._set(knob, nearer, reason, seen, now_s)
        for name, raised in self._raised.items():
            if raised:
                changes += self._raise(name, -min(FLOOR_STEP, raised), reason, seen, now_s)
        return changes

    # -- floors

    def _move_floors(self, windows: Mapping[str, Evidence], policy: Policy, now_s: float) -> list[Adjustment]:
        """A class that is served worse than the others gets a higher floor, and gives it back when it is well.

        A class is judged whenever it has brought enough requests, in one window or in several: looking only at windows with
        many of them would look only at its crowded moments.
        """
        changes: list[Adjustment] = []
        for name, window in windows.items():
            if name not in policy.shares:
                continue
            seen, others = self._of_class[name]
            seen.add(window)
            others.add(Evidence.total(other for key, other in windows.items() if key != name))
            if seen.offered < LEAST_ENDED:
                continue
            del self._of_class[name]
            behind = others.met_of_offered - seen.met_of_offered if others.offered >= LEAST_ENDED else 0.0
            wish = 1 if behind > SERVED_WORSE else -1 if behind < SERVED_AS_WELL else 0
            before, times = self._floor_wishes.get(name, (0, 0))
            times = times + 1 if wish == before else 1
            self._floor_wishes[name] = wish, times
            if times < SEVERAL:
                continue
            raised = self._raised[name]
            if wish > 0:
                room = 1.0 - sum(share.floor for share in self.shares(policy).values())
                step = min(FLOOR_STEP, FLOOR_MOST - raised, room)
                reason = f"{seen.met_of_offered:.1%} of its requests were served well, {others.met_of_offered:.1%} of others"
            else:
                step = wish * min(FLOOR_STEP, raised)
                reason = "it is served as well as others"
            if abs(step) > 1e-9:
                changes += self._raise(name, step, reason, seen, now_s)
        return changes

    def _raise(self, name: str, step: float, reason: str, seen: Evidence, now_s: float) -> list[Adjustment]:
        before = self._raised[name]
        self._raised[name] = max(0.0, before + step)
        return [Adjustment(now_s, "floor_raised_by", before, self._raised[name], reason, seen, name)]


def _target(windows: Mapping[str, Evidence], policy: Policy) -> float:
    """What share of admitted requests should meet their objective: each class's percentile, by its outcomes."""
    ended = sum(seen.ended for seen in windows.values())
    wanted = (
        policy.objectives.get(name, ClassObjective()).percentile * seen.ended
        for name, seen in windows.items()
    )
    return sum(wanted) / max(ended, 1)
