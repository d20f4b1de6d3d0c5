"""`tokenfleet up --sites` for tests: each site as a stack of its own, requests to them, and what the ledger says."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import httpx2 as httpx
from running_stack import RunningStack, start_stack

from console.sites.client import change_links
from console.sites.relay import LinkState

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Answer:
    """What a client got: its request's id, the status (0: the connection broke), and where it ran."""

    client_id: str
    status: int
    site: str | None
    after_s: float
    reason: str = ""
    """Why it was refused or failed."""


@dataclass
class RunningSites:
    """The sites by name, and every request that was sent to them."""

    whole: RunningStack
    sites: dict[str, RunningStack]
    links_url: str
    asked: list[Answer] = field(default_factory=list)

    def set_links(self, which: str, state: LinkState) -> None:
        """Cut a site (`B`) or one link (`B-C`), or join it."""
        change_links(self.links_url, which, {"state": state})

    async def ask(
        self,
        client: httpx.AsyncClient,
        entry: str,
        prompt: str = "hello",
        max_tokens: int = 8,
        *,
        model: str = "llama-70b",
        api_key: str | None = None,
    ) -> Answer:
        """One request at a site's ingress, of the default tenant unless by another's key."""
        stack = self.sites[entry]
        client_id = f"{entry}-{uuid.uuid4().hex}"
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        try:
            answer = await client.post(
                f"{stack.api_url}/v1/completions",
                headers={"authorization": f"Bearer {api_key or stack.api_key}", "x-request-id": client_id},
                json={"model": model, "prompt": prompt, "max_tokens": max_tokens},
                timeout=TIMEOUT_S,
            )
            status, site = answer.status_code, answer.headers.get("x-tokenfleet-site")
            reason = "" if status == 200 else answer.json()["error"]["code"]
        except httpx.HTTPError:
            status, site, reason = 0, None, "broken"
        got = Answer(client_id, status, site, loop.time() - started_s, reason)
        self.asked.append(got)
        return got

    async def ask_until(
        self, entries: str, every_s: float, is_over: Callable[[list[Answer]], bool], timeout_s: float = 30.0
    ) -> list[Answer]:
        """Requests at each entry in turn, one every so often, until the answers so far say that it is over."""
        answers: list[Answer] = []
        tasks: set[asyncio.Task[None]] = set()

        async def one(entry: str) -> None:
            answers.append(await self.ask(client, entry))

        async with httpx.AsyncClient() as client, asyncio.timeout(timeout_s):
            number = 0
            while not is_over(answers):
                tasks.add(asyncio.create_task(one(entries[number % len(entries)])))
                number += 1
                await asyncio.sleep(every_s)
            await asyncio.gather(*tasks)
        return answers

    async def rows(self) -> Counter[str]:
        """How often each request that was sent stands in the ledger, by its client's id."""
        connection = await asyncpg.connect(self.whole.run["postgres_dsn"])
        try:
            found = await connection.fetch("SELECT client_request_id AS id FROM ledger_current")
        finally:
            await connection.close()
        sent = {answer.client_id for answer in self.asked}
        return Counter(row["id"] for row in found if row["id"] in sent)

    async def all_accounted(self, timeout_s: float = 60.0) -> None:
        """Wait until every request stands in the ledger; fails if one does twice."""
        async with asyncio.timeout(timeout_s):
            while len(rows := await self.rows()) < len(self.asked):
                await asyncio.sleep(0.25)
        assert set(rows.values()) <= {1}, rows.most_common(3)


def start_sites(state_dir: Path, sites: str, *arguments: str) -> RunningSites:
    """Start them on free ports; returns once every site can serve requests."""
    whole = start_stack(state_dir, "--sites", sites, *arguments)
    stacks = {
        name: RunningStack(whole.process, Path(folder)) for name, folder in whole.run["site_dirs"].items()
    }
    return RunningSites(whole, stacks, whole.run["links_url"])
