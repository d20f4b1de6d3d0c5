"""`tokenfleet status` on a running stack."""

import pytest
from running_stack import RunningStack, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


def test_it_shows_the_pools_and_how_far_the_prefix_index_can_be_trusted(running_stack: RunningStack):
    running_stack.wait_ready(4)
    until(lambda: "Prefix index: 4 exact" in running_stack.command("status").stdout, every_s=0.5)
    shown = running_stack.command("status").stdout
    for part in ("tokenpilot", "llama-70b@1", "tiny@2", "Requests in flight"):
        assert part in shown
