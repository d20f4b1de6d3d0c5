"""One process's view of a site's instances: who is registered, what they last said, who is alive. Pure.

Times are monotonic wall seconds of the process that keeps the view.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tokenfleet.contracts.fleet import InstanceRecord, InstanceState

Liveness = Literal["alive", "suspect", "dead"]

SUSPECT_AFTER_S = 0.7
"""Silence after which an instance is doubted: seven readings at the usual ten a second."""
DEAD_AFTER_S = 1.5
"""Silence after which it is given up, so that a death is known within two seconds."""
UNREACHABLE_DEAD_AFTER_S = 0.5
"""How long its own node agent may fail to reach an engine before it is given up."""


@dataclass(slots=True)
class InstanceView:
    """One registered instance. `state` is its last reading, which may be old: see `age_s`."""

    record: InstanceRecord
    known_since_s: float
    state: InstanceState | None = None
    heard_s: float | None = None
    unreachable_since_s: float | None = None

    def age_s(self, now_s: float) -> float | None:
        """Seconds since the last reading, None if there was none yet."""
        return None if self.heard_s is None else now_s - self.heard_s

    def liveness(self, now_s: float) -> Liveness:
        """Alive, suspect or dead. An instance that says nothing is doubted first; it is never called full."""
        if self.unreachable_since_s is not None:
            gone = now_s - self.unreachable_since_s >= UNREACHABLE_DEAD_AFTER_S
            return "dead" if gone else "suspect"
        silence = now_s - (self.known_since_s if self.heard_s is None else self.heard_s)
        if silence >= DEAD_AFTER_S:
            return "dead"
        return "suspect" if self.heard_s is None or silence >= SUSPECT_AFTER_S else "alive"


class FleetView:
    """Applies registry changes and readings; answers who can take a request."""

    def __init__(self) -> None:
        self._by_key: dict[str, InstanceView] = {}
        self._by_name: dict[str, InstanceView] = {}
        self._pools: dict[str, dict[str, InstanceView]] = {}
        self._heard_any_s: float | None = None
        self._ready: dict[str, tuple[float, float, list[InstanceView]]] = {}
        """By pool: from when until when the same instances are ready, whatever is heard of those alive."""

    def apply_record(self, key: str, record: InstanceRecord | None, now_s: float) -> None:
        """A registry entry was written, or (None) is gone."""
        known = self._by_key.get(key)
        if known is not None and record is not None and known.record == record:
            return
        self._ready.clear()
        if known is not None:
            self._forget(key, known)
        if record is None:
            return
        view = InstanceView(record, now_s)
        if known is not None and known.record.generation == record.generation:
            view.known_since_s = known.known_since_s
            view.state, view.heard_s = known.state, known.heard_s
            view.unreachable_since_s = known.unreachable_since_s
        self._by_key[key] = view
        self._by_name[record.instance] = view
        self._pools.setdefault(record.pool, {})[record.instance] = view

    def _forget(self, key: str, view: InstanceView) -> None:
        del self._by_key[key]
        self._by_name.pop(view.record.instance, None)
        pool = self._pools[view.record.pool]
        pool.pop(view.record.instance, None)
        if not pool:
            del self._pools[view.record.pool]

    def apply_state(self, state: InstanceState, now_s: float) -> bool:
        """A reading arrived; False when it was ignored (unknown instance, or older than what is known)."""
        self._heard_any_s = now_s
        view = self._by_name.get(state.instance)
        if view is None or state.generation < view.record.generation:
            return False
        if view.state is not None and state.time_ns < view.state.time_ns:
            return False
        if not state.reachable or view.liveness(now_s) != "alive":
            self._ready.pop(view.record.pool, None)
        view.state, view.heard_s = state, now_s
        if state.reachable:
            view.unreachable_since_s = None
        elif view.unreachable_since_s is None:
            view.unreachable_since_s = now_s
        return True

    def get(self, instance: str) -> InstanceView | None:
        return self._by_name.get(instance)

    def instances(self) -> Iterable[InstanceView]:
        return self._by_name.values()

    def pools(self) -> Iterable[str]:
        """Pools with at least one registered instance."""
        return self._pools.keys()

    def pool(self, pool: str) -> list[InstanceView]:
        """All registered instances of a pool, whatever their state."""
        return list(self._pools.get(pool, {}).values())

    def pools_of_model(self, model: str) -> list[str]:
        return sorted(name for name in self._pools if name.rpartition("@")[0] == model)

    def models(self) -> list[str]:
        return sorted({name.rpartition("@")[0] for name in self._pools})

    def ready(self, pool: str, now_s: float) -> list[InstanceView]:
        """Instances of a pool that may be sent a request, by name.

        Those alive and not draining; if there are none, the suspect ones that were heard before. When nothing at all has been heard
        for a while it is this process that is cut off, so the instances last known to be reachable remain:
        a stalled reading must not halt the fleet. The same list, not to be changed, is given out for as long as
        the same instances are ready.
        """
        known = self._ready.get(pool)
        if known is not None and known[0] <= now_s < known[1]:
            return known[2]
        ready, until_s = self._work_out_ready(pool, now_s)
        self._ready[pool] = now_s, until_s, ready
        return ready

    def unheard(self, pool: str, now_s: float) -> list[InstanceView]:
        """Instances of a pool that are registered and have said nothing yet; before long their silence means death."""
        return [
            view
            for view in self.pool(pool)
            if view.heard_s is None and view.liveness(now_s) == "suspect" and not view.record.draining
        ]

    def _work_out_ready(self, pool: str, now_s: float) -> tuple[list[InstanceView], float]:
        """The ready instances, and until when that stays true if nothing is heard at all."""
        until_s = now_s
        usable = [view for view in self._pools.get(pool, {}).values() if not view.record.draining]
        graded = [(view, view.liveness(now_s)) for view in usable]
        ready = [view for view, grade in graded if grade == "alive"]
        if ready:
            until_s = min(view.heard_s or 0.0 for view in ready) + SUSPECT_AFTER_S
        else:
            ready = [view for view, grade in graded if grade == "suspect" and view.heard_s is not None]
        if not ready and self._blind(now_s):
            ready = [view for view in usable if view.unreachable_since_s is None]
        return sorted(ready, key=lambda view: view.record.instance), until_s

    def _blind(self, now_s: float) -> bool:
        return self._heard_any_s is None or now_s - self._heard_any_s >= DEAD_AFTER_S
