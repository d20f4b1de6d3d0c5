"""What an ingress knows of other sites' instances."""

import pytest
from fleets import record
from msgspec.structs import replace

from ingress.policy.peers import FORGOTTEN_AFTER_S, SILENT_AFTER_S, PeerSites
from tokenfleet.contracts.fleet import InstanceRecord, SiteRegistry


def at(site: str, name: str = "engine-1", **changes: object) -> InstanceRecord:
    return replace(record(name), site=site, url=f"http://{site}-{name}", **changes)


def registry(
    site: str, *records: InstanceRecord, ready: set[str] | None = None, time_ns: int = 1
) -> SiteRegistry:
    names = {each.instance for each in records} if ready is None else ready
    return SiteRegistry(site=site, time_ns=time_ns, instances=records, ready=frozenset(names))


@pytest.fixture
def peers() -> PeerSites:
    peers = PeerSites()
    peers.apply(registry("B", at("B")), 0.0)
    peers.apply(registry("C", at("C"), at("C", "engine-2")), 0.0)
    return peers


def test_two_sites_may_have_instances_of_the_same_name(peers: PeerSites):
    assert peers.record("B", "engine-1", 1.0) == at("B")
    assert peers.record("C", "engine-1", 1.0) == at("C")
    assert peers.record("D", "engine-1", 1.0) is None
    assert peers.record("B", "engine-2", 1.0) is None


def test_a_site_that_falls_silent_is_offered_nothing_but_can_still_be_called_for_a_while(peers: PeerSites):
    model = at("B").model
    assert peers.ready(model, None, SILENT_AFTER_S) == [at("B")]
    assert peers.ready(model, None, SILENT_AFTER_S + 0.1) == []
    assert peers.record("B", "engine-1", FORGOTTEN_AFTER_S) is not None
    assert peers.record("B", "engine-1", FORGOTTEN_AFTER_S + 0.1) is None


def test_only_instances_that_are_ready_and_of_the_version_are_offered(peers: PeerSites):
    model = at("B").model
    peers.apply(registry("B", at("B"), ready=set(), time_ns=2), 0.0)
    assert {each.site for each in peers.ready(model, None, 1.0)} == {"C"}
    assert peers.ready(model, "another", 1.0) == []
    assert peers.ready("another", None, 1.0) == []


def test_nothing_is_offered_where_a_request_may_not_go(peers: PeerSites):
    model = at("B").model
    assert {each.site for each in peers.ready(model, None, 1.0, lambda record: record.site != "B")} == {"C"}
    assert peers.ready(model, None, 1.0, lambda record: record.region is not None) == []


def test_an_adapter_that_only_another_site_has_is_known_by_its_model(peers: PeerSites):
    peers.apply(registry("C", at("C", adapters=("sql",)), time_ns=2), 0.0)
    assert peers.adapters() == {"sql": at("C").model}


def test_what_is_older_than_the_last_word_of_a_site_is_ignored_unless_that_was_long_ago(peers: PeerSites):
    peers.apply(registry("B", time_ns=5), 0.0)
    peers.apply(registry("B", at("B"), time_ns=4), 1.0)
    assert peers.record("B", "engine-1", 1.0) is None
    # A clock that was set back must not silence a site for ever.
    peers.apply(registry("B", at("B"), time_ns=4), 1.0 + SILENT_AFTER_S)
    assert peers.record("B", "engine-1", 1.0 + SILENT_AFTER_S) is not None
