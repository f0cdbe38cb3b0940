"""Reading from a server that is slow, broken or lying: never a wrong vote, never without end."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from celery_redlock import lua
from celery_redlock.connection import LONGEST_REPLY, Broken, Connection
from celery_redlock.round import LONG_AGO, Answer, Command, Round

Pair = tuple[Connection, socket.socket]  # our end, and the server's


class Heard:
    def __init__(self, enough: int = 99) -> None:
        self.answers: list[tuple[int, Answer]] = []
        self._enough = enough

    def add(self, node: int, index: int, answer: Answer) -> bool:
        self.answers.append((index, answer))
        return len(self.answers) >= self._enough

    @property
    def texts(self) -> list[str]:
        return [answer.text for _, answer in self.answers]


@pytest.fixture
def connection() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(5)
    connection = Connection(ours, LONG_AGO)
    yield connection, theirs
    connection.close()
    theirs.close()


def ask(connection: Connection, commands: int = 1, sent: float = 0.0) -> tuple[Round, Heard]:
    heard = Heard()
    this = Round([Command(lua.RELEASE, ["k"], ["o"])] * commands, heard, 1, sent)
    connection.send(this)
    return this, heard


def test_a_command_goes_out_by_its_digest(connection: Pair) -> None:
    ours, theirs = connection
    ask(ours)
    sent = f"*5\r\n$7\r\nEVALSHA\r\n$40\r\n{lua.RELEASE.sha}\r\n$1\r\n1\r\n$1\r\nk\r\n$1\r\no\r\n"
    assert theirs.recv(4096) == sent.encode()


def test_answers_come_in_order_even_in_pieces(connection: Pair) -> None:
    ours, theirs = connection
    _, first = ask(ours)
    _, second = ask(ours, commands=2)
    theirs.sendall(b"+on")
    ours.hear(0)
    assert first.answers == []
    theirs.sendall(b"e\r\n+two\r\n-ERR three\r")
    ours.hear(0)
    assert first.texts == ["one"]
    assert second.texts == ["two"]
    theirs.sendall(b"\n")
    ours.hear(0)
    assert second.answers[1] == (1, Answer("ERR three", False))


def test_an_answer_without_a_question_breaks_the_connection(
    connection: Pair,
) -> None:
    ours, theirs = connection
    _, heard = ask(ours)
    theirs.sendall(b"+released\r\n+released\r\n")
    with pytest.raises(Broken, match="no answer of ours"):
        ours.hear(0)
    assert heard.texts == ["released"]
    assert ours.torn


@pytest.mark.parametrize("odd", [b":1\r\n", b"$-1\r\n", b"*1\r\n", b"\r\n", b"HTTP/1.1 400\r\n"])
def test_an_answer_of_another_kind_breaks_the_connection(connection: Pair, odd: bytes) -> None:
    ours, theirs = connection
    _, heard = ask(ours)
    theirs.sendall(odd)
    with pytest.raises(Broken):
        ours.hear(0)
    assert heard.answers == []


def test_an_answer_without_end_breaks_the_connection(
    connection: Pair,
) -> None:
    ours, theirs = connection
    ask(ours)
    for _ in range(LONGEST_REPLY // 16_000):
        theirs.sendall(b"x" * 16_000)
        ours.hear(0)
    theirs.sendall(b"x" * 16_000)
    with pytest.raises(Broken, match="has no end"):
        ours.hear(0)


def test_a_closed_connection_is_broken(connection: Pair) -> None:
    ours, theirs = connection
    theirs.close()
    with pytest.raises(Broken, match="closed the connection"):
        ours.hear(0)
    with pytest.raises(Broken, match="Broken pipe"):
        ask(ours)


def test_nothing_to_read_is_nothing_heard(connection: Pair) -> None:
    ours, _ = connection
    _, heard = ask(ours)
    ours.hear(0)
    assert heard.answers == []
    assert not ours.torn


def test_an_unknown_script_is_sent_as_text_while_the_round_is_open(
    connection: Pair,
) -> None:
    ours, theirs = connection
    _, heard = ask(ours)
    theirs.recv(4096)
    theirs.sendall(b"-NOSCRIPT No matching script.\r\n")
    ours.hear(0)
    assert theirs.recv(65536).startswith(b"*5\r\n$4\r\nEVAL\r\n")
    theirs.sendall(b"+released\r\n")
    ours.hear(0)
    assert heard.texts == ["released"]


def test_an_unknown_script_is_not_sent_again_once_the_round_is_over(
    connection: Pair,
) -> None:
    """Q11: a release may have been sent behind it; an acquire after that would be an orphan."""
    ours, theirs = connection
    heard = Heard()
    this = Round([Command(lua.ACQUIRE, ["k", "f"], ["o", 1, 1, 1])], heard, 1, 0.0)
    ours.send(this)
    theirs.recv(4096)
    this.open = False
    theirs.sendall(b"-NOSCRIPT No matching script.\r\n")
    ours.hear(0)
    assert not select.select([theirs], [], [], 0)[0]
    assert heard.answers[0][1].ok is False


def test_a_release_is_sent_as_text_even_when_nobody_waits_for_it(connection: Pair) -> None:
    """Q4: else a key that was taken back, after SCRIPT FLUSH, would stay for its whole TTL."""
    ours, theirs = connection
    this, _ = ask(ours)
    this.open = False
    theirs.recv(4096)
    theirs.sendall(b"-NOSCRIPT No matching script.\r\n")
    ours.hear(0)
    assert theirs.recv(65536).startswith(b"*5\r\n$4\r\nEVAL\r\n")


def test_what_does_not_fit_into_the_socket_is_sent_later(
    connection: Pair,
) -> None:
    ours, theirs = connection
    this = Round([Command(lua.RELEASE, ["k" * 1000], ["o"])] * 2000, Heard(), 1, 0.0)
    ours.send(this)
    assert ours.unsent
    received = b""
    while len(received) < len(this.payload):
        received += theirs.recv(1 << 20)
        ours.flush()
    assert received == this.payload
    assert not ours.unsent


def test_a_reply_that_is_owed_for_too_long_is_overdue(
    connection: Pair,
) -> None:
    ours, theirs = connection
    assert not ours.overdue(before=100.0)
    ask(ours, sent=50.0)
    assert not ours.overdue(before=50.0)
    assert ours.overdue(before=50.1)
    theirs.sendall(b"+gone\r\n")
    ours.hear(0)
    assert not ours.overdue(before=100.0)


def test_an_exception_in_the_middle_tears_the_connection(
    connection: Pair,
) -> None:
    ours, theirs = connection

    class Interrupted(Heard):
        def add(self, node: int, index: int, answer: Answer) -> bool:
            raise KeyboardInterrupt

    ours.send(Round([Command(lua.RELEASE, ["k"], ["o"])], Interrupted(), 1, 0.0))
    theirs.sendall(b"+gone\r\n")
    with pytest.raises(KeyboardInterrupt):
        ours.hear(0)
    assert ours.torn
