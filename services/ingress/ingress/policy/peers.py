"""What the other sites of the fleet say of their instances. Pure; times are monotonic wall seconds."""

from collections.abc import Callable

from tokenfleet.contracts.fleet import InstanceRecord, SiteRegistry

SILENT_AFTER_S = 5.0
"""A site that has said nothing for so long is cut off: it is offered no requests."""
FORGOTTEN_AFTER_S = 60.0
"""Until then its instances can still be called, if its own deciders send a request there."""


class PeerSites:
    """The instances of other sites, by site and name: two sites may use the same name."""

    def __init__(self) -> None:
        self._sites: dict[str, tuple[SiteRegistry, dict[str, InstanceRecord], float]] = {}

    def apply(self, registry: SiteRegistry, now_s: float) -> None:
        """A site told its instances. What is older than the last it told is ignored."""
        known = self._sites.get(registry.site)
        if known is None or registry.time_ns >= known[0].time_ns or now_s - known[2] > SILENT_AFTER_S:
            records = {record.instance: record for record in registry.instances}
            self._sites[registry.site] = registry, records, now_s

    def record(self, site: str, instance: str, now_s: float) -> InstanceRecord | None:
        """How to reach an instance of another site."""
        known = self._sites.get(site)
        if known is None or now_s - known[2] > FORGOTTEN_AFTER_S:
            return None
        return known[1].get(instance)

    def ready(
        self,
        model: str,
        version: str | None,
        now_s: float,
        may_use: Callable[[InstanceRecord], bool] = lambda _: True,
    ) -> list[InstanceRecord]:
        """A model's ready instances at the first site, by name, that has any; of one pool, the least by name.

        Only those that may be used.
        """
        for site in sorted(self._sites):
            registry, records, heard_s = self._sites[site]
            if now_s - heard_s > SILENT_AFTER_S:
                continue
            found = [
                record
                for name, record in records.items()
                if name in registry.ready
                and record.model == model
                and version in (None, record.version)
                and may_use(record)
            ]
            if found:
                pool = min(record.pool for record in found)
                return [record for record in found if record.pool == pool]
        return []

    def heard(self) -> set[str]:
        """The sites that have ever said what they have."""
        return set(self._sites)

    def pools(self) -> set[str]:
        """Every pool that any of them has."""
        return {record.pool for _, records, _ in self._sites.values() for record in records.values()}

    def adapters(self) -> dict[str, str]:
        """The model of each adapter that any of them has."""
        return {
            adapter: record.model
            for _, records, _ in self._sites.values()
            for record in records.values()
            for adapter in record.adapters
        }

    def counts(self, now_s: float) -> dict[str, dict[str, int | float]]:
        """By site: instances ready and known, and for how long it has been silent."""
        return {
            site: {
                "ready": len(registry.ready),
                "known": len(records),
                "silent_s": round(now_s - heard_s, 1),
            }
            for site, (registry, records, heard_s) in sorted(self._sites.items())
        }
