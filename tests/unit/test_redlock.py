"""Taking, holding and giving back a lock: no servers here, and a clock that is turned by hand."""

from __future__ import annotations

import pytest

from celery_redlock import LeaseLost, LockHeld, QuorumUnreachable, Redlock
from celery_redlock.round import Command
from celery_redlock.testing import ManualClock, MemoryNodes
from celery_redlock.vote import drift

KEY = "reports:daily"
IN_REDIS = "redlock:{reports:daily}"


@pytest.fixture
def redlock(nodes: MemoryNodes) -> Redlock:
    return Redlock(nodes, ttl=10)


def held_on(nodes: MemoryNodes) -> list[int]:
    return [index for index in range(len(nodes)) if nodes[index].get(IN_REDIS)]


def test_a_lease_is_valid_for_its_ttl_less_the_drift(redlock: Redlock) -> None:
    lease = redlock.acquire(KEY)
    assert lease.remaining == pytest.approx(10 - drift(10))
    assert drift(10) == pytest.approx(0.102)
    assert not lease.lost


def test_validity_is_counted_from_before_the_round(redlock: Redlock, nodes: MemoryNodes) -> None:
    """Q3: time that the servers take is the holder's loss."""
    nodes[0].frozen = nodes[1].frozen = nodes[2].frozen = True
    t0 = nodes.now()
    nodes.sleep = lambda seconds: (nodes.clock.advance(0.7), nodes[0].thaw())  # type: ignore
    lease = redlock.acquire(KEY)
    assert lease.until == pytest.approx(t0 + 10 - drift(10))
    assert lease.remaining == pytest.approx(10 - drift(10) - 0.7)


def test_a_grant_that_comes_too_late_is_none(nodes: MemoryNodes) -> None:
    """Q3: a quorum without time left counts for nothing, and is given back."""
    nodes[0].frozen = nodes[1].frozen = nodes[2].frozen = True
    nodes.sleep = lambda seconds: (nodes.clock.advance(10), nodes[0].thaw())  # type: ignore
    with pytest.raises(QuorumUnreachable):
        Redlock(nodes, ttl=10).acquire(KEY)
    assert held_on(nodes) == []


def test_a_second_caller_is_told_who_holds_it(redlock: Redlock) -> None:
    redlock.acquire(KEY, task_id="task-1")
    with pytest.raises(LockHeld, match=r"'reports:daily' is held by task task-1 \(pid") as caught:
        redlock.acquire(KEY)
    assert caught.value.holder is not None
    assert caught.value.holder.task_id == "task-1"
    assert caught.value.retry_after == pytest.approx(10)


def test_a_refused_acquire_leaves_nothing_behind(redlock: Redlock, nodes: MemoryNodes) -> None:
    for node in (0, 1, 2):
        nodes[node].set(IN_REDIS, "someone", 5000)
    with pytest.raises(LockHeld):
        redlock.acquire(KEY)
    assert held_on(nodes) == [0, 1, 2]


def test_a_split_vote_is_tried_again_within_milliseconds(redlock: Redlock, nodes: MemoryNodes) -> None:
    """Q5: two losers hold a part each for a moment; nobody should wait a whole TTL for that."""
    nodes[0].set(IN_REDIS, "loser 1", 3)
    nodes[1].set(IN_REDIS, "loser 2", 3)
    nodes[2].set(IN_REDIS, "loser 3", 3)
    before = nodes.now()
    redlock.acquire(KEY)
    assert nodes.now() - before < 0.2


def test_a_split_vote_is_not_tried_for_ever(redlock: Redlock, nodes: MemoryNodes) -> None:
    for node in range(5):
        nodes[node].set(IN_REDIS, f"loser {node % 2}", 3_600_000)
    nodes[4].set(IN_REDIS, "loser 3", 3_600_000)
    before = nodes.now()
    with pytest.raises(LockHeld, match="contended") as caught:
        redlock.acquire(KEY)
    assert caught.value.holder is None
    assert nodes.now() - before < 0.5


def test_no_answer_from_a_majority_is_not_a_conflict(redlock: Redlock, nodes: MemoryNodes) -> None:
    nodes[0].up = nodes[1].up = nodes[2].up = False
    with pytest.raises(QuorumUnreachable, match="2 of 5 nodes can vote, and 3 must") as caught:
        redlock.acquire(KEY)
    assert caught.value.nodes == {f"memory://{node}": "it is down" for node in range(3)}
    assert held_on(nodes) == []


