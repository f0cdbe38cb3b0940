"""Whatever happens to the nodes: no two valid leases on a key, and fences that only grow.

Hypothesis makes up the story: clients take, renew and release; time passes; nodes freeze, wake up and
carry out what they were sent, die, and come back empty.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from celery_redlock import Lease, LeaseLost, LockHeld, QuorumUnreachable, Redlock
from celery_redlock.testing import ManualClock, MemoryNodes

TTL = 10.0
SIZE = 5

some_node = st.integers(0, SIZE - 1)


class Story(RuleBasedStateMachine):
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.nodes = MemoryNodes(SIZE, self.clock)
        self.redlock = Redlock(self.nodes, ttl=TTL, restart_guard=TTL)
        self.granted: list[Lease] = []
        self.highest = 0

    @rule(target=leases)
    def take(self) -> object:
        try:
            lease = self.redlock.acquire("key")
        except (LockHeld, QuorumUnreachable):
            return multiple()
        assert lease.fence > self.highest, "a fence went back"
        self.highest = lease.fence
        self.granted.append(lease)
        return lease

    @rule(lease=leases)
    def renew(self, lease: Lease) -> None:
        try:
            lease.extend()
        except (LeaseLost, QuorumUnreachable):
            pass

    @rule(lease=consumes(leases))
    def release(self, lease: Lease) -> None:
        lease.release()

    @rule(seconds=st.sampled_from([0.1, 1.0, TTL / 3, TTL - 1, TTL, 3 * TTL, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(node=some_node)
    def freeze(self, node: int) -> None:
        self.nodes[node].frozen = True

    @rule(node=some_node)
    def thaw(self, node: int) -> None:
        self.nodes[node].thaw()

    @rule(node=some_node)
    def cut_off(self, node: int) -> None:
        self.nodes[node].up = False

    @rule(node=some_node)
    def come_back(self, node: int) -> None:
        self.nodes[node].up = True

    @invariant()
    def one_holder(self) -> None:
        now = self.clock.now
        valid = [lease for lease in self.granted if lease._end is None and now < lease.until]
        assert len(valid) <= 1, f"two holders: {valid}"


class WithWrongClocks(Story):
    @rule(skew=st.sampled_from([-86400.0, -59.0, -1.0, 0.0, 1.0, 59.0, 86400.0]))
    def another_client_with_a_wrong_clock(self, skew: float) -> None:
        self.nodes.skew = skew


class WithRestarts(Story):
    """Numbers then rest on the clocks, which are right here; exclusion rests on the guard (Q9)."""

    @rule(node=some_node)
    def restart_empty(self, node: int) -> None:
        self.nodes[node].restart_empty()


long = settings(max_examples=300, stateful_step_count=40, deadline=None)

TestWithWrongClocks = WithWrongClocks.TestCase
TestWithWrongClocks.settings = long
TestWithRestarts = WithRestarts.TestCase
TestWithRestarts.settings = long
