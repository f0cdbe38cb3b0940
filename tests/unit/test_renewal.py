"""Which answers keep a lease alive (Q8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.renewal import Ledger, Renewal
from celery_redlock.round import LONG_AGO, Answer, Started
from celery_redlock.vote import Electorate, drift

HELD, RESTORED, OTHERS = "h", "r", "o"
NOW = 1000.0


def renewal(said: str, ledger: Ledger, young: str = ".....", size: int = 5) -> str:
    """One lease, one round; `said` has a letter for each node, `-` for one that does not answer."""
    tally = Renewal(Electorate(size, 30), [[ledger]], lambda: NOW)
    for node, letter in enumerate(said):
        started = Started(NOW - 10, NOW - 8) if young[node] == "y" else LONG_AGO
        answer = Answer("no answer", False) if letter == "-" else Answer(letter, True, started)
        tally.add(node, 0, answer)
    verdict = tally.verdict(0, 0)
    if verdict == "renewed":
        ledger.succeeded()
    return verdict


def acknowledged(*nodes: int) -> Ledger:
    return Ledger(set(nodes))


def test_held_on_a_quorum_of_all_nodes_is_renewed() -> None:
    assert renewal("hhh--", acknowledged(0, 1, 2)) == "renewed"
    assert renewal("hh---", acknowledged(0, 1, 2)) == "unanswered"


def test_a_loss_is_certain_when_those_who_are_silent_could_not_change_it() -> None:
    assert renewal("hooo-", acknowledged(0, 1, 2)) == "taken"
    assert renewal("hhoo-", acknowledged(0, 1, 2)) == "unanswered"


def test_everyone_answered_and_no_quorum_is_a_loss() -> None:
    assert renewal("hhooo", acknowledged(0, 1, 2)) == "taken"
    assert renewal("hhrrr", acknowledged(0, 1, 2, 3, 4)) == "vanished"


def test_a_key_that_was_put_back_is_no_vote() -> None:
    """A on {0, 1}; node 0 forgets; B holds {0, 2} and releases; A's renewal must not succeed."""
    assert renewal("rhr", acknowledged(0, 1), size=3) == "vanished"


def test_a_key_that_was_put_back_on_a_restarted_node_is_a_vote() -> None:
    assert renewal("rrhhh"[:3] + "--", acknowledged(0, 1, 2), young="yy...") == "renewed"


def test_a_node_whose_data_vanished_never_votes_for_the_lease_again() -> None:
    ledger = acknowledged(0, 1, 2, 3, 4)
    assert renewal("rhhhh", ledger) == "renewed"
    assert renewal("hhh--", ledger) == "unanswered"
    assert renewal("hhhh-", ledger) == "renewed"


def test_a_node_that_had_not_acknowledged_votes_after_a_round_without_it() -> None:
    ledger = acknowledged(0, 1, 2)
    assert renewal("hhhr-", ledger) == "renewed"
    assert renewal("-hhh-", ledger) == "renewed"


def test_a_node_on_probation_does_not_vote_in_a_second_try() -> None:
    """Tried again at once, a repaired key would vote one round trip later."""
    ledger = acknowledged(0, 1, 2)
    assert renewal("hh-rr", ledger) == "unanswered"
    assert renewal("hh-hh", ledger) == "unanswered"
    assert renewal("hhhhh", ledger) == "renewed"
    assert renewal("h--hh", ledger) == "renewed"


def test_a_late_answer_still_tells_that_data_vanished() -> None:
    ledger = acknowledged(0, 1, 2, 3, 4)
    tally = Renewal(Electorate(5, 30), [[ledger]], lambda: NOW)
    assert [tally.add(node, 0, Answer("h", True)) for node in range(3)] == [False, False, True]
    ledger.succeeded()
    tally.add(4, 0, Answer("r", True))
    assert renewal("--hhh", ledger) == "unanswered"


def test_an_uncertain_start_is_taken_as_early_when_it_would_give_a_vote() -> None:
    """Others may count the node as soon as it can be older than the guard."""
    electorate = Electorate(5, guard=30)
    assert electorate.is_young(Started(NOW - 29, NOW - 27), NOW)
    assert not electorate.is_young(Started(NOW - 30, NOW - 28), NOW)
    assert electorate.votes_from(Started(NOW - 31, NOW - 29)) == NOW + 1 + drift(30)


def test_it_says_who_did_not_answer_and_why() -> None:
    tally = Renewal(Electorate(3, 0), [[acknowledged(0)]], lambda: NOW)
    tally.add(0, 0, Answer("h", True))
    tally.add(1, 0, Answer("connection refused", False))
    assert tally.why_not() == {1: "connection refused", 2: "no answer in time"}


def test_many_leases_are_counted_apart() -> None:
    ledgers = [acknowledged(0, 1, 2) for _ in range(3)]
    tally = Renewal(Electorate(3, 0), [ledgers[:2], ledgers[2:]], lambda: NOW)
    for node in range(3):
        tally.add(node, 0, Answer("ho", True))
        tally.add(node, 1, Answer("h", True))
    verdicts = [tally.verdict(0, 0), tally.verdict(0, 1), tally.verdict(1, 0)]
    assert verdicts == ["renewed", "taken", "renewed"]


@pytest.mark.parametrize("nonsense", ["", "hh", "x"])
def test_an_answer_that_makes_no_sense_is_no_vote(nonsense: str) -> None:
    tally = Renewal(Electorate(1, 0), [[acknowledged(0)]], lambda: NOW)
    tally.add(0, 0, Answer(nonsense, True))
    assert tally.verdict(0, 0) != "renewed"


@given(
    st.lists(st.text(alphabet="hro-", min_size=5, max_size=5), max_size=6),
    st.sets(st.integers(0, 4), min_size=3),
)
def test_a_renewal_rests_on_a_quorum_that_kept_the_key_since_the_last_one(
    rounds: list[str], granting: set[int]
) -> None:
    """Nobody else can have had a quorum in between, whatever happened on the other nodes."""
    ledger, put_back = Ledger(set(granting)), set[int]()
    for said in rounds:
        put_back |= {node for node, letter in enumerate(said) if letter == "r"}
        if renewal(said, ledger) == "renewed":
            kept = {node for node, letter in enumerate(said) if letter == "h"} - put_back
            assert len(kept) >= 3
            put_back.clear()
