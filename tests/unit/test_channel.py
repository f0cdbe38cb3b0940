"""How a round goes out over a thread's connections: with servers that the test plays itself (Q1, Q2)."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator

import pytest

from celery_redlock import lua
from celery_redlock.channel import Channel
from celery_redlock.connection import Connection
from celery_redlock.round import LONG_AGO, Answer, Command
from celery_redlock.testing import ManualClock

ACQUIRE = Command(lua.ACQUIRE, ["lock", "fence"], ["owner", 1000, 1, 1000])
RELEASE = Command(lua.RELEASE, ["lock"], ["owner"])


class Player:
    """A server, played by the test. `lazy`: it is connected only when the test says so."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.reachable = True
        self.served_at = 0.0
        self.lazy = False
        self.dialed = 0
        self.ends: list[socket.socket] = []

    def dial(self, channel: Channel) -> str | None:
        self.dialed += 1
        if not self.reachable:
            return "it is down"
        if not self.lazy:
            self.connect(channel)
        return None

    def connect(self, channel: Channel) -> None:
        ours, theirs = socket.socketpair()
        self.ends.append(theirs)
        channel.deliver(self.index, Connection(ours, LONG_AGO))

    def received(self) -> bytes:
        """What has come in on the newest connection."""
        readable, _, _ = select.select(self.ends[-1:], [], [], 0)
        return self.ends[-1].recv(1 << 20) if readable else b""

    def says(self, line: str) -> None:
        self.ends[-1].sendall(line.encode() + b"\r\n")

    def answers(self, line: str) -> None:
        """As soon as it is asked."""

        def wait_and_say() -> None:
            if select.select(self.ends[-1:], [], [], 5)[0]:
                self.ends[-1].recv(1 << 20)
                self.says(line)

        threading.Thread(target=wait_and_say, daemon=True).start()


class Heard:
    def __init__(self, enough: int = 99) -> None:
        self.answers: dict[int, Answer] = {}
        self._enough = enough

    def add(self, node: int, index: int, answer: Answer) -> bool:
        self.answers[node] = answer
        return len(self.answers) >= self._enough

    @property
    def texts(self) -> dict[int, str]:
        return {node: answer.text for node, answer in self.answers.items()}


class OutOfTheBlue(BaseException):
    """As Ctrl-C or a soft time limit would be."""


class Interrupted(Heard):
    """Its first answer is in the middle of being counted when the exception comes."""

    def add(self, node: int, index: int, answer: Answer) -> bool:
        super().add(node, index, answer)
        if len(self.answers) == 1:
            raise OutOfTheBlue
        return False


@pytest.fixture
def players() -> Iterator[list[Player]]:
    players = [Player(index) for index in range(3)]
    yield players
    for player in players:
        for end in player.ends:
            end.close()


@pytest.fixture
def channel(players: list[Player], clock: ManualClock) -> Iterator[Channel]:
    channel = Channel(players, clock, node_timeout=1.0)
    channel.open(3, 1.0)
    yield channel
    channel.close()


def hear(channel: Channel) -> None:
    """Read what has come in, and send nothing."""
    channel.round([], Heard(), 0.0)


def test_a_round_is_sent_to_all_before_any_answer_is_read(
    channel: Channel, players: list[Player]
) -> None:
    class Looks(Heard):
        def add(self, node: int, index: int, answer: Answer) -> bool:
            self.sent = [player.received() for player in players[1:]]
            return True

    players[0].answers("+gone")
    heard = Looks()
    channel.round([RELEASE], heard, 5.0)
    assert all(data.startswith(b"*5") for data in heard.sent)


def test_a_round_ends_when_its_tally_has_enough(channel: Channel, players: list[Player]) -> None:
    for player in players[:2]:
        player.answers("+released")
    heard = Heard(enough=2)
    channel.round([RELEASE], heard, 5.0)  # the clock stands: only the tally can end it
    assert heard.texts == {0: "released", 1: "released"}


def test_a_round_ends_when_nobody_is_left_to_answer(channel: Channel, players: list[Player]) -> None:
    for player in players:
        player.reachable = False
        player.ends[-1].close()
    heard = Heard()
    channel.round([RELEASE], heard, 5.0)
    assert set(heard.texts) == {0, 1, 2}


def test_late_answers_reach_the_tally_that_asked(channel: Channel, players: list[Player]) -> None:
    first, second = Heard(), Heard()
    channel.round([ACQUIRE], first, 0.0)
    channel.round([RELEASE], second, 0.0)
    players[0].says("+granted 7")
    players[0].says("+released")
    hear(channel)
    assert first.texts == {0: "granted 7"}
    assert second.texts == {0: "released"}


def test_a_node_that_cannot_be_reached_is_said_to_be_so_at_once(
    channel: Channel, players: list[Player]
) -> None:
    players[2].reachable = False
    players[2].ends[-1].close()
    heard = Heard(enough=1)
    channel.round([RELEASE], heard, 5.0)
    assert heard.texts == {2: "it is down"}


