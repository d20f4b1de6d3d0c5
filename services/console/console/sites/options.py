"""Which sites there are, and how far apart they are."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeVar

from tokenfleet.errors import ConfigurationError

DEFAULT_ROUND_TRIP_S = 0.03
EMULATED_ENGINES = 2
"""Of each site but the entry, where only a number of sites is given."""

Value = TypeVar("Value")

_SITE = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_]*)=(?P<engines>\d+)")
_LIES_IN = re.compile(r"(?P<name>\w+)=(?P<region>[A-Za-z0-9][A-Za-z0-9_-]*)")
_PAIR = re.compile(r"(?P<one>\w+)-(?P<other>\w+)=(?P<value>.+)")
_DURATION = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>ms|s)")
_BANDWIDTH = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>kbit|mbit|gbit)")
_SECONDS = {"ms": 1e-3, "s": 1.0}
_BYTES_PER_S = {"kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8}

Pair = tuple[str, str]
"""Two sites, in the order in which the fleet names them."""


@dataclass(frozen=True, slots=True)
class SiteShare:
    """One site and its emulated engines; one without engines is an entry only."""

    name: str
    engines: int
    region: str | None = None
    """Where it lies, as far as data residency goes; None: not known."""


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """What lies between two sites, in wall time."""

    round_trip_s: float = DEFAULT_ROUND_TRIP_S
    bytes_per_s: float | None = None
    """In each direction; None: no limit."""


@dataclass(frozen=True, slots=True)
class SitesOptions:
    """The sites, the first of which is the fleet's home, and the link of each pair."""

    sites: tuple[SiteShare, ...]
    links: Mapping[Pair, LinkSpec]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(site.name for site in self.sites)


def parse_sites(
    text: str, round_trips: Iterable[str] = (), bandwidths: Iterable[str] = (), regions: str | None = None
) -> SitesOptions:
    """`A=0,B=2,C=2`, or a number of sites: an entry without engines and others with two each.

    `regions` as `A=eu,B=eu,C=us`; of a site that is not named there the region is not known.

    Raises:
        ConfigurationError: something is not of its form, or names a site that there is not.
    """
    sites = _numbered(int(text)) if text.isdigit() else tuple(_site(part) for part in text.split(","))
    names = [site.name for site in sites]
    if len(names) < 2 or len(set(names)) < len(names):
        raise ConfigurationError(f"--sites {text}: name two sites or more, each once, as in A=0,B=2,C=2.")
    in_region = _regions(regions, names)
    sites = tuple(replace(site, region=in_region.get(site.name)) for site in sites)
    trips = _by_pair("--round-trip", round_trips, names, parse_round_trip)
    widths = _by_pair("--bandwidth", bandwidths, names, parse_bandwidth)
    links = {
        pair: LinkSpec(trips.get(pair, DEFAULT_ROUND_TRIP_S), widths.get(pair))
        for pair in combinations(names, 2)
    }
    return SitesOptions(sites, links)


def parse_round_trip(text: str) -> float:
    """Seconds of `30ms` or `0.2s`.

    Raises:
        ConfigurationError: it is neither.
    """
    match = _DURATION.fullmatch(text)
    if not match:
        raise ConfigurationError(f"{text} is no round trip: say 30ms or 0.2s.")
    return float(match["number"]) * _SECONDS[match["unit"]]


def parse_bandwidth(text: str) -> float:
    """Bytes per second of `500kbit`, `100mbit` or `1gbit` (per second).

    Raises:
        ConfigurationError: it is none of these, or nothing at all.
    """
    match = _BANDWIDTH.fullmatch(text)
    if not match or float(match["number"]) == 0:
        raise ConfigurationError(f"{text} is no bandwidth: say 500kbit, 100mbit or 1gbit.")
    return float(match["number"]) * _BYTES_PER_S[match["unit"]]


def pair_of(one: str, other: str, names: Iterable[str]) -> Pair:
    """Two sites in the order of `names`.

    Raises:
        ConfigurationError: one of them is not there, or both are the same.
    """
    known = list(names)
    if one not in known or other not in known or one == other:
        raise ConfigurationError(f"{one}-{other} are no two of the sites {', '.join(known)}.")
    return (one, other) if known.index(one) < known.index(other) else (other, one)


def _numbered(count: int) -> tuple[SiteShare, ...]:
    if not 2 <= count <= 26:
        raise ConfigurationError(f"--sites {count}: from 2 to 26 sites can be named by letters.")
    return tuple(SiteShare(chr(ord("A") + at), EMULATED_ENGINES if at else 0) for at in range(count))


def _site(text: str) -> SiteShare:
    match = _SITE.fullmatch(text.strip())
    if not match:
        raise ConfigurationError(f"--sites: {text!r} is not SITE=ENGINES, as in B=2.")
    return SiteShare(match["name"], int(match["engines"]))


def _regions(text: str | None, names: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(",") if text else []:
        match = _LIES_IN.fullmatch(part.strip())
        if not match or match["name"] not in names:
            raise ConfigurationError(
                f"--regions: {part!r} is not SITE=REGION of the sites {', '.join(names)}, as in B=eu."
            )
        found[match["name"]] = match["region"]
    return found


def _by_pair(
    option: str, given: Iterable[str], names: list[str], parse: Callable[[str], Value]
) -> dict[Pair, Value]:
    found: dict[Pair, Value] = {}
    for text in given:
        match = _PAIR.fullmatch(text)
        if not match:
            raise ConfigurationError(f"{option} {text}: expected SITE-SITE=VALUE, as in B-C=30ms.")
        found[pair_of(match["one"], match["other"], names)] = parse(match["value"])
    return found