def test_one_refusal_among_dead_nodes_is_a_conflict(redlock: Redlock, nodes: MemoryNodes) -> None:
    """Q1: "run if nobody can be asked" must not run beside a living holder."""
    nodes[0].up = nodes[1].up = nodes[2].up = False
    nodes[3].set(IN_REDIS, "living", 5000)
    with pytest.raises(LockHeld):
        redlock.acquire(KEY)


def test_what_a_frozen_node_does_late_is_undone_behind_it(redlock: Redlock, nodes: MemoryNodes) -> None:
    """Q4: the release goes to nodes that did not answer, too."""
    for node in (0, 1, 2):
        nodes[node].frozen = True
    with pytest.raises(QuorumUnreachable, match="no answer in time"):
        redlock.acquire(KEY)
    for node in (0, 1, 2):
        nodes[node].thaw()
    assert held_on(nodes) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_an_acquire_that_is_interrupted_leaves_nothing_behind(
    redlock: Redlock, nodes: MemoryNodes, error: type[BaseException]
) -> None:
    nodes[0].frozen = nodes[1].frozen = nodes[2].frozen = True

    def interrupt(seconds: float) -> None:
        raise error

    nodes.sleep = interrupt  # type: ignore[method-assign]
    with pytest.raises(error):
        redlock.acquire(KEY)
    for node in range(5):
        nodes[node].thaw()
    assert held_on(nodes) == []


def test_every_try_has_an_owner_of_its_own(
    redlock: Redlock, nodes: MemoryNodes, sent: list[list[Command]]
) -> None:
    """Q2: a late command of one try must not be taken for the next one's."""
    for node in range(5):
        nodes[node].set(IN_REDIS, f"loser {node % 3}", 4)
    redlock.acquire(KEY)
    owners = [command.args[0] for (command,) in sent if command.script.name == "acquire"]
    assert len(owners) > 1
    assert len(set(owners)) == len(owners)


def test_waiting_ends_with_the_lock_once_it_is_free(redlock: Redlock, nodes: MemoryNodes) -> None:
    redlock.acquire(KEY, ttl=3)
    before = nodes.now()
    assert redlock.acquire(KEY, wait=5).fence
    assert 3 <= nodes.now() - before < 3.6


def test_a_holder_that_was_seen_is_not_forgotten_when_time_gets_short(
    redlock: Redlock, nodes: MemoryNodes
) -> None:
    """Q1: "run if nobody can be asked" must not run beside a living holder."""
    redlock.acquire(KEY, task_id="alive")
    real_sleep = nodes.sleep

    def freeze_all(seconds: float) -> None:
        for node in range(5):
            nodes[node].frozen = True
        real_sleep(seconds)

    nodes.sleep = freeze_all  # type: ignore[method-assign]
    with pytest.raises(LockHeld, match="task alive"):
        redlock.acquire(KEY, wait=3)


def test_waiting_never_goes_past_its_deadline(redlock: Redlock, nodes: MemoryNodes) -> None:
    redlock.acquire(KEY)
    before = nodes.now()
    with pytest.raises(LockHeld):
        redlock.acquire(KEY, wait=4)
    assert 3.9 < nodes.now() - before <= 4


def test_waiting_for_frozen_nodes_never_goes_past_its_deadline(
    redlock: Redlock, nodes: MemoryNodes
) -> None:
    for node in range(5):
        nodes[node].frozen = True
    before = nodes.now()
    with pytest.raises(QuorumUnreachable):
        redlock.acquire(KEY, wait=4)
    assert nodes.now() - before <= 4


def test_pauses_are_random_and_grow(redlock: Redlock, nodes: MemoryNodes) -> None:
    redlock.acquire(KEY)
    pauses: list[float] = []
    real_sleep = nodes.sleep
    nodes.sleep = lambda seconds: (pauses.append(seconds), real_sleep(seconds))[1]  # type: ignore
    with pytest.raises(LockHeld):
        redlock.acquire(KEY, wait=5)
    assert len(set(pauses)) == len(pauses)
    assert max(pauses[:2]) < 0.05 < max(pauses) <= 0.5


def test_a_release_frees_the_lock_for_the_next(redlock: Redlock, nodes: MemoryNodes) -> None:
    assert redlock.acquire(KEY).release()
    assert held_on(nodes) == []
    redlock.acquire(KEY)


