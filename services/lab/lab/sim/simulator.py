"""A discrete-event simulation: submissions, a policy under test, engines, and the facts that travel between.

One heap of timers in virtual time. An engine sets a timer for its next first token or finish, not for each
iteration of decoding; telemetry is read per group of instances. Nothing is random here: equal inputs and equal
policies give equal outputs.
"""

import heapq
from collections.abc import Callable
from typing import Any

import msgspec

from lab.sim.api import (
    Adjusted,
    Adjusting,
    Decision,
    Hold,
    Lawful,
    Outcome,
    Policy,
    Refuse,
    Route,
    SiteAware,
)
from lab.sim.cluster import MODEL, Cluster, Drain, Failure, Instance, Slowdown
from lab.sim.eligible import Eligibility
from lab.sim.job import Job
from lab.sim.telemetry import Reading, Telemetry
from lab.sim.workload import Submission, Workload, arrival
from tokenfleet.engine.requests import ContextTooLongError, EngineEvent, EngineRequest, FirstToken

MAX_ATTEMPTS = 2
"""As ingress does: one more attempt, and only while the client has seen no token."""

FAR = 1 << 60
"""Iterations an engine may look ahead for its next event."""

Progress = Callable[[int], None]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a run gave: one outcome per submission, in order of submission, and what was seen on the way."""

    outcomes: list[Outcome]
    mean_waiting: list[tuple[float, float]]
    busy_share: dict[str, float]
    timers: int
    """Timers that went off: the events of this simulation."""
    iterations: int
    """Engine iterations simulated."""
    generated_tokens: int
    """Output tokens that the engines produced, for whatever became of their requests."""
    residency_violations: int = 0
    """Decisions to run a request where its tenant does not allow it. The simulator lets none of them happen."""
    adjustments: list[Adjusted] = []
    """What the policy changed about itself, if it keeps a record of that."""


class Simulation:
    """One run.

    Args:
        cluster: the engines and everything around them.
        work: what arrives, in order of time.
        policy: the router under test.
        on_progress: told how many requests ended, every hundred.
    """

    def __init__(
        self,
        cluster: Cluster,
        work: Workload,
        policy: Policy,
        *,
        on_progress: Progress | None = None,
    ) -> None:
        self._cluster = cluster
        self._work = work
        self._upcoming = iter(work)
        self._policy = policy
        self._on_progress = on_progress
        self._timers: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._sequence = 0
        self._now_s = 0.0
        self._instances = {spec.name: Instance(spec, cluster.block_size) for spec in cluster.instances}
        self._registered: set[str] = set()
        self._eligibility = Eligibility(cluster)
        self._judges_by_itself = isinstance(policy, Lawful) and policy.judges_residency
        self._violations = 0
        self._jobs: dict[str, Job] = {}
        self._held: dict[str, Job] = {}
        self._outcomes: list[Outcome | None] = [None] * len(work)
        self._ended = 0
        self._telemetry = Telemetry(
            cluster, list(self._instances.values()), self._at, self._advance, self._hear
        )
        self._past_iterations = 0
        self._past_generated_tokens = 0

    def run(self) -> Result:
        """Run until every request has its outcome."""
        if isinstance(self._policy, SiteAware):
            self._policy.network(self._cluster.round_trip_s, self._cluster.tenants)
        for instance in self._instances.values():
            self._join(instance)
            self._policy.reading(instance.read(0.0), 0.0)
        self._telemetry.start()
        for failure in self._cluster.failures:
            self._at(failure.at_s, self._die, failure)
        for drain in self._cluster.drains:
            self._at(drain.at_s, self._drain, drain)
        for slowdown in self._cluster.slowdowns:
            self._at(slowdown.at_s, self._slow_down, slowdown)
        self._expect_next()
        count, timers = 0, self._timers
        total = len(self._work)
        while self._ended < total:
            self._now_s, _, handler, argument = heapq.heappop(timers)
            count += 1
            handler(argument)
            if self._held:
                self._release()
        if self._on_progress:
            self._on_progress(self._ended)
        running = [instance.engine for instance in self._instances.values() if instance.alive]
        return Result(
            outcomes=[outcome for outcome in self._outcomes if outcome is not None],
            mean_waiting=self._telemetry.samples.mean_waiting(),
            busy_share={
                name: instance.busy_samples / instance.samples if instance.samples else 0.0
                for name, instance in self._instances.items()
            },
            timers=count,
            iterations=self._past_iterations + sum(engine.iterations for engine in running),
            generated_tokens=self._past_generated_tokens
            + sum(engine.counters.generation_tokens for engine in running),
            residency_violations=self._violations,
            adjustments=list(self._policy.adjustments) if isinstance(self._policy, Adjusting) else [],
        )

    def _at(self, time_s: float, handler: Callable[[Any], None], argument: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._timers, (time_s, self._sequence, handler, argument))

    # -- arrivals and decisions

    def _expect_next(self) -> None:
        submission = next(self._upcoming, None)
        if submission is not None:
            self._at(submission.arrival_s, self._arrive, submission)

    def _arrive(self, submission: Submission) -> None:
        self._expect_next()
        excluded = () if self._judges_by_itself else self._eligibility.excluded(submission)
        tenant = self._cluster.tenants.get(submission.tenant)
        job = Job(submission, arrival(submission, MODEL, self._cluster.block_size, excluded, tenant))
        self._jobs[job.arrival.request_id] = job
        if submission.request.input_tokens < 1 or submission.request.output_tokens < 1:
            self._finish(job, "rejected", "empty_request", 400)
            return
        self._at(self._now_s + submission.timeout_s, self._time_out, job)
        self._decide(job)

    def _decide(self, job: Job) -> None:
        if self._registered.issubset(job.excluded):
            # No router is asked where there is nothing to choose from.
            self._turn_away(job, 503, "no_ready_instance")
            return
        self._apply(job, self._policy.decide(job.arrival, self._now_s))

    def _release(self) -> None:
        for released in self._policy.release(self._now_s):
            job = self._held.pop(released.request_id, None)
            if job is not None:
                job.held = False
                self._apply(job, released.decision)

    def _apply(self, job: Job, decision: Decision) -> None:
        if isinstance(decision, Route):
            job.instance = instance = self._instances[decision.instance]
            job.route, job.routed_s = decision, self._now_s
            if not self._eligibility.allowed(job.submission, instance.spec):
                self._violations += not self._eligibility.may_run(job.submission, instance.spec)
                self._policy.ended(job.arrival.request_id, instance.spec.name, 0, self._now_s)
                job.instance = None
                self._turn_away(job, 403, "not_permitted")
                return
            delay_s = decision.after_s + self._one_way_s(job)
            if delay_s:
                self._at(self._now_s + delay_s, self._reach_engine, (job, job.attempt))
            else:
                self._reach_engine((job, job.attempt))
        elif isinstance(decision, Refuse):
            self._turn_away(job, decision.status, decision.reason)
        else:
            assert isinstance(decision, Hold)
            job.held = True
            self._held[job.arrival.request_id] = job
            if decision.wake_s is not None:
                self._at(decision.wake_s, _nothing, None)

    def _turn_away(self, job: Job, status: int, reason: str) -> None:
        # A first attempt that nobody takes was rejected; a later one means that the request failed.
        if job.attempt > 1:
            self._finish(job, "failed", f"retry_{reason}", status)
        else:
            self._finish(job, "rejected", reason, status)

    def _one_way_s(self, job: Job) -> float:
        assert job.instance is not None
        return self._cluster.one_way_s(job.submission.entry_site, job.instance.spec.site)

    # -- engines

    def _reach_engine(self, sent: tuple[Job, int]) -> None:
        job, attempt = sent
        instance = job.instance
        if job.over or job.attempt != attempt or instance is None:
            return
        if not instance.alive:
            self._fail_attempt(job)
            return
        self._advance(instance)
        request = job.submission.request
        try:
            instance.engine.add(
                EngineRequest(
                    request_id=job.arrival.request_id,
                    prompt_tokens=request.input_tokens,
                    output_tokens=request.output_tokens,
                    block_hashes=job.arrival.blocks,
                ),
                self._now_s,
            )
        except ContextTooLongError:
            self._policy.ended(job.arrival.request_id, instance.spec.name, 0, self._now_s)
            self._finish(job, "rejected", "context_length_exceeded", 400)
            return
        self._set_timer(instance)

    def _set_timer(self, instance: Instance) -> None:
        instance.ticket += 1
        upcoming = instance.engine.next_event(FAR)
        if upcoming is not None:
            self._at(upcoming.time_s, self._wake, (instance, instance.ticket))

    def _wake(self, timer: tuple[Instance, int]) -> None:
        instance, ticket = timer
        if instance.ticket == ticket:
            self._advance(instance)
            self._set_timer(instance)

    def _advance(self, instance: Instance) -> None:
        """Bring an engine up to the present and pass on what came of it."""
        for event in instance.engine.advance(self._now_s):
            job = self._jobs.get(event.request_id)
            if job is None or job.instance is not instance:
                continue
            seen_s = event.time_s + self._one_way_s(job)
            if seen_s <= self._now_s:
                self._see((job, job.attempt, event, seen_s))
            else:
                self._at(seen_s, self._see, (job, job.attempt, event, seen_s))

    def _see(self, seen: tuple[Job, int, EngineEvent, float]) -> None:
        """The client's side sees a first token, or the end of an answer."""
        job, attempt, event, seen_s = seen
        instance = job.instance
        if job.over or job.attempt != attempt or instance is None:
            return
        if isinstance(event, FirstToken):
            job.first_token_s = seen_s
            job.reused_tokens = event.reused_tokens
            if job.arrival.spec.stream:  # whoever passes a whole answer on sees nothing of it before its end
                self._policy.first_token(event.request_id, instance.spec.name, self._now_s)
            return
        job.output_tokens = event.output_tokens
        self._policy.ended(event.request_id, instance.spec.name, event.output_tokens, self._now_s)
        self._finish(job, "completed", "stop", 200, seen_s)

    def _hear(self, readings: list[Reading]) -> None:
        """Readings arrive."""
        for state, changes in readings:
            name = state.instance
            if name not in self._registered or self._instances[name].generation != state.generation:
                continue  # Nobody knows it any more, or its successor is there.
            for stored, removed in changes:
                self._policy.blocks(name, stored, removed, self._now_s)
            self._policy.reading(state, self._now_s)

    # -- ends

    def _time_out(self, job: Job) -> None:
        if job.over:
            return
        name = job.arrival.request_id
        if job.held:
            del self._held[name]
        instance = job.instance
        if instance is not None:
            if instance.alive:
                self._advance(instance)
                if job.over:
                    return
                job.output_tokens = instance.engine.cancel(name, self._now_s) or 0
                self._set_timer(instance)
            self._policy.ended(name, instance.spec.name, job.output_tokens, self._now_s)
        self._finish(job, "timed_out", "deadline", 504)

    def _finish(self, job: Job, outcome: str, reason: str, status: int, ended_s: float | None = None) -> None:
        del self._jobs[job.arrival.request_id]
        self._outcomes[job.submission.number] = job.outcome(
            outcome, reason, status, self._now_s if ended_s is None else ended_s
        )
        self._ended += 1
        if self._on_progress and self._ended % 100 == 0:
            self._on_progress(self._ended)

    # -- failures

    def _die(self, failure: Failure) -> None:
        instance = self._instances[failure.instance]
        self._advance(instance)
        lost = [job for job in self._jobs.values() if job.instance is instance]
        produced = {
            job.arrival.request_id: _produced_tokens(instance, job.arrival.request_id) for job in lost
        }
        instance.alive = False
        instance.ticket += 1
        self._past_iterations += instance.engine.iterations
        self._past_generated_tokens += instance.engine.counters.generation_tokens
        self._at(self._now_s + self._cluster.death_known_s, self._forget, (instance, instance.generation))
        if failure.back_s is not None:
            self._at(failure.back_s, self._come_back, instance)
        for job in lost:
            if job.over:
                continue
            job.output_tokens = produced[job.arrival.request_id]
            self._fail_attempt(job)

    def _drain(self, drain: Drain) -> None:
        instance = self._instances[drain.instance]
        self._forget((instance, instance.generation))
        if drain.back_s is not None:
            self._at(drain.back_s, self._take_again, (instance, instance.generation))

    def _take_again(self, known: tuple[Instance, int]) -> None:
        instance, generation = known
        if instance.alive and instance.generation == generation:
            self._join(instance)

    def _slow_down(self, slowdown: Slowdown) -> None:
        instance = self._instances[slowdown.instance]
        if instance.alive:
            self._advance(instance)
        instance.slow_down(slowdown.factor)
        if instance.alive:
            self._set_timer(instance)

    def _forget(self, known: tuple[Instance, int]) -> None:
        instance, generation = known
        if instance.generation == generation and instance.spec.name in self._registered:
            self._registered.discard(instance.spec.name)
            self._policy.left(instance.spec.name, self._now_s)

    def _come_back(self, instance: Instance) -> None:
        self._forget((instance, instance.generation))
        instance.generation += 1
        instance.start()
        instance.alive = True
        self._join(instance)

    def _join(self, instance: Instance) -> None:
        self._registered.add(instance.spec.name)
        self._policy.joined(instance.record, self._now_s)

    def _fail_attempt(self, job: Job) -> None:
        instance = job.instance
        assert instance is not None
        self._policy.ended(job.arrival.request_id, instance.spec.name, job.output_tokens, self._now_s)
        if job.first_token_s is not None or job.attempt >= MAX_ATTEMPTS:
            self._finish(job, "failed", "engine_error", 502)
            return
        job.try_again(instance.spec.name)
        self._decide(job)


def _nothing(_: object) -> None:
    """A timer of which only the time matters."""


def _produced_tokens(instance: Instance, request_id: str) -> int:
    try:
        return instance.engine.produced_tokens(request_id)
    except KeyError:
        return 0  # Still on its way there.
