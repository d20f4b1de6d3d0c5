"""The fleet of a window as the simulator knows fleets, made from the situations recorded.

An instance that came, went, was restarted or drained within the window does so in the simulation too. What a situation
does not say and the simulator needs is taken as follows: telemetry travels for 5 wall ms, and between sites nothing is
lost (round trips are not recorded).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from lab.sim.cluster import Cluster, Drain, Failure, InstanceSpec
from lab.whatif.errors import WhatIfError
from lab.whatif.recording import Recording
from tokenfleet import subjects
from tokenfleet.contracts.fleet import EngineProfile
from tokenfleet.contracts.policy import Policy, Tenant
from tokenfleet.contracts.situation import Situation
from tokenfleet.fleet_view import DEAD_AFTER_S

USUAL_INTERVAL_S = 0.1
"""Wall seconds between readings, where they were not measured."""
TELEMETRY_DELAY_S = 0.005
"""Wall seconds."""
MOMENT_S = 1e-3
LEAD_S = 2.0
"""The run begins so much before its first request, in times of what it takes to know of a death: by then whoever came
only later is known to be away."""


class RunClock(msgspec.Struct, frozen=True, kw_only=True):
    """Engine seconds of the run by Unix time."""

    begin_ns: int
    """When the first request was submitted."""
    time_scale: float

    @property
    def death_known_s(self) -> float:
        return DEAD_AFTER_S * self.time_scale

    def at_s(self, time_ns: int) -> float:
        """Never before the run begins."""
        since_s = (time_ns - self.begin_ns) / 1e9 * self.time_scale
        return max(0.0, LEAD_S * self.death_known_s + since_s)


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """What the window's requests found."""

    cluster: Cluster
    policy: Policy
    """The one under which most of them were submitted."""
    clock: RunClock
    changes: int
    """Of instances, within the window."""
    policies: int
    """In force during the window."""
    notes: tuple[str, ...] = ()
    """What is simulated otherwise than it was."""

    @property
    def pools(self) -> Counter[str]:
        """Instances by pool, whenever they were there."""
        return Counter(subjects.name_of(spec.version) for spec in self.cluster.instances)


class _State(NamedTuple):
    """One instance at one moment."""

    at_s: float
    generation: int | None
    """None: it is not there."""
    draining: bool = False


def fleet_of(recording: Recording) -> Fleet:
    """The fleet of a recording.

    Raises:
        WhatIfError: no situation is recorded, or none with an instance, or engine time changed its pace.
    """
    begin_ns = recording.requests[0].submitted.time_ns
    end_ns = max(
        recording.window.to_ns, *(one.ended.time_ns for one in recording.requests if one.ended), begin_ns
    )
    by_site: dict[str, list[Situation]] = {}
    for situation in recording.situations:
        if situation.time_ns < end_ns:
            by_site.setdefault(situation.site, []).append(situation)
    if not by_site:
        raise WhatIfError(
            "No situation (instances, policy, tenants) is recorded for this window. telemetry-collector records one a "
            "minute since it can; it must have run, and an exported file must hold them (subject "
            f"{subjects.ALL_SITUATIONS})."
        )
    during = {site: _during(said, begin_ns) for site, said in by_site.items()}
    scale = _time_scale(recording, [one for said in during.values() for one in said])
    clock = RunClock(begin_ns=begin_ns, time_scale=scale)
    main = Counter(one.submitted.site for one in recording.counted).most_common(1)[0][0]
    in_force = _in_force(recording, during.get(main) or next(iter(during.values())))
    return _assemble(during, clock, in_force)


def _during(said: Sequence[Situation], begin_ns: int) -> list[Situation]:
    """The last one before the run begins, and those after it; what came first stands for what came before it."""
    before = [one for one in said if one.time_ns <= begin_ns]
    return [*before[-1:], *(one for one in said if one.time_ns > begin_ns)]


def _time_scale(recording: Recording, during: Sequence[Situation]) -> float:
    scales = {one.time_scale for one in during} | {
        one.ended.time_scale for one in recording.requests if one.ended is not None
    }
    if len(scales) > 1:
        listed = " and ".join(f"{scale:g}" for scale in sorted(scales))
        raise WhatIfError(
            f"Engine time ran at {listed} times real time within the window and the time before it that is run again. "
            "Choose a window with one time scale, or a shorter --warm-up."
        )
    return scales.pop()


def _in_force(recording: Recording, said: Sequence[Situation]) -> list[tuple[Situation, int]]:
    """The situations with another policy than the one before, and the window's requests submitted under each."""
    changes = [one for at, one in enumerate(said) if at == 0 or one.policy != said[at - 1].policy]
    counts = [0] * len(changes)
    for one in recording.counted:
        later = sum(change.time_ns <= one.submitted.time_ns for change in changes)
        counts[max(0, later - 1)] += 1
    under = [(change, count) for change, count in zip(changes, counts, strict=True) if count]
    return sorted(under, key=lambda entry: -entry[1])


