"""The node agent: reports one node's engines to the fleet."""

import aiohttp

from node_agent import admin, instruments
from node_agent.agent import NodeAgent
from node_agent.engine import NodeContext
from node_agent.registry import Registry
from node_agent.settings import NodeAgentSettings
from tokenfleet.service import Service, run_service

FOLDER_INTERVAL_S = 0.2
REGISTRY_INTERVAL_S = 0.2


async def start(service: Service[NodeAgentSettings]) -> None:
    """Follow the engines of the folder until the service stops."""
    settings = service.settings
    context = NodeContext(
        settings=settings,
        bus=service.bus,
        clock=service.clock,
        session=aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)),
        hasher=service.block_hasher(),
    )
    agent = NodeAgent(context, Registry(service.bus, service.clock, settings.site))
    service.on_stop(agent.stop)
    admin.add_routes(service.admin_app, agent)
    service.health = lambda: {"node": settings.node, **admin.health(agent)}
    instruments.register(service.observability.meter, agent)
    service.spawn(agent.relist_after_reconnect())
    service.every(FOLDER_INTERVAL_S, agent.follow_folder)
    service.every(REGISTRY_INTERVAL_S, agent.update_registry)


def main() -> None:
    run_service("node-agent", NodeAgentSettings, start)
