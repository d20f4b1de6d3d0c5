"""What was asked for at every site, interval by interval, and what is expected. Pure.

Every replica of every site keeps this book from the same messages, so that whoever takes the planning over goes on with it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from fleetmind.policy.planning.forecast import INTERVAL_S, Forecast, Series
from tokenfleet.contracts.sites import Asked

GRACE_S = 5.0
"""After an interval, until what replicas say of it has arrived."""
HEARD_S = 2.5 * INTERVAL_S
"""A site whose FleetMinds said nothing for so long has none, or is cut off."""


@dataclass(frozen=True, slots=True)
class Asking:
    """Whose work a series is of."""

    site: str
    """Where the requests enter."""
    model: str
    sites: tuple[str, ...] | None = None
    """Where they may run; None: everywhere."""


Horizon = Callable[[str], float]
"""How far ahead a model's work must be known, in wall seconds."""


@dataclass(slots=True)
class AskedBook:
    """All series, and the intervals that replicas are still telling of."""

    _series: dict[Asking, Series] = field(default_factory=dict[Asking, Series])
    _open: dict[tuple[int, str], dict[str, Asked]] = field(
        default_factory=dict[tuple[int, str], dict[str, Asked]]
    )
    """By begin and site: what each replica said."""
    _heard_s: dict[str, float] = field(default_factory=dict[str, float])
    """By site: the end of the latest interval told of, Unix time."""

    def add(self, message: Asked) -> None:
        """A replica told of an interval; saying it again changes nothing. Of another length it cannot be added up."""
        if message.interval_s != INTERVAL_S:
            return
        start_s, site = message.interval_start_s, message.site
        self._open.setdefault((start_s, site), {})[message.replica] = message
        self._heard_s[site] = max(self._heard_s.get(site, 0.0), start_s + message.interval_s)

    def close(self, unix_s: float, horizon_s: Horizon) -> None:
        """Enter the intervals that are over. Of what a site did not mention, nothing was asked there."""
        for start_s, site in sorted(self._open):
            told = self._open[start_s, site]
            if start_s + INTERVAL_S + GRACE_S > unix_s:
                break
            del self._open[start_s, site]
            work = {one: 0.0 for one in self._series if one.site == site}
            for message in told.values():
                for asked in message.asked:
                    one = Asking(site, asked.model, asked.sites)
                    work[one] = work.get(one, 0.0) + asked.work
            for one, each in work.items():
                series = self._series.setdefault(one, Series())
                series.add(start_s, each)
                series.ahead(horizon_s(one.model))  # from now on its error is measured

    def sites(self, unix_s: float) -> set[str]:
        """Those that told of an interval lately."""
        return {site for site, heard_s in self._heard_s.items() if unix_s - heard_s < HEARD_S}

    def expected(self, sites: set[str], horizon_s: Horizon) -> dict[Asking, Forecast]:
        """What is expected to enter at some sites, in a stable order."""
        return {
            one: self._series[one].ahead(horizon_s(one.model))
            for one in sorted(self._series, key=lambda one: (one.site, one.model, one.sites or ()))
            if one.site in sites
        }
