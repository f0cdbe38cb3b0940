"""What the votes of one acquire decide, without a socket (Q1, Q5, Q9)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.round import Answer, Started
from celery_redlock.vote import Acquisition, Count, Electorate, Inspection, drift

T0 = 1000.0
ALICE = "r:" + "a" * 32 + ":11:host-a:task-a"
BOB = "r:" + "b" * 32 + ":22:host-b:task-b"


def granted(fence: int = 7, age: float = 1e9) -> Answer:
    return Answer(f"granted {fence}", True, Started(T0 - age - 1, T0 - age))


def refused(owner: str = ALICE, ms: int = 9000) -> Answer:
    return Answer(f"refused {ms} {owner}", True)


DEAD = Answer("connection refused", False)


def votes(*answers: Answer, size: int = 5, guard: float = 30.0) -> Acquisition:
    tally = Acquisition(Electorate(size, guard), T0)
    for node, answer in enumerate(answers):
        tally.add(node, 0, answer)
    return tally


@pytest.mark.parametrize(("size", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_a_quorum_is_more_than_half_of_all_nodes(size: int, quorum: int) -> None:
    assert Electorate(size, 0).quorum == quorum


def test_three_grants_of_five_are_enough_and_two_are_not() -> None:
    assert not votes(granted(), granted()).granted
    assert votes(granted(), granted(), granted()).granted


def test_the_round_ends_with_the_deciding_grant() -> None:
    tally = Acquisition(Electorate(5, 0), T0)
    assert [tally.add(node, 0, granted()) for node in range(3)] == [False, False, True]


def test_the_round_ends_when_a_quorum_is_out_of_reach_and_the_holder_is_known() -> None:
    tally = Acquisition(Electorate(5, 0), T0)
    assert [tally.add(node, 0, refused()) for node in range(3)] == [False, False, True]


def test_the_round_goes_on_while_the_holder_may_yet_be_named_by_a_quorum() -> None:
    tally = Acquisition(Electorate(5, 0), T0)
    said = [refused(ALICE), refused(BOB), refused(ALICE), refused(ALICE)]
    assert [tally.add(node, 0, answer) for node, answer in enumerate(said)] == [False] * 3 + [True]
    assert tally.holder is not None
    assert tally.holder.task_id == "task-a"


def test_two_refusals_and_a_dead_quorum_are_a_refusal_and_not_unreachable() -> None:
    tally = votes(refused(), refused(), DEAD, DEAD, DEAD)
    assert tally.refused
    assert tally.holder is None
    assert not tally.split


def test_a_holder_is_named_only_by_a_quorum() -> None:
    assert votes(refused(ALICE), refused(ALICE), refused(BOB), refused(BOB), granted()).holder is None
    holder = votes(refused(ALICE, 500), refused(ALICE, 900), refused(ALICE, 700)).holder
    assert holder is not None
    assert (holder.task_id, holder.host, holder.pid) == ("task-a", "host-a", 11)
    assert holder.remaining == 0.9


def test_a_lock_without_an_end_has_no_remaining_time() -> None:
    holder = votes(refused("someone", -1), size=1).holder
    assert holder is not None
    assert holder.remaining is None
    assert str(holder) == "another Redlock client"


def test_nobody_with_a_quorum_is_a_split_vote() -> None:
    assert votes(granted(), granted(), refused(ALICE), refused(ALICE), refused(BOB)).split
    assert not votes(refused(), refused(), refused(), granted(), granted()).split
    assert not votes(granted(), granted(), DEAD, DEAD, DEAD).split


def test_a_node_that_is_younger_than_the_guard_does_not_vote() -> None:
    tally = votes(granted(age=29.9), granted(), granted(), DEAD, DEAD, guard=30)
    assert not tally.granted
    assert tally.why_not(T0)[0] == "started lately, votes in 0.4 s"
    assert tally.quorum_votes_in(T0) == pytest.approx(0.1 + drift(30))
    assert not votes(granted(age=30.0), granted(), granted(), guard=30).granted
    assert votes(granted(age=30.0 + drift(30)), granted(), granted(), guard=30).granted


def test_a_new_set_of_nodes_waits_the_guard_with_no_exception() -> None:
    tally = votes(*[granted(age=float(n)) for n in range(5)], guard=30)
    assert not tally.granted
    assert tally.quorum_votes_in(T0) == pytest.approx(28 + drift(30))  # the third oldest of five


def test_the_time_of_the_next_quorum_is_unknown_if_too_few_nodes_are_there() -> None:
    assert votes(granted(age=1), granted(age=1), DEAD, DEAD, DEAD).quorum_votes_in(T0) is None


def test_what_was_not_refused_may_hold_our_key() -> None:
    assert votes(granted(), refused(), DEAD, granted(age=1)).may_hold() == [0, 2, 3, 4]


@pytest.mark.parametrize(
    "nonsense",
    ["", "granted", "granted x", f"granted {2**53}", "refused", "refused x y", "refused 5", "OK"],
)
def test_an_answer_that_makes_no_sense_is_no_vote(nonsense: str) -> None:
    tally = votes(Answer(nonsense, True), size=1)
    assert not tally.granted
    assert not tally.refused
    assert "makes no sense" in tally.why_not(T0)[0]


answers = st.one_of(
    st.builds(granted, st.integers(1, 9), st.sampled_from([1.0, 100.0])),
    st.builds(refused, st.sampled_from([ALICE, BOB])),
    st.just(DEAD),
)


@given(st.integers(1, 7).flatmap(lambda n: st.lists(answers, min_size=n, max_size=n)))
def test_stopping_early_never_changes_the_decision(said: list[Answer]) -> None:
    """Whatever the rest would have said: granted or not, and by whom refused, stays the same."""
    size = len(said)
    early, full = Acquisition(Electorate(size, 30), T0), votes(*said, size=size)
    for node, answer in enumerate(said):
        if early.add(node, 0, answer):
            break
    assert early.granted == full.granted
    if not full.granted:
        assert early.holder == full.holder or full.holder is None


@given(st.lists(answers, min_size=5, max_size=5))
def test_a_grant_needs_old_nodes_and_excludes_a_named_holder(said: list[Answer]) -> None:
    tally = votes(*said)
    old = sum(a.ok and a.text.startswith("granted") and a.started.latest < T0 - 50 for a in said)
    assert tally.granted == (old >= 3)
    assert not (tally.granted and tally.holder)


def test_a_count_ends_when_it_is_reached_or_out_of_reach() -> None:
    released = Count("released", wanted=2, asked=3)
    assert not released.add(0, 0, Answer("gone", True))
    assert not released.reached
    assert released.add(1, 0, DEAD)  # one answer is left, two are wanted
    reached = Count("released", wanted=1, asked=3)
    assert reached.add(0, 0, Answer("released", True))
    assert reached.reached


def test_an_inspection_names_who_has_a_quorum() -> None:
    seen = Inspection(Electorate(3, 0))
    assert not seen.add(0, 0, Answer(f"held 500 41 {ALICE}", True))
    assert seen.add(1, 0, Answer(f"held 900 42 {ALICE}", True))
    assert seen.holder is not None
    assert (seen.holder.task_id, seen.holder.remaining, seen.holder.fence) == ("task-a", 0.9, 42)


def test_an_inspection_knows_free_from_unknown() -> None:
    seen = Inspection(Electorate(3, 0))
    seen.add(0, 0, Answer("free", True))
    assert not seen.answered
    seen.add(1, 0, DEAD)
    seen.add(2, 0, Answer("held what", True))
    assert not seen.answered
    assert set(seen.unreachable) == {1, 2}
    assert Inspection(Electorate(1, 0)).holder is None
