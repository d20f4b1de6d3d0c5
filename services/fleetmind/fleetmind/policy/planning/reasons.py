"""Why each pool should be what it should be, in a sentence. Pure."""

from collections import defaultdict
from math import ceil

from fleetmind.policy.planning.program import Counts, Program, Solution
from fleetmind.policy.planning.replicas import NOTHING

SHOWN = 0.05
"""Work so small is not spoken of: it is written with one digit."""


class Reasons:
    """Speaks about one plan.

    Args:
        program: what was planned.
        solution: what runs where in the end.
        by_itself: replicas of each pool before any were held.
        wanted: in the end.
    """

    def __init__(self, program: Program, solution: Solution, by_itself: Counts, wanted: Counts) -> None:
        self._program = program
        self._by_itself, self._wanted = by_itself, wanted
        self._from: list[dict[str, float]] = [defaultdict(float) for _ in program.pools]
        """By pool: work by entry."""
        self._to: list[dict[str, float]] = [defaultdict(float) for _ in program.demands]
        """By demand: work by site."""
        for (number, place), work in zip(program.ways, solution.flows.tolist(), strict=True):
            if work > NOTHING:
                demand, pool = program.demands[number], program.pools[place]
                self._from[place][demand.entry_site] += work
                self._to[number][pool.site] += work
        self._unserved = solution.unserved.tolist()
        self.served = [sum(by_entry.values()) for by_entry in self._from]
        """By pool: work."""

    def of_pool(self, place: int) -> str:
        """Why it should have so many replicas."""
        pool, wanted = self._program.pools[place], int(self._wanted[place])
        said = [self._own(place)]
        for entry, work in sorted(self._from[place].items()):
            if entry != pool.site and work >= SHOWN:
                said.append(f"{work:.1f} of what enters at {entry} is planned here")
        held = wanted - int(self._by_itself[place])
        if held > 0:
            said.append(f"{held} of them only held, until they have not been wanted for a while")
        elif wanted < pool.minimum:
            said.append(f"its minimum is {pool.minimum}, {self._bound(place)}")
        elif 0 < wanted == pool.minimum and pool.bears * (wanted - 1) >= self.served[place]:
            said.append(f"{pool.minimum} is its minimum")
        return "; ".join(said)

    def of_unserved(self, number: int) -> str:
        """Why nobody is to serve what is left of a demand."""
        demand, program = self._program.demands[number], self._program
        places = [place for way, place in program.ways if way == number]
        where = "" if demand.sites is None else f" at {', '.join(sorted(demand.sites)) or 'any site'}"
        if not places:
            return f"no pool of {demand.model}{where} may serve it"
        bounds = dict.fromkeys(self._bound(place) for place in places)
        return f"{self._unserved[number]:.1f} of {demand.model} from {demand.entry_site} is left: {', '.join(bounds)}"

    def _own(self, place: int) -> str:
        """What enters at its site, and whether it stays there."""
        program, pool, wanted = self._program, self._program.pools[place], int(self._wanted[place])
        own = [
            number
            for number, demand in enumerate(program.demands)
            if demand.model == pool.model and demand.entry_site == pool.site
        ]
        bear = (
            f"{wanted} {'replica bears' if wanted == 1 else 'replicas bear'} {pool.bears * wanted:.1f}"
            if wanted
            else "no replica is wanted"
        )
        if not own:
            return f"no demand of {pool.model} is forecast at {pool.site}, {bear}"
        demands = [program.demands[number] for number in own]
        expected, work = sum(one.expected for one in demands), sum(one.work for one in demands)
        minutes = max(one.horizon_s for one in demands) / 60.0
        forecast = (
            f"demand of {pool.model} at {pool.site} is forecast at {expected:.1f} in {minutes:.0f} min "
            f"(+-{abs(work - expected):.1f}), {bear}"
        )
        elsewhere: dict[str, float] = defaultdict(float)
        for number in own:
            for site, moved in self._to[number].items():
                if site != pool.site:
                    elsewhere[site] += moved
        goes = [f"{moved:.1f} goes to {site}" for site, moved in sorted(elsewhere.items()) if moved >= SHOWN]
        left = sum(self._unserved[number] for number in own)
        if left >= SHOWN:
            goes.append(f"{left:.1f} is served nowhere")
        if not goes:
            return forecast
        needed = ceil(work / pool.bears - NOTHING)
        why = f"{needed} would bear it all" if needed > wanted else ""
        if needed > wanted and self._is_bound(place):
            why += f", {self._bound(place)}"
        return "; ".join([forecast, f"{why}: {', '.join(goes)}" if why else ", ".join(goes)])

    def _is_bound(self, place: int) -> bool:
        """Whether one more replica is not possible."""
        more = self._wanted.copy()
        more[place] += 1
        maximum = self._program.pools[place].maximum
        return not self._program.fits(more) or (maximum is not None and more[place] > maximum)

    def _bound(self, place: int) -> str:
        """What keeps it from having more."""
        program, pool, wanted = self._program, self._program.pools[place], int(self._wanted[place])
        if pool.maximum is not None and wanted >= pool.maximum:
            return f"{pool.pool} at {pool.site} may have {pool.maximum} at most"
        here = program.site_of == program.sites.index(pool.site)
        left = program.site_gpus[program.sites.index(pool.site)] - float(
            (program.gpus * self._wanted)[here].sum()
        )
        limits = program.limits.get(pool.site)
        if left < pool.gpus:
            kind, limit = "GPU limit", limits.gpus if limits else None
        else:
            kind, limit = "memory limit", limits.memory_gib if limits else None
        if limit is None:
            return f"the {kind} of {pool.site} is not known: no more than what runs there now"
        return f"the {kind} of {pool.site} allows {wanted}"