def test_a_release_never_touches_the_next_holders_key(
    redlock: Redlock, nodes: MemoryNodes, clock: ManualClock
) -> None:
    late = redlock.acquire(KEY)
    clock.advance(11)
    redlock.acquire(KEY)
    assert not late.release()
    assert held_on(nodes) == [0, 1, 2, 3, 4]


def test_a_second_release_does_nothing(redlock: Redlock) -> None:
    lease = redlock.acquire(KEY)
    assert lease.release()
    assert not lease.release()


def test_an_error_is_not_released(redlock: Redlock, nodes: MemoryNodes) -> None:
    """Q7: the key's TTL bounds what nobody could confirm."""
    lease = redlock.acquire(KEY)
    nodes[0].up = nodes[1].up = nodes[2].up = False
    assert not lease.release()


def test_extending_moves_the_end(redlock: Redlock, clock: ManualClock) -> None:
    lease = redlock.acquire(KEY)
    clock.advance(5)
    lease.extend()
    assert lease.remaining == pytest.approx(10 - drift(10))


def test_extending_without_a_quorum_can_be_tried_again(
    redlock: Redlock, nodes: MemoryNodes, clock: ManualClock
) -> None:
    lease = redlock.acquire(KEY)
    clock.advance(5)
    nodes[0].up = nodes[1].up = nodes[2].up = False
    with pytest.raises(
        QuorumUnreachable, match=r"memory://0: it is down.* It is ours for another 4\.9 s"
    ):
        lease.extend()
    nodes[0].up = True
    lease.extend()
    assert lease.remaining > 9


def test_extending_on_nodes_that_are_silent_is_not_taken_for_success(
    redlock: Redlock, nodes: MemoryNodes
) -> None:
    lease = redlock.acquire(KEY)
    for node in range(3):
        nodes[node].frozen = True
    with pytest.raises(QuorumUnreachable, match=r"memory://0: no answer in time") as caught:
        lease.extend()
    assert caught.value.nodes == {f"memory://{node}": "no answer in time" for node in range(3)}


def test_a_renewal_counts_from_before_its_round(redlock: Redlock, nodes: MemoryNodes) -> None:
    lease = redlock.acquire(KEY)
    nodes.clock.advance(3)  # type: ignore[attr-defined]
    t0 = nodes.now()
    for node in range(3):
        nodes[node].frozen = True
    nodes.sleep = lambda seconds: (nodes.clock.advance(0.7), nodes[0].thaw())  # type: ignore
    lease.extend()
    assert lease.until == pytest.approx(t0 + 10 - drift(10))


def test_a_renewal_that_is_heard_after_the_end_is_none(redlock: Redlock, nodes: MemoryNodes) -> None:
    lease = redlock.acquire(KEY)
    for node in range(3):
        nodes[node].frozen = True
    nodes.sleep = lambda seconds: (nodes.clock.advance(11), nodes[0].thaw())  # type: ignore
    with pytest.raises(LeaseLost):
        lease.extend()


def test_a_release_that_is_interrupted_is_sent_all_the_same(
    redlock: Redlock, nodes: MemoryNodes
) -> None:
    lease = redlock.acquire(KEY)
    for node in range(3):
        nodes[node].frozen = True

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    nodes.sleep = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        lease.release()
    for node in range(3):
        nodes[node].thaw()
    assert held_on(nodes) == []


