"""The linear program behind a plan: which work runs where, on how many replicas. Pure.

It minimises what an hour costs, in hours of an average replica: the replicas, what it takes to change their number, what is
served away from its entry, and, above all, what is not served. Replicas may be fractions here; `replicas.py` makes them whole.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]
from scipy.sparse import csr_array  # pyright: ignore[reportMissingTypeStubs]

from fleetmind.policy.planning.model import Demand, PoolNow, SiteLimits

UNSERVED = 1_000.0
"""An hour of one replica's work that nobody serves: more than any way to serve it costs."""
AWAY = 0.2
"""The same served away from its entry: another site must be so much cheaper, in parts of a replica."""
AWAY_PER_S = 1.0
"""And for each second of round trip."""
FAR_S = 0.15
"""Round trip that is assumed where none is known, seconds: between continents."""
MOST_MOVE = 0.5
"""Of a replica's hour, what beginning or stopping it costs at most: beyond, nothing would ever be stopped."""
ORDER = 1e-4
"""By how much each pool is dearer than the one before it: plans of equal worth are not drawn between by chance."""

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


class Solution:
    """What an optimum says."""

    def __init__(self, replicas: Floats, flows: Floats, unserved: Floats) -> None:
        self.replicas = replicas
        """By pool."""
        self.flows = flows
        """By way: work."""
        self.unserved = unserved
        """By demand: work."""


class Program:
    """All that stays the same while bounds of pools are tried.

    Args:
        pools: that there are.
        limits: of sites; those not named, and those that are None, are at what runs now.
        demands: work to be served.
        round_trips_s: by entry and site.
    """

    def __init__(
        self,
        pools: Sequence[PoolNow],
        limits: Iterable[SiteLimits],
        demands: Sequence[Demand],
        round_trips_s: Mapping[tuple[str, str], float],
    ) -> None:
        self.pools = pools
        self.demands = demands
        self._round_trips_s = round_trips_s
        self.sites = sorted({pool.site for pool in pools})
        self.limits = {limit.site: limit for limit in limits}
        self.site_of = np.array([self.sites.index(pool.site) for pool in pools], dtype=np.int64)
        self.gpus = np.array([pool.gpus for pool in pools], dtype=np.float64)
        self.memory_gib = np.array([pool.memory_gib for pool in pools], dtype=np.float64)
        self.running = np.array([pool.running for pool in pools], dtype=np.int64)
        self.bears = np.array([pool.bears for pool in pools], dtype=np.float64)
        self.site_gpus = self._most(self.gpus, [self._limit(site).gpus for site in self.sites])
        self.site_memory_gib = self._most(
            self.memory_gib, [self._limit(site).memory_gib for site in self.sites]
        )
        self.ways = [
            (number, place)
            for number, demand in enumerate(demands)
            for place, pool in enumerate(pools)
            if pool.model == demand.model and (demand.sites is None or pool.site in demand.sites)
        ]
        """Demand and pool that may serve it, by their places."""

    def solve(self, least: Counts, most: Counts) -> Solution:
        """The cheapest plan with so many replicas at each pool.

        Args:
            least: by pool; all together within the sites' limits.
            most: by pool, no fewer than `least`.
        """
        kept, added, ways = len(self.pools), len(self.pools), len(self.ways)
        stay = np.minimum(most, self.running)
        bounds = np.concatenate(
            [
                np.stack([np.minimum(least, stay), stay], axis=1),
                np.stack([np.maximum(least - stay, 0), most - stay], axis=1),
                np.tile([0.0, np.inf], (ways + len(self.demands), 1)),
            ]
        )
        result: Any = linprog(
            self.costs,
            A_ub=self.within[0],
            b_ub=self.within[1],
            A_eq=self.served,
            b_eq=np.array([demand.work for demand in self.demands]),
            bounds=bounds,
            method="highs-ds",
        )
        # Serving nothing with the least replicas is always possible: anything else is a mistake here.
        assert result.status == 0, result.message
        values: Floats = np.asarray(result.x)
        served = kept + added
        return Solution(
            values[:kept] + values[kept:served],
            values[served : served + ways],
            values[served + ways :],
        )

    def fits(self, replicas: Counts) -> bool:
        """Whether so many at each pool are within the limits of all sites."""
        gpus = np.bincount(self.site_of, self.gpus * replicas, len(self.sites))
        memory_gib = np.bincount(self.site_of, self.memory_gib * replicas, len(self.sites))
        return bool(np.all(gpus <= self.site_gpus) and np.all(memory_gib <= self.site_memory_gib + 1e-6))

    def _limit(self, site: str) -> SiteLimits:
        return self.limits.get(site, SiteLimits(site=site))

    def _most(self, each: Floats, limits: Sequence[float | None]) -> Floats:
        now = np.bincount(self.site_of, each * self.running, len(self.sites))
        return np.array([now[at] if limit is None else limit for at, limit in enumerate(limits)])

    @cached_property
    def costs(self) -> Floats:
        """Of each variable: replicas that stay, replicas that are begun, work by way, unserved work by demand."""
        prices = np.array([pool.gpus * pool.gpu_hour_price for pool in self.pools])
        if prices.any():
            prices = prices / prices.mean()
        prices += ORDER * np.arange(len(self.pools))
        # Whoever warms up serves nobody meanwhile; whoever is stopped would have to warm up again.
        hours = np.minimum([pool.warm_up_s / 3_600.0 for pool in self.pools], MOST_MOVE)
        away = [
            self._away(self.demands[number].entry_site, self.pools[place].site) for number, place in self.ways
        ]
        return np.concatenate(
            [prices * (1.0 - hours), prices * (1.0 + hours), away, np.full(len(self.demands), UNSERVED)]
        )

    def _away(self, entry: str, site: str) -> float:
        if entry == site:
            return 0.0
        return AWAY + AWAY_PER_S * self._round_trips_s.get((entry, site), FAR_S)

    @cached_property
    def within(self) -> tuple[Any, Floats]:
        """What may be how much at most: no pool serves more than it bears, no site has more than its limits allow."""
        pools, sites, ways = len(self.pools), len(self.sites), len(self.ways)
        places = np.arange(pools)
        served_by = np.array([place for _, place in self.ways], dtype=np.int64)
        rows = [places, places, served_by]
        columns = [places, pools + places, 2 * pools + np.arange(ways)]
        values = [-self.bears, -self.bears, np.ones(ways)]
        for first_row, each in ((pools, self.gpus), (pools + sites, self.memory_gib)):
            for offset in (0, pools):
                rows.append(first_row + self.site_of)
                columns.append(offset + places)
                values.append(each)
        shape = (pools + 2 * sites, 2 * pools + ways + len(self.demands))
        return (
            csr_array((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=shape),
            np.concatenate([np.zeros(pools), self.site_gpus, self.site_memory_gib]),
        )

    @cached_property
    def served(self) -> Any:
        """What must equal each demand's work: all of it is served somewhere, or said not to be."""
        pools, ways, demands = len(self.pools), len(self.ways), len(self.demands)
        rows = np.concatenate([[number for number, _ in self.ways], np.arange(demands)]).astype(np.int64)
        columns = 2 * pools + np.arange(ways + demands)
        return csr_array(
            (np.ones(ways + demands), (rows, columns)), shape=(demands, 2 * pools + ways + demands)
        )
