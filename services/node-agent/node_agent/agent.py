"""The node: which engines are followed, which are listed."""

import asyncio

import structlog

from node_agent.engine import Engine, NodeContext
from node_agent.engine_folder import EngineFolder
from node_agent.policy.engine_spec import EngineSpec
from node_agent.registry import Registry

log = structlog.get_logger(__name__)

RECONNECT_CHECK_S = 60.0


class NodeAgent:
    """Engines join when their file appears, leave when it goes, and start anew when it changes."""

    def __init__(self, context: NodeContext, registry: Registry) -> None:
        self.engines: dict[str, Engine] = {}
        self._context = context
        self._registry = registry
        self._folder = EngineFolder(context.settings.engines_dir)

    async def follow_folder(self) -> None:
        """Bring the engines to what the folder says; call this periodically."""
        specs = self._folder.scan()
        for instance, engine in list(self.engines.items()):
            if specs.get(instance) != engine.spec:
                log.info("engine leaves", instance=instance, replaced=instance in specs)
                del self.engines[instance]
                await engine.stop()
        for instance, spec in specs.items():
            if instance not in self.engines:
                self._join(instance, spec)

    def _join(self, instance: str, spec: EngineSpec) -> None:
        engine = Engine(instance, spec, self._context)
        self.engines[instance] = engine
        engine.start()
        log.info("engine joins", instance=instance, url=spec.url, kv_events=spec.kv_events_endpoint)

    async def update_registry(self) -> None:
        """List the engines that can be reached; call this periodically."""
        records = {name: engine.record for name, engine in self.engines.items() if engine.listed}
        await self._registry.reconcile(records)

    async def relist_after_reconnect(self) -> None:
        """Put every record again whenever NATS comes back, since it may have come back empty."""
        while True:
            await self._context.bus.wait_reconnected(RECONNECT_CHECK_S)
            self._registry.forget()

    async def stop(self) -> None:
        """Leave the fleet: records first, so that nothing more is routed here."""
        await self._registry.close()
        await asyncio.gather(*(engine.stop() for engine in self.engines.values()), return_exceptions=True)
        await self._context.session.close()
