"""Token blocks and their keyed hashes: the one identity of a prompt prefix in the fleet.

A block is `block_size` token ids. Its hash covers the ids, its parent's hash, the adapter and a deployment
secret, so two engines with different hash seeds agree and nothing on the bus reveals a prompt. Only full
blocks are hashed. Hashes are 8 bytes; a sequence of them is packed into one `bytes`.
"""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

HASH_BYTES = 8
CHARS_PER_TOKEN = 4
"""Without a tokenizer a token is four UTF-8 bytes, the usual estimate for English text."""

TokenIds = npt.NDArray[np.uint32]


class BlockHasher:
    """Hashes token blocks for one deployment secret.

    A parent of `b""` starts a chain. BLAKE2b keyed with the secret (RFC 7693), truncated to 8 bytes.
    """

    def __init__(self, secret: bytes) -> None:
        self._keyed = hashlib.blake2b(key=secret[:64], digest_size=HASH_BYTES)

    def child(self, parent: bytes, tokens: bytes, adapter: str = "") -> bytes:
        """The hash of one block given its parent's hash and its ids as little-endian uint32 bytes."""
        digest = self._keyed.copy()
        digest.update(parent or adapter.encode())
        digest.update(tokens)
        return digest.digest()

    def chain(self, tokens: TokenIds, block_size: int, adapter: str = "") -> bytes:
        """Packed hashes of all full blocks of a prompt, each chained to the one before."""
        data = tokens.tobytes()
        width = block_size * 4
        parent = b""
        hashes: list[bytes] = []
        for start in range(0, len(data) - width + 1, width):
            parent = self.child(parent, data[start : start + width], adapter)
            hashes.append(parent)
        return b"".join(hashes)


def text_tokens(text: str) -> TokenIds:
    """Pseudo-tokens of a text: each four UTF-8 bytes are one id. Equal prefixes give equal ids."""
    data = text.encode()
    return np.frombuffer(data + b"\0" * (-len(data) % CHARS_PER_TOKEN), dtype="<u4").astype(
        np.uint32, copy=False
    )


def id_tokens(ids: Sequence[int]) -> TokenIds:
    """Token ids as given by a client or an engine, as an array. Raises OverflowError beyond uint32."""
    return np.array(ids, dtype=np.uint32)


def unpack(packed: bytes) -> list[int]:
    """Packed hashes as integers, in order."""
    return np.frombuffer(packed, dtype=">u8").tolist()


def pack(hashes: Iterable[int]) -> bytes:
    """Integers as packed hashes."""
    return np.fromiter(hashes, dtype=np.uint64).astype(">u8").tobytes()
