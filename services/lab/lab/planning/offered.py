"""The work that comes: days with a season, noise and bursts, drawn from a seed.

    work = mean * (1 + 0.6 cos(day)) * weekend * drift * jitter * burst

A site's day peaks a third of a day after its neighbour's. Drift wanders by about 10 % within half an hour, jitter is each
step's own 8 %. A burst lifts one model at one entry by half to all of what it is, for 10 to 30 minutes, from one step to
the next: nothing foretells it. All assumed.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lab.planning.world import DAY_STEPS, STEP_S, World

AMPLITUDE = 0.6
DRIFT = 0.1
DRIFT_S = 1_800.0
JITTER = 0.08
BURSTS_A_DAY = 3.0
"""Of each model at each entry, on average."""
BURST_S = (600.0, 1_800.0)
BURST_LIFT = (0.5, 1.0)
WEEKEND_DAYS = (5, 6)
"""Of a week that begins with the first day."""

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Offered:
    """By step and way (`World.ways`)."""

    work: Floats
    """Engine seconds per second. Goes on beyond the last step as far as a forecast looks."""
    in_burst: Flags


def offered(world: World, steps: int, seed: int, weekend_dip: float = 0.0) -> Offered:
    """What is asked for, equal for equal seeds.

    Args:
        world: who asks for what.
        steps: that are simulated.
        seed: of everything that is drawn.
        weekend_dip: by which share less is asked for on two days of seven.
    """
    length = steps + world.warm_up_steps + 1
    rng = np.random.default_rng(seed)
    columns = [_column(world, place, length, weekend_dip, rng) for place in range(len(world.ways))]
    return Offered(np.stack([work for work, _ in columns], 1), np.stack([burst for _, burst in columns], 1))


def _column(
    world: World, place: int, length: int, weekend_dip: float, rng: np.random.Generator
) -> tuple[Floats, Flags]:
    site, model = world.pools[place]
    steps = np.arange(length)
    phase = world.sites.index(site) / len(world.sites)
    day = 1.0 + AMPLITUDE * np.cos(2.0 * math.pi * (steps / DAY_STEPS - phase))
    week = np.where(np.isin(steps // DAY_STEPS % 7, WEEKEND_DAYS), 1.0 - weekend_dip, 1.0)
    jitter = np.exp(rng.normal(-(JITTER**2) / 2.0, JITTER, length))
    lift = _bursts(length, rng)
    return model.mean_work * day * week * _drift(length, rng) * jitter * lift, lift > 1.0


def _drift(length: int, rng: np.random.Generator) -> Floats:
    kept = math.exp(-STEP_S / DRIFT_S)
    pushes = rng.normal(0.0, DRIFT * math.sqrt(1.0 - kept**2), length)
    wandering = np.empty(length)
    value = rng.normal(0.0, DRIFT)
    for step, push in enumerate(pushes):
        value = kept * value + push
        wandering[step] = value
    return np.exp(wandering - DRIFT**2 / 2.0)


def _bursts(length: int, rng: np.random.Generator) -> Floats:
    """By how much each step is lifted; where two bursts meet, the greater counts."""
    lift = np.ones(length)
    for _ in range(rng.poisson(BURSTS_A_DAY * length / DAY_STEPS)):
        begin = rng.integers(length)
        end = begin + round(rng.uniform(*BURST_S) / STEP_S)
        lift[begin:end] = np.maximum(lift[begin:end], 1.0 + rng.uniform(*BURST_LIFT))
    return lift
