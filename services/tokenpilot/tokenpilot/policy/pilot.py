"""TokenPilot for one pool: what is known of it, what was learned, and the choice. Pure.

The live service and the lab both drive this object; times are monotonic engine seconds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tokenfleet.contracts.fleet import IndexQuality, InstanceRecord, InstanceState
from tokenfleet.contracts.latency import PoolLatency
from tokenfleet.contracts.policy import Routing
from tokenfleet.contracts.requests import Objective, RequestSpec
from tokenfleet.contracts.sites import SiteSummary
from tokenfleet.fleet_view import InstanceView
from tokenfleet.load import LoadView, Observation, OutputLengths
from tokenfleet.load.prefixes import pack_prefixes
from tokenfleet.load.summary import first_free, pack_load
from tokenpilot.policy.calibrate import Calibration, Kind
from tokenpilot.policy.choose import Choice, Situation, choose
from tokenpilot.policy.demand import Demand
from tokenpilot.policy.learn import SpeedLearner
from tokenpilot.policy.roster import Roster, roster_of


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice, and what to expect of it."""

    choice: Choice
    ttft_s: float
    ttft_p90_s: float
    tpot_s: float
    tpot_p90_s: float
    previous_output_tokens: int | None
    expected_output_tokens: float


@dataclass(slots=True)
class _Expected:
    """Of a request in flight: what there will be to learn from."""

    attempt: int
    input_tokens: int
    previous_output_tokens: int | None
    last_block: int | None
    routed_s: float
    kind: Kind | None = None
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    first_token_s: float | None = None


