"""What TokenFleet knows of its engines, heard on its bus as any of its services hears it."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from tokenfleet import subjects
from tokenfleet.blocks import HASH_BYTES
from tokenfleet.bus import Bus, Delivery
from tokenfleet.clock import SystemClock
from tokenfleet.contracts.fleet import InstanceRecord, InstanceState, KvSnapshot
from tokenfleet.contracts.requests import Routed
from tokenfleet.fleet_view import FleetView
from tokenfleet.live import watch_fleet
from tokenfleet.settings import Settings

T = TypeVar("T")


class FleetObserver:
    """Keeps a fleet view and every routing decision, on a thread of its own."""

    def __init__(self, settings: Settings) -> None:
        self.view = FleetView()
        self.routed: dict[str, Routed] = {}
        """TokenPilot's first decision on each request; asked again, it may decide anew when all is over."""
        self._settings = settings
        self._clock = SystemClock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="observer", daemon=True)
        self._thread.start()
        self._bus = self._run(self._connect())

    def close(self) -> None:
        self._run(self._bus.drain())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=60)

    async def _connect(self) -> Bus:
        async def on_routed(event: Routed, _: Delivery) -> None:
            self.routed.setdefault(event.request_id, event)

        bus = await Bus.connect(self._settings, "observer")
        await watch_fleet(bus, self._settings.site, self._clock, self.view)
        subject = subjects.request_events(self._settings.site, "routed", answer=True)
        await bus.subscribe(subject, Routed, on_routed, ordered=True)
        return bus

    def record(self, instance: str) -> InstanceRecord | None:
        """The registry's entry of an instance."""
        view = self.view.get(instance)
        return view.record if view else None

    def state(self, instance: str) -> InstanceState | None:
        """The last reading of an instance."""
        view = self.view.get(instance)
        return view.state if view else None

    def snapshot(self, instance: str) -> KvSnapshot:
        """What its node agent answers to TokenPilot's question for an instance's blocks."""
        subject = subjects.node(self._settings.site, instance, "snapshot")
        return self._run(self._bus.request(subject, {}, KvSnapshot, timeout_s=10.0))

    def blocks(self, instance: str) -> set[bytes]:
        """The fleet's names of the blocks that an instance holds."""
        packed = self.snapshot(instance).blocks
        return {packed[at : at + HASH_BYTES] for at in range(0, len(packed), HASH_BYTES)}
