"""How steadily a policy steers: its changes of its own knobs after each step of load.

A phase goes from one step of the load to the next; what came before the first step is one too, and is not judged. A
knob turns back when it is moved against its move before, within one phase. It settled in the seconds from the step to
its last change in the phase, at once where it was not touched.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any

from lab.sim.api import Adjusted


def steadiness(adjustments: Sequence[Adjusted], steps_s: Sequence[float]) -> dict[str, Any]:
    """The worst phase's figures, `settled_s` and `turned_back`, and the number of all `changes`.

    Args:
        adjustments: in order of time.
        steps_s: when the load changed, in order; without any, the whole run is one phase and nothing can settle.
    """
    turned_back: Counter[tuple[int, str]] = Counter()
    directions: dict[tuple[int, str], bool] = {}
    settled_s = 0.0
    for time_s, knob, before, after in adjustments:
        phase = bisect_right(steps_s, time_s)
        if not steps_s or phase:
            up = after > before
            turned_back[phase, knob] += directions.get((phase, knob), up) != up
            directions[phase, knob] = up
        if phase:
            settled_s = max(settled_s, time_s - steps_s[phase - 1])
    return {
        "changes": len(adjustments),
        "turned_back": max(turned_back.values(), default=0),
        "settled_s": settled_s if steps_s else None,
    }
