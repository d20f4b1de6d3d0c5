"""The processes of a stack besides its servers: services, engines, node agents."""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from console.environment import child_environment, service_variables
from console.options import EnginePlan, StackOptions
from console.process import ProcessSpec
from console.state import StateFolder
from tokenfleet.running_stack import RunRecord

DECIDERS = ("goodput-accountant", "telemetry-collector", "fleetmind", "slomax", "tokenpilot")
"""Every service but ingress, which starts last and stops first."""

OF_THE_HOME = frozenset({"goodput-accountant"})
OF_SITES_WITH_ENGINES = frozenset({"slomax", "tokenpilot"})

INGRESS_STOP_TIMEOUT_S = 15.0
ENGINE_STOP_TIMEOUT_S = 3.0


def deciders_of_site(*, home: bool, engines: bool) -> list[str]:
    """The services of one of several sites: the ledger is kept at home, and without engines nothing is to be decided."""
    left_out = (frozenset() if home else OF_THE_HOME) | (frozenset() if engines else OF_SITES_WITH_ENGINES)
    return [service for service in DECIDERS if service not in left_out]


class Fleet:
    """Makes the specs of one stack's processes."""

    def __init__(self, options: StackOptions, state: StateFolder, record: RunRecord) -> None:
        self._options = options
        self._state = state
        self._record = record

    def service(self, service: str, name: str | None = None, **variables: str) -> ProcessSpec:
        """A service; `variables` are the settings it alone has, without their prefix."""
        environment = service_variables(service, self._record)
        environment |= {f"TOKENFLEET_{key}": value for key, value in variables.items()}
        name = name or service
        return ProcessSpec(
            name=name,
            command=(sys.executable, "-m", "console.run", service),
            environment=child_environment(environment),
            log_path=self._state.log(name),
        )

    def ingress(self, port: int, site_proxies: Mapping[str, str]) -> ProcessSpec:
        """The HTTP front door, which lets the answers under way finish when it is stopped."""
        others = {"INGRESS_SITE_PROXIES": json.dumps(dict(site_proxies))} if site_proxies else {}
        spec = self.service(
            "ingress",
            INGRESS_HOST=self._options.host,
            INGRESS_PORT=str(port),
            # Its journal is found by this name, also when the port was any free one.
            INGRESS_NAME="ingress",
            **others,
        )
        return replace(spec, stop_timeout_s=INGRESS_STOP_TIMEOUT_S)

    def node_agent(self, node: str) -> ProcessSpec:
        """The agent of one node, which finds its engines by their ready files."""
        folder = self._engines_folder(node)
        folder.mkdir(parents=True, exist_ok=True)
        return self.service("node-agent", f"node-agent-{node}", NODE=node, ENGINES_DIR=str(folder))

    def engine(self, plan: EnginePlan) -> ProcessSpec:
        """An emulated engine on any free port. It is in the fleet while its ready file is there."""
        ready_file = self._engines_folder(plan.node) / f"{plan.instance}.json"
        ready_file.parent.mkdir(parents=True, exist_ok=True)
        spec = self.service(
            "emulated-engine",
            plan.instance,
            ENGINE_PORT="0",
            ENGINE_MODEL=plan.model,
            ENGINE_VERSION=plan.version,
            ENGINE_PROFILE=self._options.profile,
            ENGINE_READY_FILE=str(ready_file),
        )
        forget = partial(ready_file.unlink, missing_ok=True)
        return replace(spec, prepare=forget, after_exit=forget, stop_timeout_s=ENGINE_STOP_TIMEOUT_S)

    def _engines_folder(self, node: str) -> Path:
        return self._state.engines / node
