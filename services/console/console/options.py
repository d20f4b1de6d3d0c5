"""What a stack is asked to be."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

from tokenfleet import subjects
from tokenfleet.engine.profile import LLAMA70B_TP4_H100, PROFILES
from tokenfleet.errors import ConfigurationError
from tokenfleet.running_stack import default_state_dir

DEFAULT_MODEL = "llama-70b"
DEFAULT_VERSION = "1"
DEFAULT_PROFILE = LLAMA70B_TP4_H100.name

_MODEL = re.compile(r"(?P<name>[^=]+?)(=(?P<engines>\d+))?")


@dataclass(frozen=True, slots=True)
class ModelShare:
    """A model of the fleet and how many engines serve it; None: an equal share of what is left."""

    model: str
    version: str = DEFAULT_VERSION
    engines: int | None = None


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One emulated engine to start."""

    instance: str
    node: str
    model: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """The options of `tokenfleet up`."""

    engines: int = 8
    nodes: int = 2
    models: tuple[ModelShare, ...] = (ModelShare(DEFAULT_MODEL),)
    profile: str = DEFAULT_PROFILE
    time_scale: float = 1.0
    host: str = "127.0.0.1"
    port: int = 8080
    """Of the API; 0: any free port."""
    state_dir: Path = field(default_factory=default_state_dir)
    start_engines: bool = True
    start_timeout_s: float = 120.0


def parse_model(text: str) -> ModelShare:
    """`NAME[@VERSION][=ENGINES]`.

    Raises:
        ConfigurationError: it is not of that form.
    """
    match = _MODEL.fullmatch(text)
    if not match:
        raise ConfigurationError(f"--model {text}: expected NAME[@VERSION][=ENGINES], as in llama-70b@2=4.")
    model, version = subjects.split_model(match["name"])
    engines = int(match["engines"]) if match["engines"] else None
    if not model or version == "" or engines == 0:
        raise ConfigurationError(
            f"--model {text}: the name, the version and the number of engines cannot be empty."
        )
    return ModelShare(model, version or DEFAULT_VERSION, engines)


def node_names(options: StackOptions) -> list[str]:
    return [f"node-{number}" for number in range(1, options.nodes + 1)]


def plan_engines(options: StackOptions) -> list[EnginePlan]:
    """Each engine's model and node. A model's engines are spread over the nodes.

    Raises:
        ConfigurationError: the profile is unknown, or the engines cannot be dealt to the models.
    """
    if not options.start_engines or not options.engines:
        return []
    if options.profile not in PROFILES:
        known = ", ".join(sorted(PROFILES))
        raise ConfigurationError(f"--profile {options.profile}: there is no such profile. Known: {known}.")
    wanted = [
        share for share, count in zip(options.models, _counts(options), strict=True) for _ in range(count)
    ]
    nodes = islice(cycle(node_names(options)), len(wanted))
    return [
        EnginePlan(f"engine-{number}", node, share.model, share.version)
        for number, (share, node) in enumerate(zip(wanted, nodes, strict=True), start=1)
    ]


def _counts(options: StackOptions) -> Sequence[int]:
    shares = options.models
    open_shares = [share for share in shares if share.engines is None]
    left = options.engines - sum(share.engines or 0 for share in shares)
    if left < len(open_shares) or (left > 0 and not open_shares):
        named = ", ".join(f"{share.model}={share.engines or '?'}" for share in shares)
        raise ConfigurationError(
            f"{options.engines} engines cannot be dealt to these models: {named}. "
            "Change --engines, or the numbers after --model NAME=."
        )
    even, extra = divmod(left, len(open_shares)) if open_shares else (0, 0)
    dealt = iter(even + (position < extra) for position in range(len(open_shares)))
    return [share.engines if share.engines is not None else next(dealt) for share in shares]