def _assemble(
    during: Mapping[str, Sequence[Situation]], clock: RunClock, in_force: Sequence[tuple[Situation, int]]
) -> Fleet:
    notes: list[str] = []
    specs: list[InstanceSpec] = []
    failures: list[Failure] = []
    drains: list[Drain] = []
    sizes: Counter[int] = Counter()
    for site, said in during.items():
        for name, profile, pool, block_size, kv_events in _members(said, notes):
            known = f"{site}/{name}" if len(during) > 1 else name
            specs.append(
                InstanceSpec(
                    name=known,
                    profile=profile,
                    site=site,
                    # The simulator knows one model; its versions are told apart, and nothing chooses between them.
                    version=subjects.token(pool),
                    kv_events=kv_events,
                )
            )
            sizes[block_size] += 1
            came_and_went = _fates(known, _states(said, name, clock), clock)
            failures += came_and_went[0]
            drains += came_and_went[1]
    if not specs:
        raise WhatIfError("No instance was there at any time of this window: there is nothing to run on.")
    if len(during) > 1:
        notes.append("round trips between sites are not recorded; requests travel in no time")
    block_size = sizes.most_common(1)[0][0]
    if len(sizes) > 1:
        notes.append(f"engines have blocks of {sorted(sizes)} tokens; all are simulated with {block_size}")
    intervals = [
        one.telemetry_interval_s for said in during.values() for one in said if one.telemetry_interval_s
    ]
    interval_s = median(intervals) if intervals else USUAL_INTERVAL_S
    delay_s = TELEMETRY_DELAY_S * clock.time_scale
    reference = in_force[0][0]
    return Fleet(
        cluster=Cluster(
            instances=tuple(specs),
            block_size=block_size,
            telemetry_interval_s=interval_s * clock.time_scale,
            telemetry_delay_s=(delay_s, delay_s),
            death_known_s=clock.death_known_s,
            failures=tuple(failures),
            drains=tuple(drains),
            tenants={tenant.tenant: _anywhere(tenant) for tenant in reference.tenants},
        ),
        policy=reference.policy,
        clock=clock,
        changes=len(failures) + len(drains),
        policies=len(in_force),
        notes=tuple(notes),
    )


def _anywhere(tenant: Tenant) -> Tenant:
    """Its ingress has checked already which models it may use; the simulator calls them all by one name."""
    return msgspec.structs.replace(tenant, models=None)


def _members(said: Sequence[Situation], notes: list[str]) -> list[tuple[str, EngineProfile, str, int, bool]]:
    """Every instance that was ever there: its name, profile, pool, block size and whether it has KV events."""
    members: dict[str, tuple[str, EngineProfile, str, int, bool]] = {}
    for situation in said:
        for group in situation.groups:
            for name in group.generations:
                member = (name, group.profile, group.pool, group.block_size_tokens, group.kv_events)
                if members.setdefault(name, member) != member:
                    notes.append(f"{name} came back as another kind of engine; it is simulated as it was")
    return [members[name] for name in sorted(members)]


def _states(said: Sequence[Situation], name: str, clock: RunClock) -> list[_State]:
    """How an instance was, from the beginning on, as far as that changed."""
    states: list[_State] = []
    for at, situation in enumerate(said):
        at_s = 0.0 if at == 0 else clock.at_s(situation.time_ns)
        state = _State(at_s, None)
        for group in situation.groups:
            if name in group.generations:
                state = _State(at_s, group.generations[name], group.draining)
        if not states or states[-1][1:] != state[1:]:
            states.append(state)
    return states


def _fates(name: str, states: Sequence[_State], clock: RunClock) -> tuple[list[Failure], list[Drain]]:
    """The absences and drains that an instance's states amount to."""
    failures: list[Failure] = []
    drains: list[Drain] = []
    back_s = 0.0
    """Until when its last absence lasts."""
    for at, state in enumerate(states):
        before = states[at - 1] if at else None
        following = states[at + 1] if at + 1 < len(states) else None
        if state.generation is None:
            failures.append(
                Failure(
                    instance=name,
                    at_s=_died_s(state, before, back_s, clock),
                    back_s=following.at_s if following else None,
                )
            )
            back_s = following.at_s if following else back_s
            continue
        if before and before.generation not in (None, state.generation):
            failures.append(
                Failure(instance=name, at_s=_died_s(state, before, back_s, clock), back_s=state.at_s)
            )
            back_s = state.at_s
        if state.draining:
            same = following is not None and following.generation == state.generation
            at_s = max(state.at_s, back_s) + MOMENT_S
            drains.append(
                Drain(instance=name, at_s=at_s, back_s=following.at_s if following and same else None)
            )
    return failures, drains


def _died_s(state: _State, before: _State | None, back_s: float, clock: RunClock) -> float:
    """It was dead for a while before that was known."""
    if before is None:
        return state.at_s
    return max(state.at_s - clock.death_known_s, back_s + MOMENT_S)
