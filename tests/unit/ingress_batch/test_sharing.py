"""Places are shared among tenants; within a tenant the batch due first gets them."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ingress.policy.batch.sharing import PIECE_LINES, OpenBatch, Window, allot


def batch(name: str, tenant: str = "acme", due_ns: int = 1) -> OpenBatch:
    return OpenBatch(name, tenant, "/v1/completions", "file-1", due_ns)


def shares(
    free: int, *batches: OpenBatch, running: dict[str, int] | None = None, window: int = 64, **weights: float
) -> dict[str, int]:
    windows = {item.tenant: window for item in batches}
    return allot(free, batches, Counter(running or {}), windows, weights)


def test_one_batch_gets_a_piece_at_a_time_so_that_others_get_some_too():
    assert shares(64, batch("a")) == {"a": PIECE_LINES}
    assert shares(5, batch("a")) == {"a": 5}


def test_a_tenant_with_many_batches_gets_no_more_than_one_with_a_single_one():
    many = [batch(f"big-{n}", "big") for n in range(10)]
    given = shares(20, *many, batch("small", "small"))
    assert given["small"] == 10


def test_what_already_runs_counts():
    assert shares(4, batch("a", "a"), batch("b", "b"), running={"a": 10}) == {"b": 4}


def test_weights_divide_places():
    given = shares(15, batch("a", "a"), batch("b", "b"), a=2.0)
    assert given == {"a": 10, "b": 5}


def test_of_one_tenant_the_batch_due_first_comes_first():
    given = shares(20, batch("due-first"), batch("due-later"))
    assert given == {"due-first": PIECE_LINES, "due-later": 4}


@given(
    free=st.integers(0, 100),
    tenants=st.lists(st.sampled_from("abc"), max_size=8),
    window=st.integers(1, 30),
)
def test_never_more_than_is_free_or_than_a_tenants_window(free: int, tenants: list[str], window: int):
    batches = [batch(f"b{n}", tenant) for n, tenant in enumerate(tenants)]
    given = shares(free, *batches, window=window)
    assert sum(given.values()) <= free
    by_tenant: Counter[str] = Counter()
    for item in batches:
        by_tenant[item.tenant] += given.get(item.batch_id, 0)
    assert all(count <= window for count in by_tenant.values())


# -- how many at once


def test_a_refusal_halves_the_window_and_those_of_the_same_second_are_one_sign():
    window = Window(64)
    for now_s in (0.0, 0.1, 0.9):
        window.refused(now_s)
    assert window.size == 32
    window.refused(1.0)
    assert window.size == 16


def test_the_window_never_closes_and_grows_back_to_its_limit():
    window = Window(8)
    for second in range(20):
        window.refused(float(second))
    assert window.size == 1
    for _ in range(200):
        window.answered()
    assert window.size == 8