def test_a_connection_that_was_closed_while_idle_is_replaced_in_the_same_round(
    channel: Channel, players: list[Player]
) -> None:
    players[0].ends[-1].close()
    channel.round([ACQUIRE], Heard(), 0.0)
    channel.round([ACQUIRE], Heard(), 0.0)
    assert players[0].dialed == 2
    assert players[0].received().count(b"EVALSHA") == 1


def test_a_late_answer_before_the_end_does_not_hide_that_the_connection_is_closed(
    channel: Channel, players: list[Player]
) -> None:
    late = Heard()
    channel.round([ACQUIRE], late, 0.0)
    players[0].says("+granted 1")
    players[0].ends[-1].close()
    channel.round([RELEASE], Heard(), 0.0)
    hear(channel)
    assert late.texts == {0: "granted 1"}
    assert players[0].dialed == 2
    assert players[0].received().count(b"EVALSHA") == 1


def test_a_connection_that_owes_for_too_long_is_given_up(
    channel: Channel, players: list[Player], clock: ManualClock
) -> None:
    heard = Heard()
    channel.round([ACQUIRE], heard, 0.0)
    clock.advance(1.1)
    channel.round([ACQUIRE], Heard(), 0.0)
    assert [player.dialed for player in players] == [2, 2, 2]
    assert heard.texts == dict.fromkeys(range(3), "no answer within 1 s")


def test_a_release_follows_its_acquire_even_on_a_connection_that_owes(
    channel: Channel, players: list[Player], clock: ManualClock
) -> None:
    """Q4: a frozen server carries out both when it wakes up; on another connection, only the acquire."""
    channel.round([ACQUIRE], Heard(), 0.0)
    clock.advance(1.1)
    channel.round([RELEASE], Heard(), 0.0)
    assert [player.dialed for player in players] == [1, 1, 1]
    assert players[0].received().count(b"EVALSHA") == 2


def test_a_connection_that_was_interrupted_is_not_used_again(
    channel: Channel, players: list[Player]
) -> None:
    """Two answers were read and one was passed on: the next would be taken for the wrong command's."""
    second = Heard()
    channel.round([ACQUIRE], Interrupted(), 0.0)
    channel.round([ACQUIRE], second, 0.0)
    players[0].says("+granted 1")
    players[0].says("+granted 2")
    with pytest.raises(OutOfTheBlue):
        hear(channel)
    players[0].says("+granted 3")  # there is more to read on it, and it must not be read
    third = Heard()
    channel.round([RELEASE], third, 0.0)
    assert players[0].dialed == 2
    assert second.texts == {0: "interrupted"}
    assert third.texts == {}


def test_nothing_of_an_interrupted_round_is_sent_any_more(
    channel: Channel, players: list[Player]
) -> None:
    """Q11: its release is under way; a script that turns out to be unknown must not be sent again."""
    players[0].answers("+granted 1")
    with pytest.raises(OutOfTheBlue):
        channel.round([ACQUIRE], Interrupted(), 5.0)
    channel.round([RELEASE], Heard(), 0.0)
    assert players[1].received().count(b"EVALSHA") == 2
    players[1].says("-NOSCRIPT No matching script.")
    hear(channel)
    assert players[1].received() == b""


def test_a_release_that_found_no_connection_is_sent_once_there_is_one(
    channel: Channel, players: list[Player]
) -> None:
    """Q4: after an interrupt, the connection that set the key is gone, and the key is not."""
    players[0].lazy = True
    players[0].ends[-1].close()
    hear(channel)
    channel.round([RELEASE], Heard(), 0.0)
    channel.round([ACQUIRE], Heard(), 0.0)
    players[0].connect(channel)
    hear(channel)
    sent = players[0].received()
    assert sent.count(b"EVALSHA") == 1
    assert lua.RELEASE.sha.encode() in sent


def test_waiting_for_connections_goes_on_while_others_get_theirs(
    players: list[Player], clock: ManualClock
) -> None:
    """Thirty threads that start together are connected one after the other."""
    channel = Channel(players, clock, node_timeout=1.0)
    for player in players:
        player.lazy = True

    def line_moves(turn: int = 0) -> None:
        clock.advance(0.9)
        for player in players:
            player.served_at = clock.now
            if turn == 4:
                player.connect(channel)
        if turn < 4:
            threading.Timer(0.02, line_moves, [turn + 1]).start()

    threading.Timer(0.02, line_moves).start()
    channel.open(3, 1.0)
    assert all(player.ends for player in players)
    channel.close()


def test_only_some_nodes_can_be_asked(channel: Channel, players: list[Player]) -> None:
    channel.round([RELEASE], Heard(), 0.0, nodes=[1])
    assert [bool(player.received()) for player in players] == [False, True, False]


def test_a_closed_channel_asks_nobody(channel: Channel, players: list[Player]) -> None:
    channel.close()
    channel.close()
    heard = Heard()
    channel.round([RELEASE], heard, 5.0)
    assert set(heard.texts.values()) == {"the channel was closed"}
    assert players[0].dial(channel) is None  # delivered too late: closed, not kept
    assert players[0].ends[-1].recv(1) == b""
