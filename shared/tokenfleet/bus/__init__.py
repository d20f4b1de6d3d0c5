"""The one way onto NATS: core messages, request/reply, acknowledged publishes, pulls and KV buckets."""

from tokenfleet.bus.bucket import Bucket
from tokenfleet.bus.connection import Bus, Codec, Delivery
from tokenfleet.bus.consumer import Fetched
from tokenfleet.bus.reader import Stored, StreamState

__all__ = ["Bucket", "Bus", "Codec", "Delivery", "Fetched", "Stored", "StreamState"]
