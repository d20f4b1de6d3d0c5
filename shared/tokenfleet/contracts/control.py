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


class Plan(ControlMessage):
    """FleetMind's view of where each model can run, and why."""

    model: str
    pools: list[str]
    reason: str
