"""Three sites a third of a day apart, each an entry, and the two models that run at all of them.

Assumed, not measured: sizes that make a site's day go from a few replicas to a dozen, and so few GPUs that a burst at a
site's peak does not fit there, while it fits elsewhere.
"""

from dataclasses import dataclass
from functools import cached_property

from fleetmind.policy.planning.forecast import INTERVAL_S
from fleetmind.policy.planning.model import SiteLimits

STEP_S = INTERVAL_S
"""One step of the model is one interval of the forecast, and one plan."""
DAY_STEPS = round(86_400 / STEP_S)
ROUND_TRIP_S = {("A", "B"): 0.03, ("B", "C"): 0.06, ("A", "C"): 0.08}
"""As between the lab's three sites of `multisite`."""


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    gpus: int
    """Of one instance."""
    mean_work: float
    """Asked for at one entry, engine seconds per second, over a day without bursts."""


@dataclass(frozen=True, slots=True)
class Way:
    """A model that is asked for at an entry, and where that work may run. Places are those in `World.pools`."""

    entry: str
    model: str
    home: int
    away: tuple[int, ...]


@dataclass(frozen=True)
class World:
    """Everything that all policies have in common. Each model has a pool at each site."""

    warm_up_steps: int = 5
    """From the decision for one more replica until it is ready."""
    bears: float = 0.8
    """Work of one replica within its objectives."""
    site_gpus: int = 64
    sites: tuple[str, ...] = ("A", "B", "C")
    models: tuple[Model, ...] = (Model("chat", 4, 6.0), Model("code", 2, 3.0))
    bound: tuple[tuple[str, str, tuple[str, ...]], ...] = (("A", "code", ("A", "B")),)
    """Entry, model, and the sites where that work has to stay."""

    @property
    def warm_up_s(self) -> float:
        return self.warm_up_steps * STEP_S

    @cached_property
    def pools(self) -> tuple[tuple[str, Model], ...]:
        return tuple((site, model) for site in self.sites for model in self.models)

    @cached_property
    def ways(self) -> tuple[Way, ...]:
        """Each model at each entry, in the order of the pools: a way's place is that of its home."""
        return tuple(self._way(home, site, model.name) for home, (site, model) in enumerate(self.pools))

    @cached_property
    def limits(self) -> tuple[SiteLimits, ...]:
        return tuple(SiteLimits(site=site, gpus=self.site_gpus) for site in self.sites)

    @cached_property
    def round_trips_s(self) -> dict[tuple[str, str], float]:
        return ROUND_TRIP_S | {(there, here): seconds for (here, there), seconds in ROUND_TRIP_S.items()}

    def permitted(self, entry: str, model: str) -> frozenset[str] | None:
        """Where the work of a model that is asked for at an entry may run; None: everywhere."""
        return next((frozenset(sites) for at, of, sites in self.bound if (at, of) == (entry, model)), None)

    def _way(self, home: int, entry: str, model: str) -> Way:
        allowed = self.permitted(entry, model)
        away = tuple(
            place
            for place, (site, served) in enumerate(self.pools)
            if place != home and served.name == model and (allowed is None or site in allowed)
        )
        return Way(entry, model, home, away)
