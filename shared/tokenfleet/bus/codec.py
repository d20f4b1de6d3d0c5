"""Encoding: facts are JSON (readable with any NATS client), telemetry is MessagePack."""

from functools import cache
from typing import Any, Literal, TypeVar

import msgspec

from tokenfleet.errors import ContractError, RemoteError

Codec = Literal["json", "msgpack"]
T = TypeVar("T")

_ENCODERS = {"json": msgspec.json.Encoder().encode, "msgpack": msgspec.msgpack.Encoder().encode}


@cache
def _decoder(message_type: Any, codec: Codec) -> Any:
    module = msgspec.json if codec == "json" else msgspec.msgpack
    return module.Decoder(message_type)


def encode(message: Any, codec: Codec = "json") -> bytes:
    """The message's bytes; bytes pass through unchanged."""
    return message if isinstance(message, bytes) else _ENCODERS[codec](message)


def decode(data: bytes, message_type: type[T], codec: Codec = "json") -> T:
    """Decode and validate one message.

    Raises:
        ContractError: it is not what its subject promises.
    """
    try:
        return _decoder(message_type, codec).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ContractError(f"not a valid {message_type.__name__}: {error}") from error


class ErrorEnvelope(msgspec.Struct, frozen=True, kw_only=True):
    """What a served request answers when its handler failed."""

    error_kind: str
    error_message: str


def decode_reply(data: bytes, reply_type: type[T]) -> T:
    """Decode a reply.

    Raises:
        RemoteError: the other side answered with an error envelope.
        ContractError: the reply is neither.
    """
    if data.startswith(b'{"error_kind":'):
        envelope = decode(data, ErrorEnvelope)
        raise RemoteError(envelope.error_kind, envelope.error_message)
    return decode(data, reply_type)
