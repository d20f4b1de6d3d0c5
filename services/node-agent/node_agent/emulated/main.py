"""Runs one emulated engine as a process: `tokenfleet run emulated-engine`."""

import asyncio
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import uvloop
from aiohttp import web

from node_agent.emulated.driver import EngineDriver
from node_agent.emulated.kv_events import KvEventPublisher
from node_agent.emulated.server import EngineServer
from node_agent.emulated.settings import OFF, EngineSettings
from tokenfleet.clock import SystemClock
from tokenfleet.engine.kv_cache import KvChange
from tokenfleet.engine.model import EngineModel
from tokenfleet.errors import ConfigurationError, TokenFleetError
from tokenfleet.settings import load

SHUTDOWN_S = 0.5
"""Wall seconds that open streams get to notice; then they are cut."""

log = logging.getLogger("emulated-engine")


def main() -> None:
    """Serve until SIGTERM or SIGINT. Exits with status 1 if it cannot start."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    try:
        uvloop.run(serve(load(EngineSettings)))
    except TokenFleetError as error:
        log.error("%s", error)
        sys.exit(1)


async def serve(settings: EngineSettings) -> None:
    """Run one engine until a signal to stop.

    Raises:
        ConfigurationError: a port is taken or the host is not this machine's.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with AsyncExitStack() as stack:
        publisher = _publisher(settings)
        if publisher is not None:
            publisher.start()
            stack.callback(publisher.stop)
        driver = _driver(settings, publisher)
        stack.callback(driver.stop)
        server = EngineServer(driver, settings.engine_model, settings.engine_version)
        port = await _listen(server, settings, stack)
        log.info("serving %s on %s:%d", settings.engine_model, settings.engine_host, port)
        if settings.engine_ready_file is not None:
            _write_ready_file(settings.engine_ready_file, _description(settings, port, publisher))
            stack.callback(settings.engine_ready_file.unlink, missing_ok=True)
        await stopping.wait()
    log.info("stopped")


async def _listen(server: EngineServer, settings: EngineSettings, stack: AsyncExitStack) -> int:
    """Serve HTTP until the stack unwinds; returns the port."""
    runner = web.AppRunner(
        server.application(), handler_cancellation=True, access_log=None, shutdown_timeout=SHUTDOWN_S
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, settings.engine_host, settings.engine_port, backlog=1024)
    try:
        await site.start()
    except OSError as error:
        raise ConfigurationError(
            f"Cannot listen on {settings.engine_host}:{settings.engine_port} (TOKENFLEET_ENGINE_HOST, "
            f"TOKENFLEET_ENGINE_PORT): {error.strerror}; choose another, or port 0 for any free one"
        ) from error
    port: int = runner.addresses[0][1]
    return port


def _driver(settings: EngineSettings, publisher: KvEventPublisher | None) -> EngineDriver:
    model = EngineModel(settings.profile, settings.engine_block_size, record_kv_changes=publisher is not None)

    def publish(changes: list[KvChange]) -> None:
        if publisher is not None:
            publisher.publish(changes, driver.prompt_blocks)

    driver = EngineDriver(model, SystemClock(settings.time_scale), settings.engine_stream_interval, publish)
    return driver


def _publisher(settings: EngineSettings) -> KvEventPublisher | None:
    if settings.engine_kv_events_port == OFF:
        return None
    return KvEventPublisher(
        settings.engine_host,
        settings.engine_kv_events_port,
        settings.engine_replay_port,
        settings.engine_block_size,
    )


def _description(
    settings: EngineSettings, port: int, publisher: KvEventPublisher | None
) -> dict[str, object]:
    """What a node agent needs to know of this engine."""
    host = settings.engine_advertised_host or settings.engine_host
    return {
        "url": f"http://{host}:{port}",
        "kv_events_endpoint": f"tcp://{host}:{publisher.port}" if publisher else None,
        "kv_replay_endpoint": f"tcp://{host}:{publisher.replay_port}" if publisher else None,
        "pid": os.getpid(),
        "model": settings.engine_model,
        "version": settings.engine_version,
        "profile": settings.engine_profile,
        "block_size_tokens": settings.engine_block_size,
        "kv_capacity_tokens": settings.profile.kv_capacity_tokens,
        "tokens_per_chunk": settings.engine_stream_interval,
    }


def _write_ready_file(path: Path, description: dict[str, object]) -> None:
    """Atomically: a reader sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.encode(description))
    temporary.replace(path)