class Pilot:
    """One pool."""

    def __init__(self) -> None:
        self.load = LoadView()
        self.lengths = OutputLengths()
        self.speeds = SpeedLearner()
        self.calibration = Calibration()
        self.demand = Demand()
        self._profiles: dict[str, str] = {}
        self._expected: dict[str, _Expected] = {}
        self._roster: Roster | None = None
        self._turn = 0
        self._lessons = 0

    def joined(self, record: InstanceRecord) -> None:
        """An instance is registered, or has changed."""
        self._roster = None
        self.load.joined(record)
        self._profiles[record.instance] = record.profile.name
        factors = self.speeds.joined(record.instance, record.profile.name)
        self.load.set_factors(record.instance, factors.prefill, factors.step)

    def left(self, instance: str) -> None:
        """An instance is gone, with all that ran there."""
        self._roster = None
        self.load.drop_instance(instance)
        self.speeds.left(instance)
        self.demand.left(instance)
        self._profiles.pop(instance, None)

    def reading(self, state: InstanceState, taken_s: float, now_s: float) -> None:
        """Telemetry of one instance, as it was at `taken_s`."""
        self.load.reading(state, taken_s, now_s)

    def decide(
        self,
        request_id: str,
        attempt: int,
        request: RequestSpec,
        objective: Objective | None,
        blocks: Sequence[int],
        instances: Sequence[InstanceView],
        matched_blocks: Mapping[str, int],
        now_s: float,
        *,
        offloaded_blocks: Mapping[str, int] | None = None,
        kept_free: Sequence[str] = (),
        routing: Routing = "predicted",
        draw: float = 0.0,
        quality: Callable[[str], IndexQuality | None] = lambda _: None,
        wall_s: float | None = None,
    ) -> Decision | None:
        """Choose an instance and count the request there; None when none can take it.

        Args:
            request_id: whose decision this is.
            attempt: from 1.
            request: what is known of it.
            objective: what it was promised.
            blocks: hashes of its prompt's full blocks.
            instances: the pool's ready instances, in a stable order.
            matched_blocks: leading blocks that each instance holds.
            now_s: engine seconds.
            offloaded_blocks: of the matched, those to be restored first.
            kept_free: instances that others are to have, used only where there is no other.
            routing: which rule.
            draw: uniform in [0, 1), breaks ties.
            quality: how far to trust what is known of an instance's cache.
            wall_s: the fleet view's clock, to tell how old telemetry is.
        """
        choice = choose(
            Situation(
                request,
                self._roster_of(instances),
                matched_blocks,
                self.load,
                self.lengths,
                self.demand,
                now_s,
                objective=objective,
                offloaded_blocks=offloaded_blocks or {},
                kept_free=kept_free,
                turn=self._turn,
                draw=draw,
                quality=quality,
                wall_s=wall_s,
            ),
            routing=routing,
        )
        if choice is None:
            return None
        self._turn += 1
        record = choice.instance.record
        self.demand.arrived(choice.own_prefill_s, now_s)
        self.demand.routed(record.instance, request.input_tokens, record.profile.kv_capacity_tokens, now_s)
        previous = self.lengths.previous_answer(blocks)
        kind: Kind = "kv" if choice.waits_for_kv else "queued" if choice.queued else "idle"
        self._expected[request_id] = _Expected(
            attempt,
            request.input_tokens,
            previous,
            blocks[-1] if blocks else None,
            now_s,
            kind,
            choice.predicted_ttft_s,
            choice.predicted_tpot_s,
        )
        row = self.routed(
            request_id,
            attempt,
            record.instance,
            request.input_tokens,
            choice.reused_tokens,
            now_s,
            objective=objective,
            previous_output_tokens=previous,
            max_output_tokens=request.max_output_tokens,
            streamed=request.stream,
        )
        ttft_s, ttft_p90_s = self.calibration.median_and_p90(kind, choice.predicted_ttft_s)
        tpot_s, tpot_p90_s = self.calibration.median_and_p90("tpot", choice.predicted_tpot_s)
        return Decision(choice, ttft_s, ttft_p90_s, tpot_s, tpot_p90_s, previous, self.lengths.expected(row))

    def _roster_of(self, instances: Sequence[InstanceView]) -> Roster:
        """A fleet view gives out the same list for as long as the same instances are ready."""
        if self._roster is None or self._roster.instances is not instances:
            self._roster = roster_of(instances, self.load)
        return self._roster

    def noted(self, request_id: str, attempt: int, input_tokens: int, last_block: int | None) -> None:
        """A standby sees a request that another replica will decide: the answer's length is worth learning."""
        self._expected[request_id] = _Expected(attempt, input_tokens, None, last_block, 0.0)

    def routed(
        self,
        request_id: str,
        attempt: int,
        instance: str,
        input_tokens: int,
        reused_tokens: int,
        now_s: float,
        *,
        objective: Objective | None,
        previous_output_tokens: int | None,
        max_output_tokens: int,
        streamed: bool,
    ) -> int:
        """A request was sent to an instance, by this replica or another. Returns its row of answer lengths."""
        row = self.lengths.row(input_tokens, previous_output_tokens)
        expected = self._expected.get(request_id)
        if expected is not None:
            expected.previous_output_tokens = previous_output_tokens
        self.load.routed(
            request_id,
            attempt,
            instance,
            input_tokens,
            reused_tokens,
            now_s,
            tpot_objective_s=objective.tpot_s if objective else None,
            length_row=row,
            max_output_tokens=max_output_tokens,
            streamed=streamed,
        )
        return row

    def first_token(self, request_id: str, now_s: float) -> None:
        """A first token came back."""
        self._learn_speed(self.load.first_token(request_id, now_s))
        expected = self._expected.get(request_id)
        if expected is not None and expected.kind is not None and expected.first_token_s is None:
            expected.first_token_s = now_s
            self.calibration.learn(expected.kind, expected.ttft_s, now_s - expected.routed_s)

    def attempt_failed(self, request_id: str, attempt: int, now_s: float) -> None:
        """An attempt ended without a token; another may follow."""
        self.load.ended(request_id, attempt, now_s)

    def ended(
        self, request_id: str, attempt: int, now_s: float, *, completed: bool, output_tokens: int
    ) -> None:
        """A request's end, whatever it was. Only complete answers teach anything."""
        self._learn_speed(self.load.ended(request_id, attempt, now_s, output_tokens if completed else None))
        expected = self._expected.pop(request_id, None)
        if expected is None or not completed:
            return
        self.lengths.learn(
            expected.input_tokens, expected.previous_output_tokens, output_tokens, expected.last_block
        )
        if expected.first_token_s is not None and output_tokens > 1 and expected.tpot_s > 0:
            tpot_s = (now_s - expected.first_token_s) / (output_tokens - 1)
            self.calibration.learn("tpot", expected.tpot_s, tpot_s)

    def expire(self, before_s: float, now_s: float) -> int:
        """Forget requests whose end was never reported. Returns how many."""
        lost = self.load.expire(before_s, now_s)
        if len(self._expected) > len(self.load):
            self._expected = {key: known for key, known in self._expected.items() if key in self.load}
        return lost

    def _learn_speed(self, observation: Observation | None) -> None:
        if observation is None:
            return
        self._lessons += 1
        factors = self.speeds.observe(observation)
        if factors is not None:
            self.load.set_factors(observation.instance, factors.prefill, factors.step)

    @property
    def lessons(self) -> int:
        """How much was learned so far: rises with everything that `learned` would tell."""
        return self._lessons

    @property
    def experienced(self) -> bool:
        """Whether it has learned anything by itself."""
        return self._lessons > 0

    def learned(self, pool: str, site: str, time_ns: int) -> PoolLatency:
        """All that was learned, to be published."""
        return PoolLatency(
            pool=pool,
            site=site,
            time_ns=time_ns,
            factors={name: one for name, one in self.speeds.all().items() if name in self._profiles},
            profiles=dict(self._profiles),
            ratios=self.calibration.quantiles(),
            lengths=self.lengths.counts(),
        )

    def summary(
        self,
        pool: str,
        site: str,
        instances: Sequence[InstanceView],
        told_of: Callable[[str], Iterable[int]] | None,
        waiting_s: float,
        now_s: float,
        time_ns: int,
    ) -> SiteSummary:
        """What the pool is busy with and has cached, for other sites.

        Args:
            pool: its name.
            site: where it is.
            instances: its ready instances.
            told_of: the cached blocks of an instance that may be told of; None: tell of none this time.
            waiting_s: prefill of requests held before they get here.
            now_s: engine seconds.
            time_ns: Unix time.
        """
        told = first_free(self.load, instances, now_s)
        summary = SiteSummary(
            site=site,
            pool=pool,
            time_ns=time_ns,
            loads=pack_load(self.load, self.lengths, told, now_s),
            waiting_s=waiting_s,
        )
        if told_of is None:
            return summary
        prefixes, one_in = pack_prefixes([told_of(view.record.instance) for view in told])
        return msgspec.structs.replace(summary, prefixes=prefixes, one_in=one_in)

    def restore(self, learned: PoolLatency) -> None:
        """Take up what a replica had learned before."""
        self.calibration.restore(learned.ratios)
        self.lengths.restore(learned.lengths)
        self.speeds.restore(
            (instance, learned.profiles.get(instance, ""), factors)
            for instance, factors in learned.factors.items()
        )
        for instance in self._profiles:
            factors = self.speeds.joined(instance, self._profiles[instance])
            self.load.set_factors(instance, factors.prefill, factors.step)