def test_a_release_that_was_interrupted_can_be_repeated(
    redlock: Redlock, nodes: MemoryNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = redlock.acquire(KEY)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(nodes.channel(), "round", interrupt)
    with pytest.raises(KeyboardInterrupt):
        lease.release()
    monkeypatch.undo()
    assert lease.release()


def test_extending_what_others_hold_is_a_loss(redlock: Redlock, nodes: MemoryNodes) -> None:
    lease = redlock.acquire(KEY)
    for node in (0, 1, 2):
        nodes[node].set(IN_REDIS, "someone", 5000)
    with pytest.raises(LeaseLost, match="someone else holds it") as caught:
        lease.extend()
    assert caught.value.reason == "taken"
    assert held_on(nodes) == [0, 1, 2], "what is left of it is given back"


def test_extending_puts_back_what_a_minority_lost(redlock: Redlock, nodes: MemoryNodes) -> None:
    lease = redlock.acquire(KEY)
    nodes[0].flush()
    nodes[1].flush()
    lease.extend()
    assert held_on(nodes) == [0, 1, 2, 3, 4]
    assert int(nodes[0].get(IN_REDIS + ":fence") or 0) == lease.fence


def test_a_lock_that_was_taken_and_released_in_between_is_lost(clock: ManualClock) -> None:
    """Q8: A on {0, 1}; node 0 forgets; B holds {0, 2} and releases. Peers renew A all the same."""
    nodes = MemoryNodes(3, clock)
    redlock = Redlock(nodes, ttl=10)
    nodes[2].up = False
    a = redlock.acquire(KEY)
    nodes[2].up = True
    nodes[0].flush()
    redlock.acquire(KEY).release()
    with pytest.raises(LeaseLost):
        a.extend()


def test_a_restarted_node_does_not_vote_for_a_new_lease(clock: ManualClock) -> None:
    """Q9: A on {0, 1}; node 0 restarts empty; B must not get {0, 2}."""
    nodes = MemoryNodes(3, clock)
    redlock = Redlock(nodes, ttl=10, restart_guard=10)
    nodes[2].up = False
    a = redlock.acquire(KEY)
    nodes[2].up = True
    nodes[0].restart_empty()
    with pytest.raises(LockHeld):
        redlock.acquire(KEY)
    a.extend()
    assert not a.lost


def test_the_error_says_which_node_votes_when(nodes: MemoryNodes, clock: ManualClock) -> None:
    redlock = Redlock(nodes, ttl=10, restart_guard=10)
    for node in (0, 1, 2):
        nodes[node].restart_empty()
    clock.advance(4)
    with pytest.raises(
        QuorumUnreachable, match=r"memory://1: started lately, votes in 6\.1 s"
    ) as caught:
        redlock.acquire(KEY)
    assert caught.value.retry_after == pytest.approx(6 + drift(10))
    redlock.acquire(KEY, wait=7)


def test_a_single_node_has_no_guard(clock: ManualClock) -> None:
    nodes = MemoryNodes(1, clock)
    nodes[0].restart_empty()
    Redlock(nodes, ttl=10).acquire(KEY)


def test_a_single_node_that_forgot_the_lock_is_a_loss(clock: ManualClock) -> None:
    nodes = MemoryNodes(1, clock)
    lease = Redlock(nodes, ttl=10).acquire(KEY)
    nodes[0].restart_empty()
    with pytest.raises(LeaseLost):
        lease.extend()


def test_inspecting_tells_the_holder_and_unlock_takes_it_from_them(
    redlock: Redlock, nodes: MemoryNodes
) -> None:
    assert redlock.inspect(KEY) is None
    lease = redlock.acquire(KEY, task_id="task-1")
    holder = redlock.inspect(KEY)
    assert holder is not None
    assert (holder.task_id, holder.fence) == ("task-1", lease.fence)
    assert redlock.unlock(KEY, holder)
    assert held_on(nodes) == []


def test_unlock_spares_a_holder_that_came_later(redlock: Redlock, nodes: MemoryNodes) -> None:
    first = redlock.acquire(KEY)
    holder = redlock.inspect(KEY)
    assert holder is not None
    first.release()
    redlock.acquire(KEY)
    assert not redlock.unlock(KEY, holder)
    assert held_on(nodes) == [0, 1, 2, 3, 4]


def test_a_holder_from_an_error_cannot_be_unlocked(redlock: Redlock) -> None:
    """It does not have the owner's secret; a silent False would look like "was not theirs"."""
    redlock.acquire(KEY)
    with pytest.raises(LockHeld) as caught:
        redlock.acquire(KEY)
    assert caught.value.holder is not None
    with pytest.raises(ValueError, match=r"only a holder that inspect\(\) has returned"):
        redlock.unlock(KEY, caught.value.holder)


def test_inspecting_without_a_quorum_says_so(redlock: Redlock, nodes: MemoryNodes) -> None:
    nodes[0].up = nodes[1].up = nodes[2].up = False
    with pytest.raises(QuorumUnreachable, match="cannot tell who holds 'reports:daily'"):
        redlock.inspect(KEY)


def test_without_a_prefix_the_name_in_redis_is_the_key(nodes: MemoryNodes) -> None:
    Redlock(nodes, prefix="").acquire("shared")
    assert nodes[0].get("shared")
    assert nodes[0].get("{shared}:fence")
