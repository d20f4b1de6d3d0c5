"""This project's simulator beside Dynamo's replay: the same requests, the same engine.

Three questions. Given round robin, do both simulators serve the requests alike? Given the same engine, how does
TokenFleet compare with Dynamo's own KV router? And which of the two replays the trace faster?
"""

import os
import time
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path

import msgspec

from lab.baselines.dynamo_kv import DynamoKv
from lab.baselines.simple import RoundRobin
from lab.sim.api import Policy
from lab.sim.cluster import Cluster, InstanceSpec
from lab.sim.simulator import Simulation
from lab.sim.tokenfleet_policy import TokenFleetPolicy
from lab.sim.workload import TraceWorkload
from lab.traces.model import Trace
from lab.trust.agreement import Agreement, agreement
from lab.trust.dynamo_engine import WORKERS, ReplayEngine, dynamo_timing
from lab.trust.dynamo_replay import ENVIRONMENT, Router, run_replay, write_trace
from lab.trust.served import PATIENCE_S, Figures, Served, figures, simulated
from tokenfleet.contracts.policy import Policy as LivePolicy

BAR = 0.10
SMALL_BLOCK_TOKENS = 16
"""At which the two are timed against each other."""

ROUND_ROBIN = "round_robin"
KV_ROUTER = "kv_router"
POLICIES: dict[str, Callable[[int], Policy]] = {
    ROUND_ROBIN: RoundRobin,
    "dynamo_kv": DynamoKv,
    "tokenfleet": TokenFleetPolicy,
    "tokenfleet_admit_all": lambda seed: TokenFleetPolicy(seed, LivePolicy(admission=False)),
}
"""What runs in this project's simulator; `dynamo_kv` is the lab's re-implementation of the KV router."""

SEARCHED_SPEEDS = tuple(step / 2 for step in range(2, 25))
QUEUES_S = 4.0
"""Queues form where the P95 of TTFT exceeds the reference objective's limit for prompts up to 16k tokens."""

Progress = Callable[[str], None]


class SpeedResult(msgspec.Struct, frozen=True, kw_only=True):
    """All runs at one speed."""

    speed: float
    agreement: Agreement
    """Round robin: Dynamo's replay is the reference."""
    dynamo: dict[str, Figures]
    """By Dynamo's router modes."""
    ours: dict[str, Figures]
    """By this project's policies."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The whole trace by round robin, timed one after the other on this machine."""

    requests: int
    workers: int
    speed: float
    block_tokens: int
    dynamo_s: float
    dynamo_cpu_s: float
    ours_s: float
    ours_cpu_s: float
    load_before: float
    """The machine's load average over a minute, before."""


class Comparison:
    """Runs of one trace through both.

    Args:
        trace: the requests; both get exactly these arrival times.
        folder: where the trace is written for Dynamo.
        seed: of the policies' draws.
        environment: where Dynamo's replay is installed.
        on_step: told what begins.
    """

    def __init__(
        self,
        trace: Trace,
        folder: Path,
        *,
        workers: int = WORKERS,
        seed: int = 0,
        environment: Path = ENVIRONMENT,
        on_step: Progress = lambda _: None,
    ) -> None:
        self.trace = trace
        self._file = folder / "trace.jsonl"
        self._workers = workers
        self._seed = seed
        self._environment = environment
        self._on_step = on_step
        write_trace(trace, self._file)

    def queueing_speed(self, router: Router) -> float:
        """The lowest speed in steps of 0.5 at which queues form under one of Dynamo's routers."""

        def queues(speed: float) -> bool:
            return figures(self.dynamo(router, speed, ReplayEngine())).ttft_p95_s > QUEUES_S

        found = bisect_left(SEARCHED_SPEEDS, True, key=queues)
        return SEARCHED_SPEEDS[min(found, len(SEARCHED_SPEEDS) - 1)]

    def at_speed(self, speed: float, policies: tuple[str, ...] = tuple(POLICIES)) -> SpeedResult:
        """Both simulators by round robin, Dynamo's KV router, and this project's policies."""
        engine = ReplayEngine()
        dynamo = {router: figures(self.dynamo(router, speed, engine)) for router in (ROUND_ROBIN, KV_ROUTER)}
        ours = {name: figures(self.ours(name, speed, engine)) for name in policies}
        return SpeedResult(
            speed=speed,
            agreement=agreement(dynamo[ROUND_ROBIN], ours[ROUND_ROBIN], BAR),
            dynamo=dynamo,
            ours=ours,
        )

    def dynamo(self, router: Router, speed: float, engine: ReplayEngine) -> list[Served]:
        """One of Dynamo's routers in Dynamo's replay."""
        self._on_step(f"Dynamo's replay, {router} at {speed:g}x")
        return run_replay(
            self._file,
            self.trace.requests[0].trace_block_tokens,
            router=router,
            workers=self._workers,
            speed=speed,
            engine=engine,
            environment=self._environment,
        ).requests

    def ours(self, policy: str, speed: float, engine: ReplayEngine) -> list[Served]:
        """One policy in this project's simulator, over Dynamo's engine."""
        self._on_step(f"simulator, {policy} at {speed:g}x")
        return simulated(self._simulation(policy, speed, engine).run().outcomes)

    def timing(self, speed: float) -> Timing:
        """Both by round robin at 16-token blocks, without reports of single requests."""
        engine = ReplayEngine(block_tokens=SMALL_BLOCK_TOKENS)
        load_before = os.getloadavg()[0]
        self._on_step(f"timing Dynamo's replay at {SMALL_BLOCK_TOKENS}-token blocks")
        dynamo = run_replay(
            self._file,
            self.trace.requests[0].trace_block_tokens,
            router=ROUND_ROBIN,
            workers=self._workers,
            speed=speed,
            engine=engine,
            requests=False,
            environment=self._environment,
        )
        self._on_step(f"timing the simulator at {SMALL_BLOCK_TOKENS}-token blocks")
        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        self._simulation(ROUND_ROBIN, speed, engine).run()
        return Timing(
            requests=len(self.trace.requests),
            workers=self._workers,
            speed=speed,
            block_tokens=SMALL_BLOCK_TOKENS,
            dynamo_s=dynamo.wall_s,
            dynamo_cpu_s=dynamo.cpu_s,
            ours_s=time.perf_counter() - started_s,
            ours_cpu_s=time.process_time() - started_cpu_s,
            load_before=load_before,
        )

    def _simulation(self, policy: str, speed: float, engine: ReplayEngine) -> Simulation:
        timing = dynamo_timing(engine.capacity_tokens)
        cluster = Cluster(
            instances=tuple(
                InstanceSpec(name=f"worker-{number}", profile=engine.profile, timing=timing)
                for number in range(self._workers)
            ),
            block_size=engine.block_tokens,
        )
        work = TraceWorkload(self.trace, speed, PATIENCE_S)
        return Simulation(cluster, work, POLICIES[policy](self._seed))
