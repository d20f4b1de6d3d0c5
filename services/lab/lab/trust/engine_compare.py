"""The emulated engine in real time beside the simulator, on the same requests at the same times."""

import msgspec

from lab.baselines.simple import RoundRobin
from lab.sim.cluster import Cluster, InstanceSpec
from lab.sim.simulator import Simulation
from lab.sim.workload import TraceWorkload
from lab.traces.model import Trace
from lab.trust.agreement import Agreement, agreement
from lab.trust.engine_drive import Observed, OnDone, drive
from lab.trust.engine_process import RunningEngine, emulated_engine
from lab.trust.served import PATIENCE_S, Figures, Served, figures, simulated

BAR = 0.05
DISTURBED_SHARE = 0.5
"""The machine must not use up more than this share of the bar at the median TTFT."""


class EngineTrust(msgspec.Struct, frozen=True, kw_only=True):
    """What the comparison found."""

    requests: int
    time_scale: float
    measured: Figures
    simulated: Figures
    agreement: Agreement
    disturbance_s: float
    """Engine seconds by which the machine disturbed timing (see `Observed`)."""

    @property
    def timely(self) -> bool:
        """Whether the machine kept time well enough for a disagreement to mean anything."""
        return self.disturbance_s <= DISTURBED_SHARE * self.agreement.bar * self.simulated.ttft_p50_s


async def compare_engine(
    trace: Trace, speed: float, time_scale: float, on_done: OnDone = lambda: None
) -> EngineTrust:
    """Run a trace through one emulated engine over HTTP, then through the simulator as it was really sent.

    Raises:
        TrustError: the engine did not start, or did not answer as it should.
    """
    async with emulated_engine(time_scale) as engine:
        observed = await drive(engine, trace, speed, on_done)
    measured, expected = figures(observed.served), figures(simulate(engine, observed))
    return EngineTrust(
        requests=len(trace.requests),
        time_scale=time_scale,
        measured=measured,
        simulated=expected,
        agreement=agreement(measured, expected, BAR),
        disturbance_s=observed.disturbance_s,
    )


def simulate(engine: RunningEngine, observed: Observed) -> list[Served]:
    """The requests that were sent, in virtual time."""
    cluster = Cluster(
        instances=(InstanceSpec(name="engine", profile=engine.profile),), block_size=engine.block_tokens
    )
    work = TraceWorkload(observed.sent, 1.0, PATIENCE_S)
    return simulated(Simulation(cluster, work, RoundRobin(0)).run().outcomes)
