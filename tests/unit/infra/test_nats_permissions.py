"""What one service may say on NATS, another cannot say in its place."""

import re

import pytest
from unit.infra.deployment import INFRA

from tokenfleet import subjects

PERMISSIONS = (INFRA / "nats" / "permissions.conf").read_text()
OPERATOR = "operator"


def lists(kind: str) -> dict[str, set[str]]:
    """The subjects each user may publish or subscribe."""
    found: dict[str, set[str]] = {}
    for block in PERMISSIONS.split("user: ")[1:]:
        listed = re.search(rf"{kind}: \[(.*?)\]", block, re.DOTALL)
        assert listed, block
        found[block.split()[0]] = set(re.findall(r'"([^"]+)"', listed[1]))
    return found


PUBLISH = lists("publish")
SUBSCRIBE = lists("subscribe")
SERVICES = sorted(PUBLISH.keys() - {OPERATOR})


def matches(pattern: str, subject: str) -> bool:
    wanted, given = pattern.split("."), subject.split(".")
    for at, part in enumerate(wanted):
        if part == ">":
            return len(given) > at
        if at >= len(given) or part not in ("*", given[at]):
            return False
    return len(wanted) == len(given)


def publishers(subject: str) -> set[str]:
    return {user for user in SERVICES if any(matches(pattern, subject) for pattern in PUBLISH[user])}


@pytest.mark.parametrize("outcome", subjects.OUTCOMES)
def test_only_ingress_says_how_a_request_ended(outcome: str):
    assert publishers(subjects.request("local", "m@1", outcome)) == {"ingress"}


def test_only_the_accountant_closes_a_request_that_nobody_ended_and_the_deciders_hear_it():
    subject = subjects.request("local", "m@1", subjects.LOST)
    assert publishers(subject) == {"goodput_accountant"}
    for service in ("slomax", "tokenpilot"):
        assert any(matches(pattern, subject) for pattern in SUBSCRIBE[service])


def test_only_the_accountant_writes_dead_letters_and_a_stream_keeps_them():
    subject = subjects.dead_letter("local")
    assert publishers(subject) == {"goodput_accountant"}
    assert matches(subjects.ALL_DEAD_LETTERS, subject)


def test_only_the_accountant_acknowledges_events_or_else_the_ledger_would_miss_them():
    assert publishers("$JS.ACK.REQUESTS.accountant.1.2.3.4.5") == {"goodput_accountant"}
    assert publishers("$JS.ACK.domain.hash.REQUESTS.accountant.1.2.3.4.5.6") == {"goodput_accountant"}


@pytest.mark.parametrize("service", ["slomax", "tokenpilot"])
def test_a_decider_writes_its_own_leases_and_nobody_elses(service: str):
    assert publishers("$KV.leases." + subjects.lease_key(service, "local", "m@1")) == {service}


@pytest.mark.parametrize("bucket", [subjects.BUCKET_TENANTS, subjects.BUCKET_POLICY])
def test_no_service_changes_tenants_or_policy(bucket: str):
    assert publishers(f"$KV.{bucket}.any") == set()


def test_only_node_agents_register_engines():
    assert publishers("$KV.instances." + subjects.instance_key("local", "engine-1")) == {"node_agent"}


def test_only_those_who_judge_tenants_or_record_what_they_were_promised_hear_their_key_hashes():
    hearing = {"ingress", "fleetmind", "slomax", "telemetry_collector"}
    assert {user for user in SERVICES if "$KV.tenants.>" in SUBSCRIBE[user]} == hearing
    assert publishers("$JS.API.DIRECT.GET.KV_tenants.$KV.tenants.acme") == hearing


def test_only_the_collector_records_the_situation_and_the_fleet_stream_keeps_it():
    subject = subjects.situation("local")
    assert publishers(subject) == {"telemetry_collector"}
    assert any(matches(pattern, subject) for pattern in subjects.fleet_stream("local"))


def test_only_slomax_queues_and_admits_and_besides_fleetmind_says_what_it_changed_by_itself():
    for event in ("queued", "admitted"):
        assert publishers(subjects.request("local", "m@1", event, "ingress-1")) == {"slomax"}
    assert publishers(subjects.control("local", "m@1")) == {"slomax", "fleetmind"}


@pytest.mark.parametrize("event", ["queued", "admitted", "refused"])
def test_a_standby_hears_what_the_deciding_slomax_answers(event: str):
    answer = subjects.request("local", "m@1", event, "ingress-1")
    assert any(matches(pattern, answer) for pattern in SUBSCRIBE["slomax"])


@pytest.mark.parametrize("service", ["slomax", "tokenpilot"])
def test_a_decider_hears_every_way_in_which_a_request_ends(service: str):
    for outcome in (*subjects.OUTCOMES, subjects.LOST):
        ended = subjects.request("local", "m@1", outcome)
        assert any(matches(pattern, ended) for pattern in SUBSCRIBE[service])


def test_slomax_hears_the_goodput_that_it_steers_by():
    assert any(matches(pattern, subjects.goodput("local", "m@1")) for pattern in SUBSCRIBE["slomax"])


def test_what_feedback_changed_is_recorded():
    assert any(
        matches(pattern, subjects.control("local", "m@1")) for pattern in subjects.fleet_stream("local")
    )


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_hears_only_its_own_replies(service: str):
    assert [each for each in SUBSCRIBE[service] if "INBOX" in each] == [f"_INBOX_{service}.>"]


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_may_create_only_streams_that_tokenfleet_has(service: str):
    ours = {
        "REQUESTS",
        "FLEET",
        "DEAD_LETTERS",
        "KV_instances",
        "KV_leases",
        "KV_tenants",
        "KV_policy",
        "KV_latency",
    }
    created = {each.rpartition(".")[2] for each in PUBLISH[service] if ".STREAM.CREATE." in each}
    assert created <= ours
    assert not [each for each in PUBLISH[service] if re.search(r"STREAM\.(UPDATE|DELETE|PURGE|\*)", each)]


@pytest.mark.parametrize("subject", [subjects.ledger_report("local"), subjects.ledger_rows("local")])
def test_the_ledger_is_asked_by_ingress_alone_and_answered_by_the_accountant(subject: str):
    assert publishers(subject) == {"ingress"}
    assert {user for user in SERVICES if subject in _heard(user)} == {"goodput_accountant"}


def _heard(user: str) -> set[str]:
    asked = (subjects.ledger_report("local"), subjects.ledger_rows("local"))
    return {subject for subject in asked if any(matches(pattern, subject) for pattern in SUBSCRIBE[user])}


@pytest.mark.parametrize(
    "subject", [subjects.asked("local"), subjects.plan("local"), subjects.planned("local")]
)
def test_only_fleetmind_says_what_was_asked_for_and_what_is_planned(subject: str):
    assert publishers(subject) == {"fleetmind"}
