"""Another policy for the time of a run, through the same KV bucket that `tokenfleet policy set` writes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from lab.replay.options import policy_for
from tokenfleet import subjects
from tokenfleet.bus import Bus
from tokenfleet.contracts.policy import Policy, Routing
from tokenfleet.errors import PolicyError

PROPAGATION_S = 0.5
"""Services watch the bucket and have a change within milliseconds; this leaves room for a busy machine."""


@asynccontextmanager
async def policy_during(bus: Bus, name: Routing | None) -> AsyncIterator[None]:
    """Run the body under the named routing and put the former policy back, whatever happens.

    Raises:
        PolicyError: the live policy is not one this version understands.
    """
    if name is None:
        yield
        return
    bucket = await bus.bucket(subjects.BUCKET_POLICY)
    stored = await bucket.get(subjects.POLICY_KEY)
    try:
        live = msgspec.json.decode(stored[0], type=Policy) if stored else Policy()
    except msgspec.DecodeError as error:
        raise PolicyError(
            f"The live policy cannot be read: {error}. Set it anew with `tokenfleet policy set`."
        ) from error
    former = stored[0] if stored else msgspec.json.encode(live)
    await bucket.put(subjects.POLICY_KEY, msgspec.json.encode(policy_for(name, live)))
    try:
        await asyncio.sleep(PROPAGATION_S)
        yield
    finally:
        await bucket.put(subjects.POLICY_KEY, former)
