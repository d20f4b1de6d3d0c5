"""The control plane's messages: low rate, pydantic, carried by FastStream, documented by AsyncAPI."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Liveness = Literal["alive", "suspect", "dead"]


class ControlMessage(BaseModel):
    model_config = ConfigDict(frozen=True)

    schema_version: int = 1
    time_ns: int = Field(description="Unix time of the reading, in nanoseconds.")
    site: str


class InstanceCapacity(BaseModel):
    """One instance in a roll-up. Unknown is None, never zero."""

    model_config = ConfigDict(frozen=True)

    instance: str
    liveness: Liveness
    age_s: float | None = Field(description="Wall seconds since the last reading; None if there was none.")
    draining: bool = False
    waiting: int | None = None
    running: int | None = None
    kv_usage: float | None = None


class Capacity(ControlMessage):
    """How full one pool of a site is, once a second."""

    pool: str
    model: str
    version: str
    instances: list[InstanceCapacity]
    ready: int = Field(description="Instances alive and not draining.")
    waiting: int | None
    running: int | None
    kv_free_tokens: int | None
    free_slots: int | None = Field(description="Requests the ready instances could still run at once.")
    region: str | None = Field(
        default=None, description="Where the site lies; None unless all instances agree."
    )
    adapters: list[str] = Field(default=[], description="Those that a ready instance has.")
    max_prompt_tokens: int | None = Field(
        default=None, description="The longest prompt that a ready instance takes; None if none is ready."
    )


class SiteCapacity(ControlMessage):
    """A site's pools added up."""

    pools: int
    instances: int
    ready: int
    running: int
    waiting: int


class GoodputWindow(ControlMessage):
    """What the ledger saw of one pool and class in a window of time."""

    pool: str
    request_class: str
    window_s: float
    offered: int
    completed: int
    rejected: int
    timed_out: int
    cancelled: int
    failed: int
    lost: int = Field(default=0, description="Nobody said how they ended.")
    met: int
    output_tokens: int
    good_tokens: int


class Adjusted(ControlMessage):
    """A knob of a pool was moved: by SLOMax's feedback, with the window of outcomes it did so on, or to 0 by FleetMind,
    which rolled its version back.
    """

    pool: str
    request_class: str | None = Field(default=None, description="None: the knob is of the whole pool.")
    knob: str = Field(description="As the policy names it, where it is a setting of the policy.")
    before: float = Field(description="Of a margin: as a multiple of what the policy has.")
    after: float
    reason: str
    offered: int | None = Field(default=None, description="Requests of the window that are over.")
    admitted: int | None = None
    refused: int | None = None
    met: int | None = Field(default=None, description="Of the admitted, those that met their objective.")


class PoolPlanned(BaseModel):
    """What one pool is, and should be."""

    model_config = ConfigDict(frozen=True)

    site: str
    pool: str
    model: str
    ready: int
    warming: int = Field(description="Begun, and never heard of yet.")
    wanted: int = Field(description="Replicas it should have, those that are warming included.")
    prewarm: int = Field(
        description="How many to begin now, so that they are ready when the forecast comes true."
    )
    work: float = Field(description="Seconds of one instance per second that it is planned to serve.")
    bears: float = Field(description="The same that the wanted replicas bear.")
    reason: str

    @property
    def now(self) -> int:
        """Replicas that run, ready or not."""
        return self.ready + self.warming


class DemandForecast(BaseModel):
    """The work that is expected of one model at one entry, in seconds of one instance per second."""

    model_config = ConfigDict(frozen=True)

    site: str = Field(description="Where the requests enter.")
    model: str
    sites: list[str] | None = Field(default=None, description="Where they may run; None: everywhere.")
    horizon_s: float
    expected: float
    upper: float = Field(description="Nine times in ten it is no more: what is planned for.")
    error: float | None = Field(
        description="Weighted absolute percentage error at this horizon so far, as a share; None: not known yet."
    )
    naive_error: float | None = Field(description="The same of a forecast that says: as now.")
    form: str = Field(description="What made the forecast.")


class UnservedWork(BaseModel):
    """Work that no replica which may be had can bear."""

    model_config = ConfigDict(frozen=True)

    site: str = Field(description="Where the requests enter.")
    model: str
    work: float
    reason: str


class Plan(ControlMessage):
    """FleetMind's plan of replicas, and why. `site` is where it was made."""

    covers: list[str] = Field(description="The sites it is made for.")
    dry_run: bool = Field(description="Nobody is to act on it.")
    pools: list[PoolPlanned]
    forecasts: list[DemandForecast]
    unserved: list[UnservedWork]
