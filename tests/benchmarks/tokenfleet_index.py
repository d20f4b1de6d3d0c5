"""This project's prefix index with the blocks of `held_blocks`."""

from held_blocks import serve, use_one_cpu

from tokenpilot.policy.prefix_index import PrefixIndex

use_one_cpu()
index = PrefixIndex()


def store(instance: int, parent: int | None, hashes: list[int]) -> None:
    index.store(str(instance), hashes)


if __name__ == "__main__":
    serve(store, index.match, index.match)
