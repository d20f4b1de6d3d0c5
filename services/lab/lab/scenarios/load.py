"""Finds and reads scenarios and the traces they name."""

import os
from importlib import resources
from math import inf
from pathlib import Path

import msgspec

from lab.errors import ScenarioError
from lab.scenarios.model import Pool, Scenario, tenant_name
from lab.sim.timing import timed
from lab.traces.generated_name import is_generated
from tokenfleet.contracts.fleet import EngineProfile
from tokenfleet.engine.profile import PROFILES

PACKAGE = "lab.scenarios"
SUFFIX = ".toml"
TRACES_VARIABLE = "TOKENFLEET_TRACES"
"""A folder of trace files, by their usual names."""
TRACES_FOLDER = "../shared/traces"
"""Where they are looked for otherwise: beside the checkout."""


def names() -> list[str]:
    """The scenarios that come with the lab."""
    folder = resources.files(PACKAGE)
    return sorted(
        entry.name.removesuffix(SUFFIX) for entry in folder.iterdir() if entry.name.endswith(SUFFIX)
    )


def load_scenario(name: str) -> Scenario:
    """A scenario by its name, or by the path of a file of one's own.

    Raises:
        ScenarioError: there is none, or the file is not one; the message says where and why.
    """
    path = Path(name)
    if name in names():
        source = resources.files(PACKAGE) / f"{name}{SUFFIX}"
        return _decode(f"{name}{SUFFIX}", source.read_bytes())
    if path.suffix != SUFFIX:
        raise ScenarioError(
            f"There is no scenario {name}. Known: {', '.join(names())}; or give the path of a {SUFFIX} file"
        )
    try:
        return _decode(str(path), path.read_bytes())
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror})") from error


def find_trace(name: str, otherwise: str) -> str:
    """A trace file's path: as given, or in the folder of traces; `otherwise` if it is in neither."""
    folders = ["", os.environ.get(TRACES_VARIABLE, TRACES_FOLDER)]
    for folder in folders:
        path = Path(folder, name)
        if path.is_file():
            return str(path)
    return name if is_generated(name) else otherwise


def profile_of(scenario: Scenario, pool: Pool) -> EngineProfile:
    """The engine profile that a pool's instances register."""
    hardware = scenario.hardware.get(pool.profile)
    if hardware is None:
        return PROFILES[pool.profile]
    base = PROFILES[hardware.base]
    slower = timed(base, prefill=hardware.prefill_time_factor, step=hardware.decode_time_factor)
    return msgspec.structs.replace(
        slower,
        name=pool.profile,
        kv_capacity_tokens=round(base.kv_capacity_tokens * hardware.kv_capacity_factor),
    )


def _decode(where: str, text: bytes) -> Scenario:
    try:
        scenario = msgspec.toml.decode(text, type=Scenario)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{where}: not a scenario: {error}") from error
    problem = _problem(scenario)
    if problem:
        raise ScenarioError(f"{where}: {problem}")
    return scenario


def _problem(scenario: Scenario) -> str | None:
    """What is wrong with a scenario beyond the types of its keys."""
    if (scenario.speed is None) == (scenario.target is None):
        return "give either `speed` or `target`"
    if scenario.entry_site is not None and scenario.regions is not None:
        return "give either `entry_site` or `regions`"
    for hardware in scenario.hardware.values():
        if hardware.base not in PROFILES:
            return f"no engine profile {hardware.base}. Known: {', '.join(PROFILES)}"
    for pool in scenario.pools:
        if pool.profile not in scenario.hardware and pool.profile not in PROFILES:
            known = ", ".join([*PROFILES, *scenario.hardware])
            return f"a pool's profile {pool.profile} is unknown. Known: {known}"
    return _problem_of_sites(scenario) or _problem_in_time(scenario)


def _problem_of_sites(scenario: Scenario) -> str | None:
    if not scenario.pools:
        return "`pools` needs at least one pool"
    if scenario.regions and not scenario.regions.sites:
        return "`regions` needs at least one site"
    entries = scenario.regions.sites if scenario.regions else (scenario.entry_site or scenario.sites[0],)
    known = {*scenario.sites, *entries}
    for pair in scenario.round_trips_ms:
        ends = pair.split("-")
        if len(ends) != 2:
            return f'round trips lie between two sites, written "A-B", not {pair!r}'
        if unknown := [site for site in ends if site not in known]:
            return f"the round trip {pair} names {unknown[0]}, but the sites are {', '.join(sorted(known))}"
    dealt = scenario.tenants
    if dealt and dealt.confined_share and dealt.confined_to not in scenario.sites:
        return f"tenants are confined to {dealt.confined_to}, but pools are at {', '.join(scenario.sites)}"
    return _problem_of_tenants(scenario)


def _problem_of_tenants(scenario: Scenario) -> str | None:
    dealt, flood = scenario.tenants, scenario.flood
    if dealt and len(dealt.weights) > dealt.count:
        return f"there are weights for {len(dealt.weights)} tenants, but {dealt.count} tenants"
    if flood is None:
        return None
    if dealt is None:
        return "a `flood` needs `tenants`, one of which floods"
    known = [tenant_name(number) for number in range(dealt.count)]
    if flood.tenant not in known:
        return f"{flood.tenant} is to flood, but the tenants are {', '.join(known)}"
    if flood.from_share >= flood.to_share:
        return f"the flood ends at {flood.to_share:g} of the run, not after its beginning at {flood.from_share:g}"
    return None


def _problem_in_time(scenario: Scenario) -> str | None:
    least_s, most_s = scenario.telemetry_delay_s
    if least_s > most_s:
        return f"telemetry_delay_s is the least and the most, not {least_s:g} and {most_s:g}"
    for step in scenario.steps:
        if step.from_share >= step.to_share:
            return (
                f"a step ends at {step.to_share:g} of the run, not after its beginning at {step.from_share:g}"
            )
    for file in scenario.batch.files if scenario.batch else ():
        if file.due_share <= file.from_share:
            return f"a batch file is due at {file.due_share:g} of the run, not after it comes at {file.from_share:g}"
    back_s: dict[str, float] = {}
    for death in sorted(scenario.failures, key=lambda death: death.at_s):
        if death.back_s is not None and death.back_s <= death.at_s:
            return f"{death.instance} is back at {death.back_s:g} s, not after it dies at {death.at_s:g} s"
        if death.at_s <= back_s.get(death.instance, -1.0):
            return f"{death.instance} dies at {death.at_s:g} s, when it is dead already"
        back_s[death.instance] = inf if death.back_s is None else death.back_s
    return None
