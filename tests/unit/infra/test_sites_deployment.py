"""docker-compose.sites.yml and infra/nats: a site joined to others, with the least that may pass between them."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from unit.infra.deployment import COMPOSE, INFRA, REPOSITORY

from console.embedded.nats import USERS, server_binary

OVERRIDE = yaml.safe_load((REPOSITORY / "docker-compose.sites.yml").read_text())["services"]
EXCHANGE = (INFRA / "nats" / "exchange.conf").read_text()
VARIABLES = {
    "SITE_DOMAIN": "B",
    "SITE_STORE": '"/tmp/none"',
    "SITE_EXCHANGE_URL": '"nats-leaf://site:p@exchange:7422"',
    "EXCHANGE_NAME": "exchange-B",
    "EXCHANGE_LEAF_LISTEN": '"0.0.0.0:7422"',
    "EXCHANGE_ROUTE_LISTEN": '"0.0.0.0:6222"',
    "EXCHANGE_ADVERTISE": '"b.example.net:6222"',
    "EXCHANGE_ROUTES": '["nats-route://exchange:p@a.example.net:6222"]',
    "NATS_PASSWORD_SITE": "p1",
    "NATS_PASSWORD_EXCHANGE": "p2",
    **{f"NATS_PASSWORD_{user.upper()}": f"p{user}" for user in USERS},
}


def crossing(kind: str) -> set[str]:
    """What a site may say to the others, or hear from them."""
    (listed,) = re.findall(rf"^ +{kind}: \[(.*?)^ +\]", EXCHANGE, re.DOTALL | re.MULTILINE)
    return set(re.findall(r'"([^"]+)"', listed))


@pytest.mark.parametrize("name", ["site-server.conf", "exchange.conf"])
def test_nats_takes_the_configuration(name: str):
    command = [server_binary(), "-t", "-c", str(INFRA / "nats" / name)]
    checked = subprocess.run(
        command, env={**os.environ, **VARIABLES}, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("container", ["nats", "exchange"])
def test_each_container_is_given_every_variable_that_its_configuration_names(container: str):
    files = {"nats": ["site-server.conf", "site.conf"], "exchange": ["exchange.conf"]}[container]
    named = {
        name
        for file in files
        for name in re.findall(
            r"^[^#\n\"]*\$([A-Z][A-Z_]+)", (INFRA / "nats" / file).read_text(), re.MULTILINE
        )
    }
    assert named <= OVERRIDE[container]["environment"].keys()


def test_every_mounted_file_exists():
    for container in OVERRIDE.values():
        for volume in container["volumes"]:
            assert Path(REPOSITORY, volume.partition(":")[0]).is_file()


def test_the_exchange_runs_as_nobody_in_the_image_of_the_sites_nats():
    assert OVERRIDE["exchange"]["image"] == COMPOSE["services"]["nats"]["image"]
    assert OVERRIDE["exchange"]["cap_drop"] == ["ALL"]
    assert OVERRIDE["exchange"]["user"].partition(":")[0] not in ("0", "root")


def test_what_one_site_may_say_another_may_hear():
    assert crossing("publish") == crossing("subscribe")


def test_replies_of_every_user_cross():
    assert {f"_INBOX_{user}.>" for user in USERS} <= crossing("publish")


@pytest.mark.parametrize("bucket", ["leases", "instances", "latency"])
def test_nothing_of_a_sites_own_buckets_crosses(bucket: str):
    assert not [subject for subject in crossing("publish") if bucket in subject]


def test_no_site_may_change_or_empty_anothers_streams():
    calls = {subject.split(".API.")[1] for subject in crossing("publish") if ".API." in subject}
    assert {call.split(".")[0] for call in calls} == {"INFO", "CONSUMER", "$KV"}
    assert {call.split(".")[1] for call in calls if call.startswith("CONSUMER.")} == {"CREATE"}


def test_an_exchange_keeps_nothing():
    assert not re.search(r"^\s*jetstream", EXCHANGE, re.MULTILINE)
