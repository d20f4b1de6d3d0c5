"""`python -m console.sites.links PLAN`: all the links between the sites of this machine, in one process.

`GET /links` says how they are; `PATCH /links/A-B` changes one: `{"state": "cut", "round_trip_s": 0.08, "bytes_per_s": null}`.
"""

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from console.sites.options import LinkSpec
from console.sites.plan import HOST, LinkPlan, LinksPlan
from console.sites.relay import Link, LinkState, dial_asked, dial_port


class LinkReport(msgspec.Struct, frozen=True, kw_only=True):
    """How one link is."""

    link: str
    state: LinkState
    round_trip_s: float
    bytes_per_s: float | None
    connections: int
    bytes_relayed: int


class LinkChange(msgspec.Struct, frozen=True, kw_only=True):
    """What to change of a link; what is left out stays."""

    state: LinkState | msgspec.UnsetType = msgspec.UNSET
    round_trip_s: float | msgspec.UnsetType = msgspec.UNSET
    bytes_per_s: float | msgspec.UnsetType | None = msgspec.UNSET


class Links:
    """Every link, by its name."""

    def __init__(self, plan: LinksPlan) -> None:
        self._plan = plan
        self._links = {link.name: Link(LinkSpec(link.round_trip_s, link.bytes_per_s)) for link in plan.links}

    async def start(self) -> None:
        """Take connections."""
        for planned in self._plan.links:
            await _listen(self._links[planned.name], planned)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/links", self._show)
        app.router.add_patch("/links/{name}", self._change)
        return app

    async def _show(self, _: web.Request) -> web.Response:
        return _json([self._report(name) for name in self._links])

    async def _change(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        link = self._links.get(name)
        if link is None:
            raise web.HTTPNotFound(text=f"There is no link {name}. Known: {', '.join(self._links)}.")
        try:
            change = msgspec.json.decode(await request.read(), type=LinkChange)
        except msgspec.DecodeError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        trip_s, rate = change.round_trip_s, change.bytes_per_s
        link.spec = LinkSpec(
            link.spec.round_trip_s if trip_s is msgspec.UNSET else trip_s,
            link.spec.bytes_per_s if rate is msgspec.UNSET else rate,
        )
        if change.state is not msgspec.UNSET:
            link.set_state(change.state)
        return _json(self._report(name))

    def _report(self, name: str) -> LinkReport:
        link = self._links[name]
        return LinkReport(
            link=name,
            state=link.state,
            round_trip_s=link.spec.round_trip_s,
            bytes_per_s=link.spec.bytes_per_s,
            connections=link.connections,
            bytes_relayed=link.bytes_relayed,
        )


async def _listen(link: Link, planned: LinkPlan) -> None:
    first, second = planned.sites
    await link.listen(planned.route_port, forward=False, dial=dial_port(planned.route_to))
    await link.listen(planned.proxy_ports[first], forward=True, dial=dial_asked(link))
    await link.listen(planned.proxy_ports[second], forward=False, dial=dial_asked(link))


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


async def run(plan: LinksPlan) -> None:
    """Until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    links = Links(plan)
    await links.start()
    runner = web.AppRunner(links.app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, HOST, plan.admin_port).start()
    await stopping.wait()
    await runner.cleanup()


def main() -> None:
    """Run the links that a file describes."""
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=LinksPlan)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(plan))


if __name__ == "__main__":
    main()
