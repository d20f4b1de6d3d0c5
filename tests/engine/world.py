"""Two real engines with a whole TokenFleet in front of them."""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
from engine.fleet_observer import FleetObserver
from engine.vllm_engine import BLOCK_TOKENS, MODEL, VllmEngine
from running_stack import RunningStack, until

from tokenfleet.blocks import HASH_BYTES, BlockHasher, id_tokens
from tokenfleet.contracts.requests import Routed

NODE = "node-1"
PREFIX_BLOCKS = 32
PREFIX_TOKENS = PREFIX_BLOCKS * BLOCK_TOKENS
SEEN_WITHIN_S = 20.0
"""For something that happens in well under a second on an idle machine."""


@dataclass
class World:
    """The engines, the stack, and how tests ask them."""

    stack: RunningStack
    observer: FleetObserver
    engines: dict[str, VllmEngine]
    dice: random.Random = field(default_factory=lambda: random.Random(4))

    def other(self, name: str) -> VllmEngine:
        return next(engine for engine in self.engines.values() if engine.name != name)

    def register(self, engine: VllmEngine, name: str = "", version: str = "1") -> Path:
        """Put its file where the node agent looks, as an operator would; without it the engine leaves."""
        path = self.stack.state_dir / "engines" / NODE / f"{name or engine.name}.json"
        path.write_text(json.dumps(engine.ready_file(version)))
        return path

    def ids(self, count: int) -> list[int]:
        """Token ids that nobody has sent before."""
        return [self.dice.randrange(10, 500) for _ in range(count)]

    def block_names(self, ids: Sequence[int]) -> set[bytes]:
        """What the fleet calls the full blocks of a prompt."""
        secret = self.stack.run["environment"]["TOKENFLEET_BLOCK_SECRET"]
        packed = BlockHasher(secret.encode()).chain(id_tokens(ids), BLOCK_TOKENS)
        return {packed[at : at + HASH_BYTES] for at in range(0, len(packed), HASH_BYTES)}

    # -- asking

    @property
    def client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.stack.api_key}"}
        return httpx.Client(base_url=self.stack.api_url, headers=headers, timeout=120.0)

    def complete(self, prompt: list[int] | str, max_tokens: int = 4) -> httpx.Response:
        """A completion through TokenFleet, which must succeed."""
        with self.client as client:
            answer = client.post("/v1/completions", json=self.body(prompt, max_tokens))
        assert answer.status_code == 200, answer.text
        return answer

    @staticmethod
    def body(prompt: list[int] | str, max_tokens: int, **fields: Any) -> dict[str, Any]:
        return {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, **fields}

    def cache(self, prefix: list[int]) -> str:
        """Send a prompt and wait until TokenPilot knows its blocks; returns the engine that has them."""
        instance = self.complete([*prefix, *self.ids(BLOCK_TOKENS)]).headers["x-tokenfleet-instance"]
        until(lambda: self.block_names(prefix) <= self.observer.blocks(instance), SEEN_WITHIN_S)
        self.settle()
        return instance

    def settle(self) -> None:
        """Until TokenPilot knows as many blocks as the node agent has."""

        def settled() -> bool:
            indexed = len(set().union(*map(self.observer.blocks, self.listed())))
            return self.tokenpilot()["blocks"] == indexed

        until(settled, SEEN_WITHIN_S)

    def routed(self, answer: httpx.Response) -> Routed:
        """TokenPilot's decision on an answered request."""
        request_id = answer.headers["x-request-id"]
        return until(lambda: self.observer.routed.get(request_id), SEEN_WITHIN_S)

    def listed(self) -> list[str]:
        return [name for name in self.engines if self.observer.record(name) is not None]

    def homes(self) -> dict[str, list[int]]:
        """For each engine a prefix that it alone holds."""
        found: dict[str, list[int]] = {}
        for _ in range(40):
            prefix = self.ids(PREFIX_TOKENS)
            found.setdefault(self.cache(prefix), prefix)
            if found.keys() == self.engines.keys():
                return found
        raise AssertionError(f"40 new prompts all went to {list(found)}")

    # -- looking

    def health(self, service: str) -> dict[str, Any]:
        """What a service says of itself at its admin port."""
        port = re.findall(r"'127\.0\.0\.1', (\d+)", self.stack.log(service))[-1]
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=10.0).json()

    def tokenpilot(self) -> dict[str, Any]:
        return self.health("tokenpilot")

    def agent(self, name: str) -> dict[str, Any]:
        """What the node agent says of an engine."""
        return self.health(f"node-agent-{NODE}")["engines"][name]
