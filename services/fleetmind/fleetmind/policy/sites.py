"""What is known of every pool of every site: its capacity, and what its instances are busy with. Pure.

Times are monotonic wall seconds of the process that keeps the view; a summary's own figures are engine seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tokenfleet.contracts.control import Capacity
from tokenfleet.contracts.sites import SiteSummary
from tokenfleet.load.prefixes import KnownPrefixes
from tokenfleet.load.summary import MOST_INSTANCES, unpack_load
from tokenfleet.load.table import Floats

STALE_AFTER_S = 10.0
"""A site silent for this long is not sent other sites' requests; its own entry still tries it."""
SUMMARY_STALE_AFTER_S = 5.0
"""A load this old says nothing any more."""
MOST_PASSED_S = 2.0
"""How much of a backlog is taken to be worked off while nothing is heard."""


@dataclass(slots=True)
class Pool:
    """One pool of one site."""

    capacity: Capacity
    heard_s: float
    summary_s: float | None = None
    """When its load was heard last."""
    columns: Floats | None = None
    """As `unpack_load` gives them, with the backlogs as they were then."""
    backlog_s: Floats = field(default_factory=lambda: np.zeros(0))
    """The same, with what was placed there since."""
    prefixes: KnownPrefixes = field(default_factory=KnownPrefixes)
    site: str = field(init=False)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.site, self.name = self.capacity.site, self.capacity.pool

    def told(self, now_s: float) -> bool:
        """Whether what it is busy with is known."""
        return (
            self.columns is not None
            and self.summary_s is not None
            and now_s - self.summary_s < SUMMARY_STALE_AFTER_S
        )


class SiteView:
    """The latest capacity and load of every pool of every site.

    Args:
        time_scale: engine seconds per wall second.
    """

    def __init__(self, time_scale: float = 1.0) -> None:
        self._pools: dict[tuple[str, str], Pool] = {}
        self._of_model: dict[str, list[Pool]] = {}
        """Asked for with every request; made anew when a pool comes or goes."""
        self._scale = time_scale

    def __len__(self) -> int:
        return len(self._pools)

    def apply(self, capacity: Capacity, now_s: float) -> None:
        """A roll-up arrived; one without instances removes the pool."""
        key = (capacity.site, capacity.pool)
        if not capacity.instances:
            self._pools.pop(key, None)
            self._of_model.clear()
        elif key in self._pools:
            self._pools[key].capacity, self._pools[key].heard_s = capacity, now_s
        else:
            self._pools[key] = Pool(capacity, now_s)
            self._of_model.clear()

    def summarised(self, summary: SiteSummary, now_s: float) -> None:
        """A pool's load arrived; of a pool whose capacity is not known it says nothing.

        Raises:
            ValueError: it cannot be read.
        """
        pool = self._pools.get((summary.site, summary.pool))
        if pool is None:
            return
        columns = unpack_load(summary.loads)[:, :MOST_INSTANCES]
        pool.summary_s, pool.columns = now_s, columns
        # What waits in the site's queues goes where there is least to do.
        pool.backlog_s = filled_up(columns[0], summary.waiting_s)
        if summary.prefixes is not None:
            pool.prefixes = KnownPrefixes(summary.prefixes, summary.one_in)

    def get(self, site: str, pool: str) -> Pool | None:
        return self._pools.get((site, pool))

    def of_model(self, model: str) -> Sequence[Pool]:
        """Every pool of a model, in a stable order."""
        if model not in self._of_model:
            keys = sorted(key for key, pool in self._pools.items() if pool.capacity.model == model)
            if not keys:
                return ()
            self._of_model[model] = [self._pools[key] for key in keys]
        return self._of_model[model]

    def backlog_now_s(self, pool: Pool, now_s: float) -> Floats:
        """Until each instance's prefills are done, engine seconds from now."""
        return np.maximum(pool.backlog_s - self._passed_s(pool, now_s), 0.0)

    def backlogs_now_s(self, pools: Sequence[Pool], now_s: float) -> Floats:
        """The same of several pools, one after the other."""
        passed_s = [self._passed_s(pool, now_s) for pool in pools]
        backlog_s = np.concatenate([pool.backlog_s for pool in pools])
        return np.maximum(backlog_s - np.repeat(passed_s, [pool.backlog_s.size for pool in pools]), 0.0)

    def placed(self, pool: Pool, instance: int, work_s: float, now_s: float) -> None:
        """A request was placed there: until the next summary it counts on the instance it was meant for."""
        done_s = self._passed_s(pool, now_s)
        pool.backlog_s[instance] = max(pool.backlog_s[instance], done_s) + work_s

    def _passed_s(self, pool: Pool, now_s: float) -> float:
        """Engine seconds since its load was heard."""
        if pool.summary_s is None:
            return 0.0
        return min(max(now_s - pool.summary_s, 0.0), MOST_PASSED_S) * self._scale

    def by_model(self) -> Mapping[str, list[Capacity]]:
        models: dict[str, list[Capacity]] = {}
        for pool in self._pools.values():
            models.setdefault(pool.capacity.model, []).append(pool.capacity)
        return models

    def of_site(self, site: str) -> list[Pool]:
        return [pool for pool in self._pools.values() if pool.site == site]

    def elsewhere(self, site: str) -> list[Pool]:
        """Pools of all other sites."""
        return [pool for pool in self._pools.values() if pool.site != site]


def filled_up(backlog_s: Floats, work_s: float) -> Floats:
    """Backlogs after so much more work, always given to the instance that has least."""
    filled = backlog_s.copy()
    if work_s <= 0 or not filled.size:
        return filled
    ordered = np.sort(filled)
    # The level up to which the work fills the lowest ones.
    needed = ordered * np.arange(1, len(ordered) + 1) - np.cumsum(ordered)
    count = int(np.searchsorted(needed, work_s, side="right"))
    level = (work_s + float(ordered[:count].sum())) / count
    return np.maximum(filled, level)
