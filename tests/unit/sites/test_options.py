"""Which sites `tokenfleet up` starts, and the links between them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.sites.options import (
    DEFAULT_ROUND_TRIP_S,
    EMULATED_ENGINES,
    LinkSpec,
    SiteShare,
    parse_bandwidth,
    parse_round_trip,
    parse_sites,
)
from console.sites.plan import plan_ports
from tokenfleet.errors import ConfigurationError


def test_sites_are_named_with_their_engines_and_the_first_is_the_home():
    options = parse_sites("A=0,B=2,C=3")
    assert options.sites == (SiteShare("A", 0), SiteShare("B", 2), SiteShare("C", 3))
    assert options.names[0] == "A"


def test_a_number_of_sites_is_an_entry_without_engines_and_others_with_some():
    engines = {site.name: site.engines for site in parse_sites("3").sites}
    assert engines == {"A": 0, "B": EMULATED_ENGINES, "C": EMULATED_ENGINES}


def test_every_pair_has_a_link_and_what_is_not_said_of_it_is_the_default():
    options = parse_sites("A=0,B=2,C=2", ["C-B=80ms"], ["A-B=100mbit"])
    assert options.links == {
        ("A", "B"): LinkSpec(DEFAULT_ROUND_TRIP_S, 12.5e6),
        ("A", "C"): LinkSpec(),
        ("B", "C"): LinkSpec(0.08, None),
    }


def test_a_sites_region_is_known_only_if_it_was_said():
    regions = {site.name: site.region for site in parse_sites("3", regions="B=eu, C=us-east").sites}
    assert regions == {"A": None, "B": "eu", "C": "us-east"}
    for wrong in ("D=eu", "B", "B=", "B=e u"):
        with pytest.raises(ConfigurationError, match="--regions"):
            parse_sites("3", regions=wrong)


@pytest.mark.parametrize("text", ["A=1", "A=1,A=2", "A,B", "1", "27", "A=1,B-2=1", ""])
def test_sites_that_make_no_fleet_are_refused(text: str):
    with pytest.raises(ConfigurationError):
        parse_sites(text)


@pytest.mark.parametrize("text", ["A-D=30ms", "A-A=30ms", "A=30ms", "A-B=30", "A-B=fast"])
def test_a_round_trip_of_no_two_sites_or_of_no_time_is_refused(text: str):
    with pytest.raises(ConfigurationError):
        parse_sites("A=0,B=2", [text])


@given(st.integers(0, 5_000))
def test_round_trips_are_read_in_milliseconds_and_seconds(milliseconds: int):
    assert parse_round_trip(f"{milliseconds}ms") == pytest.approx(milliseconds / 1e3)
    assert parse_round_trip(f"{milliseconds / 1e3:.3f}s") == pytest.approx(milliseconds / 1e3)


def test_bandwidths_are_bits_per_second_and_never_nothing():
    assert parse_bandwidth("8kbit") == 1e3
    assert parse_bandwidth("1gbit") == 125e6
    with pytest.raises(ConfigurationError):
        parse_bandwidth("0mbit")


def test_each_exchange_calls_those_before_it_and_each_ingress_has_a_way_to_every_other_site():
    ports, plan = plan_ports(parse_sites("A=0,B=2,C=2"))
    assert [len(plan.routes(site)) for site in "ABC"] == [0, 1, 2]
    assert plan.proxies("B").keys() == {"A", "C"}
    used = [port for each in ports.values() for port in (each.leaf, each.route)]
    used += [port for link in plan.links for port in (link.route_port, *link.proxy_ports.values())]
    assert len(set(used)) == len(used)
