"""The container deployment as the files of the repository describe it."""

import re
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import yaml

from tokenfleet.settings import Settings

REPOSITORY = Path(__file__).parents[3]
INFRA = REPOSITORY / "infra"
DOCKERFILE = (INFRA / "docker" / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
CONTAINERS: dict[str, dict[str, Any]] = COMPOSE["services"]

SERVICES = sorted(entry_points(group="tokenfleet.services").names)
"""What `tokenfleet run` can run; each is a container of the same name."""
OFF_THE_BUS = {"emulated-engine"}
OUR_CONTAINERS = sorted(name for name, container in CONTAINERS.items() if "build" in container)
OTHER_CONTAINERS = sorted(CONTAINERS.keys() - set(OUR_CONTAINERS))

_REQUIRED = re.compile(r"\$\{(\w+):\?[^}]+\}")
_OPTIONAL = re.compile(r"\$\{(\w+):-([^}]*)\}")


def required_variables() -> set[str]:
    """What `.env` must give, or compose refuses to start."""
    return set(_REQUIRED.findall(str(COMPOSE)))


def optional_variables() -> dict[str, str]:
    """The rest, and its defaults."""
    return dict(_OPTIONAL.findall(str(COMPOSE)))


def environment(container: str) -> dict[str, str]:
    """A container's variables, its image's included; what `.env` gives is replaced by the default or a word."""
    image = dict(
        re.findall(r"^ +(?:ENV )?(\w+)=([^\s\\]+)", DOCKERFILE.rpartition("\nENV ")[2], re.MULTILINE)
    )
    own = CONTAINERS[container].get("environment", {})
    stated = {name: _OPTIONAL.sub(r"\2", _REQUIRED.sub("secret", str(value))) for name, value in own.items()}
    return {**image, **stated} if container in OUR_CONTAINERS else stated


def settings_type(service: str) -> type[Settings]:
    """The settings that a service's main module runs with."""
    (entry,) = entry_points(group="tokenfleet.services", name=service)
    found = [
        value
        for value in vars(import_module(entry.module)).values()
        if isinstance(value, type) and issubclass(value, Settings)
    ]
    return max(found, key=lambda candidate: len(candidate.__mro__))
