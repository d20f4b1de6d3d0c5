"""How requests are shared out among the versions of a model: changing it, and what FleetMind made of it."""

import time
from collections.abc import Callable, Mapping

import msgspec

from console.operator import change_policy, live_policy
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.contracts.control import Adjusted
from tokenfleet.contracts.policy import Policy, Rollout, problems
from tokenfleet.errors import PolicyError

LOOK_BACK_NS = 30 * 86_400 * 10**9
"""As long as the FLEET stream keeps what was rolled back."""

Change = Callable[[Rollout | None], Rollout | None]


class VersionShown(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a model that has a rollout."""

    model: str
    version: str
    weight: float
    share: float
    """Of the requests that name no version, once it is warm and while no other is missing."""
    drained: bool
    rolled_back: dict[str, str]
    """By site whose FleetMind does not use it until its weight is changed: why."""


async def shown(bus: Bus, model: str | None = None) -> list[VersionShown]:
    """Every version that a rollout names, of one model or of all."""
    rollouts = (await live_policy(bus)).fleet.rollouts
    back = await _rolled_back(bus) if rollouts else {}
    return [
        _version(name, rollout, version, back)
        for name, rollout in sorted(rollouts.items())
        if model in (None, name)
        for version in sorted({*rollout.weights, *rollout.drained})
    ]


async def change_rollout(bus: Bus, model: str, change: Change) -> Policy:
    """Change one model's rollout (None: it has none) and return the policy in force.

    Raises:
        PolicyError: the change cannot be; nothing is changed.
    """

    def changed(policy: Policy) -> Policy:
        rollouts = dict(policy.fleet.rollouts)
        rollout = change(rollouts.get(model))
        if rollout is None:
            rollouts.pop(model, None)
        else:
            rollouts[model] = rollout
        fleet = msgspec.structs.replace(policy.fleet, rollouts=rollouts)
        policy = msgspec.structs.replace(policy, fleet=fleet)
        if found := problems(policy):
            raise PolicyError(f"Nothing was changed. {' '.join(found)}")
        return policy

    return await change_policy(bus, changed)


def weighed(rollout: Rollout | None, weights: Mapping[str, float], **changes: object) -> Rollout:
    """The rollout with these weights; versions not named keep theirs. One that gets a weight is not drained any more."""
    present = rollout or Rollout(weights={})
    drained = tuple(version for version in present.drained if not weights.get(version))
    return msgspec.structs.replace(
        present, weights={**present.weights, **weights}, drained=drained, **changes
    )


def drained(rollout: Rollout | None, model: str, version: str) -> Rollout:
    """The rollout with a version that takes nothing new.

    Raises:
        PolicyError: no other version would take its requests.
    """
    if rollout is None or not any(weight for name, weight in rollout.weights.items() if name != version):
        raise PolicyError(
            f"No other version of {model} has a weight. Give one first: tokenfleet rollout set {model} VERSION=1."
        )
    return msgspec.structs.replace(
        rollout,
        weights={**rollout.weights, version: 0.0},
        drained=tuple(dict.fromkeys((*rollout.drained, version))),
    )


def _version(
    model: str, rollout: Rollout, version: str, back: Mapping[tuple[str, str], Adjusted]
) -> VersionShown:
    weight = rollout.weights.get(version, 0.0)
    total = sum(each for name, each in rollout.weights.items() if name not in rollout.drained)
    taken = 0.0 if version in rollout.drained else weight
    pool = subjects.pool_name(model, version)
    return VersionShown(
        model=model,
        version=version,
        weight=weight,
        share=taken / total if total else 0.0,
        drained=version in rollout.drained,
        rolled_back={
            site: message.reason
            for (site, of_pool), message in back.items()
            if of_pool == pool and message.before == weight
        },
    )


async def _rolled_back(bus: Bus) -> dict[tuple[str, str], Adjusted]:
    """The last time that each site's FleetMind stopped using a pool's version."""
    back: dict[tuple[str, str], Adjusted] = {}
    from_ns = time.time_ns() - LOOK_BACK_NS
    async for stored in bus.read_stored(subjects.STREAM_FLEET, [subjects.ALL_CONTROL], from_ns):
        message = Adjusted.model_validate_json(stored.data)
        if message.knob.startswith("fleet.rollouts."):
            back[message.site, message.pool] = message
    return back
