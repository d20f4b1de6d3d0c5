"""Processes that answer one request each way: the bus of the decision path, and FastStream."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pydantic
from faststream.nats import NatsBroker, NatsMessage
from faststream.nats.security import NatsUserPassword

from tokenfleet.bus import Bus
from tokenfleet.control_plane import connect_broker
from tokenfleet.settings import Settings

SUBJECT = "tf.v1.bench.echo"


class Ask(msgspec.Struct, frozen=True):
    """As many fields as an event without its block hashes has."""

    event_id: str
    request_id: str
    attempt: int
    tenant: str
    pool: str
    site: str
    time_ns: int
    model: str
    ingress: str
    input_tokens: int
    max_output_tokens: int
    stream: bool


class Answer(msgspec.Struct, frozen=True):
    request_id: str
    instance: str
    reused_tokens: int
    predicted_ttft_s: float


class AskModel(pydantic.BaseModel):
    event_id: str
    request_id: str
    attempt: int
    tenant: str
    pool: str
    site: str
    time_ns: int
    model: str
    ingress: str
    input_tokens: int
    max_output_tokens: int
    stream: bool


class AnswerModel(pydantic.BaseModel):
    request_id: str
    instance: str
    reused_tokens: int
    predicted_ttft_s: float


ASK = Ask(
    event_id="4f2c0ad1b2c84e0f9d7a1f6d2f6f0c11.1.submitted",
    request_id="4f2c0ad1b2c84e0f9d7a1f6d2f6f0c11",
    attempt=1,
    tenant="tenant-1",
    pool="llama-70b@v1",
    site="local",
    time_ns=1_764_590_400_000_000_000,
    model="llama-70b",
    ingress="ingress-1",
    input_tokens=12_800,
    max_output_tokens=512,
    stream=True,
)


def answer_to(ask: Ask) -> Answer:
    return Answer(ask.request_id, "instance-1", 6_400, 0.25)


@asynccontextmanager
async def tokenfleet_bus(settings: Settings) -> AsyncIterator[None]:
    """Our own: a task per message, an error envelope when the handler fails."""
    bus = await Bus.connect(settings, "responder")

    async def handler(ask: Ask) -> Answer:
        return answer_to(ask)

    await bus.serve(SUBJECT, Ask, handler)
    yield
    await bus.drain()


@asynccontextmanager
async def faststream_pydantic(settings: Settings) -> AsyncIterator[None]:
    """FastStream as the control plane uses it."""
    broker = await connect_broker(settings, "responder")

    @broker.subscriber(SUBJECT)
    async def handler(ask: AskModel) -> AnswerModel:
        return AnswerModel(
            request_id=ask.request_id, instance="instance-1", reused_tokens=6_400, predicted_ttft_s=0.25
        )

    async with broker:
        await broker.start()
        yield


@asynccontextmanager
async def faststream_msgspec(settings: Settings) -> AsyncIterator[None]:
    """The cheapest FastStream found that still decodes: own decoder, no dependency injection, no log."""
    password = settings.nats_password
    broker = NatsBroker(
        settings.nats_url,
        security=NatsUserPassword(settings.nats_user or "", password.get_secret_value() if password else ""),
        inbox_prefix=f"_INBOX_{settings.nats_user}",
        apply_types=False,
        logger=None,
    )
    decode = msgspec.json.Decoder(Ask).decode

    async def decoder(message: NatsMessage) -> Ask:
        return decode(message.body)

    @broker.subscriber(SUBJECT, decoder=decoder)
    async def handler(ask: Ask) -> bytes:
        return msgspec.json.encode(answer_to(ask))

    async with broker:
        await broker.start()
        yield
