"""NVIDIA Dynamo's `RadixTree` with the blocks of `held_blocks`; run by the interpreter of Dynamo's environment."""

import importlib
import itertools
import json
from typing import Any

from held_blocks import serve, use_one_cpu

use_one_cpu()
tree: Any = importlib.import_module("dynamo._core").RadixTree()
events = itertools.count(1)


def store(instance: int, parent: int | None, hashes: list[int]) -> None:
    blocks = [{"block_hash": block, "tokens_hash": block} for block in hashes]
    data = {"stored": {"parent_hash": parent, "blocks": blocks}}
    event = {"event_id": next(events), "data": data, "dp_rank": 0}
    tree.apply_event(instance, json.dumps(event).encode())


def depths(prompt: list[int]) -> dict[str, int]:
    return {str(worker): depth for (worker, _), depth in tree.find_matches(prompt).scores.items()}


if __name__ == "__main__":
    serve(store, tree.find_matches, depths)
