"""The ingress service: the OpenAI API in front, NATS and the engines behind."""

from aiohttp import web

from ingress.batch.life_cycle import LifeCycleAsk
from ingress.batch.service import BatchService
from ingress.gateway import Gateway
from ingress.http_api import HttpApi
from ingress.ledger_http import LedgerHttp
from ingress.settings import IngressSettings
from tokenfleet.errors import UnavailableError
from tokenfleet.service import Service, run_service

FORCED_END_S = 3.0
"""For streams cut off at a stop to say so to their clients."""
FLUSH_S = 3.0
"""For outcomes to reach JetStream at a stop; the journal keeps the rest."""


async def start(service: Service[IngressSettings]) -> None:
    """Serve until the service stops."""
    settings = service.settings
    gateway = Gateway(service)
    await gateway.start()
    service.health = lambda: {**gateway.health(), "batch": batches.health()}
    batches = BatchService(service, gateway, LifeCycleAsk(gateway))
    app = HttpApi(gateway).app()
    batches.add_routes(app)
    LedgerHttp(gateway.tenants, service.bus, settings.site, service.clock).add_routes(app)
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        max_line_size=settings.ingress_max_header_bytes,
        max_field_size=settings.ingress_max_header_bytes,
        shutdown_timeout=FORCED_END_S,
    )
    await runner.setup()
    site = web.TCPSite(runner, settings.ingress_host, settings.ingress_port)
    try:
        await site.start()
    except OSError as error:
        raise UnavailableError(
            f"Ingress cannot listen on {settings.ingress_host}:{settings.ingress_port}: {error.strerror}. "
            "Set TOKENFLEET_INGRESS_PORT to a free port (0: any)."
        ) from error
    service.log.info(
        "listening", address="http://{}:{}".format(*runner.addresses[0][:2]), journal=settings.stable_name
    )

    async def stop() -> None:
        gateway.stopping = True
        batches.stop_claiming()
        await site.stop()
        await gateway.wait_idle(settings.ingress_drain_timeout_s)
        for driver in list(gateway.in_flight.values()):
            driver.stop()
        await gateway.wait_idle(FORCED_END_S)
        await runner.cleanup()
        if not await gateway.outbox.flush(FLUSH_S):
            service.log.warning("outcomes left in the journal", requests=gateway.journal.backlog)
        await gateway.engines.close()
        gateway.prompts.close()
        gateway.journal.close()

    service.on_stop(stop)


def main() -> None:
    """`tokenfleet run ingress`"""
    run_service("ingress", IngressSettings, start)
