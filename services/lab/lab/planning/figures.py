"""What a policy cost and what it left late."""

from collections.abc import Hashable, Sequence
from typing import Any

import msgspec
import numpy as np

from lab.planning.forecast_errors import ForecastErrors
from lab.planning.simulate import Run
from lab.planning.world import DAY_STEPS, STEP_S, World

STEP_HOURS = STEP_S / 3_600


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one policy. Shares are of work; None: there was no such work."""

    replica_hours: float
    """Warming ones included."""
    gpu_hours: float
    late: float
    late_of_worst_model: float
    late_of_worst_entry: float
    late_in_bursts: float | None
    """Of the work of models at entries that had one just then."""
    late_outside_bursts: float | None
    away: float
    """Of the work that was served."""
    begun_per_day: float
    stopped_per_day: float
    forecast: ForecastErrors | None = None


def figures(world: World, run: Run) -> Figures:
    gpus = np.array([model.gpus for _, model in world.pools])
    days = len(run.asked) / DAY_STEPS
    return Figures(
        replica_hours=float(run.running.sum()) * STEP_HOURS,
        gpu_hours=float((run.running * gpus).sum()) * STEP_HOURS,
        late=_late(run, np.ones_like(run.in_burst)) or 0.0,
        late_of_worst_model=_worst(run, [way.model for way in world.ways]),
        late_of_worst_entry=_worst(run, [way.entry for way in world.ways]),
        late_in_bursts=_late(run, run.in_burst),
        late_outside_bursts=_late(run, ~run.in_burst),
        away=float(run.away.sum() / run.served.sum()) if run.served.any() else 0.0,
        begun_per_day=float(run.begun.sum()) / days,
        stopped_per_day=float(run.stopped.sum()) / days,
        forecast=run.forecast,
    )


def mean(several: Sequence[Figures]) -> Figures:
    """Of equally long runs: figure by figure, without those that are None."""
    return _mean([msgspec.to_builtins(one) for one in several], Figures)


def _mean(rows: Sequence[dict[str, Any]], kind: Any) -> Any:
    means: dict[str, Any] = {}
    for name in rows[0]:
        values = [row[name] for row in rows if row[name] is not None]
        if values and isinstance(values[0], dict):
            means[name] = _mean(values, ForecastErrors)
        else:
            means[name] = sum(values) / len(values) if values else None
    return msgspec.convert(means, kind, strict=False)


def _late(run: Run, which: Any) -> float | None:
    asked = run.asked[which].sum()
    return float(run.late[which].sum() / asked) if asked > 0 else None


def _worst(run: Run, groups: Sequence[Hashable]) -> float:
    columns = {group: [place for place, one in enumerate(groups) if one == group] for group in groups}
    asked, late = run.asked.sum(0), run.late.sum(0)
    return max(float(late[of].sum() / asked[of].sum()) for of in columns.values())
