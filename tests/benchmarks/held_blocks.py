"""Blocks for a prefix index to hold and prompts to look up: the same for every index that is compared.

Each index is filled and asked in a process of its own (`serve`), by the interpreter of the environment that has it;
so this imports nothing of this project.
"""

import json
import os
import random
import sys
import time
from array import array
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

PROMPT_BLOCKS = 200
SHARED_BLOCKS = 100
"""Of a system prompt."""
STORED_AT_ONCE = 128
"""One event of vLLM's: a prefill chunk of 2,048 tokens, in blocks of 16."""
LOOKUPS = 500
"""Prompts of each kind."""

Store = Callable[[int, int | None, list[int]], None]
"""Instance, the block before (None at the start of a prompt), and the blocks stored."""


def use_one_cpu() -> None:
    """To be called first: an index with a thread of its own takes far more CPU time when it must wake another CPU."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def fill(instances: int, blocks: int, store: Store) -> dict[str, list[list[int]]]:
    """Store so many blocks, the same number by each instance, and return the prompts to look up, by kind.

    Each instance holds prompts of its own, and one that begins with the system prompt of all.
    """
    draw = random.Random(instances)
    shared = _blocks(draw, SHARED_BLOCKS)
    prompts: dict[str, list[list[int]]] = {"full match": [], "shared system prompt": []}
    for round_number in range(blocks // instances // PROMPT_BLOCKS):
        for instance in range(instances):
            kind = "full match" if round_number else "shared system prompt"
            start = [] if round_number else shared
            prompt = start + _blocks(draw, PROMPT_BLOCKS - len(start))
            for at in range(0, PROMPT_BLOCKS, STORED_AT_ONCE):
                store(instance, prompt[at - 1] if at else None, prompt[at : at + STORED_AT_ONCE])
            # As new numbers, next to each other in memory, which is how those of a request arrive.
            prompts[kind].append(array("Q", prompt).tolist())
            del prompts[kind][:-LOOKUPS]
    prompts["miss"] = [_blocks(draw, PROMPT_BLOCKS) for _ in range(LOOKUPS)]
    return {kind: list(islice(cycle(known), LOOKUPS)) for kind, known in prompts.items()}


def serve(
    store: Store, find: Callable[[list[int]], Any], depths: Callable[[list[int]], dict[str, int]]
) -> None:
    """Fill an index with what the command line says (instances, blocks) and answer questions about it.

    Each line on standard input is a JSON command, answered by a JSON line on standard output: `["find", KIND]` looks
    up all prompts of a kind once, `["depths", KIND]` tells what the first of them finds at which instance, `["cpu"]`
    how many CPU seconds this process has used, in all its threads, and `["memory"]` how many MiB the blocks took.
    """
    instances, blocks = (int(argument) for argument in sys.argv[1:])
    before = _rss_mib()
    prompts = fill(instances, blocks, store)
    find(prompts["miss"][0])  # an index that works in the background has everything when it answers
    memory_mib = _rss_mib() - before

    def find_all(kind: str) -> None:
        for prompt in prompts[kind]:
            find(prompt)

    answers: dict[str, Callable[..., Any]] = {
        "find": find_all,
        "depths": lambda kind: depths(prompts[kind][0]),
        "cpu": time.process_time,
        "memory": lambda: memory_mib,
    }
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        print(json.dumps(answers[command](*arguments)), flush=True)


def _rss_mib() -> float:
    """Memory of this process (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _blocks(draw: random.Random, count: int) -> list[int]:
    return [draw.getrandbits(64) for _ in range(count)]
