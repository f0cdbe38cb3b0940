"""The thread that carries the rounds of all greenlets, as far as it can be seen without any."""

from __future__ import annotations

from collections.abc import Generator

from celery_redlock.green import _Order


def waiting() -> Generator[float, None, None]:
    yield 1.0


def test_an_order_whose_sender_is_gone_does_not_stop_the_others() -> None:
    def wake() -> None:
        raise ValueError("operation on destroyed loop")

    order = _Order(waiting, wake)
    assert order.go_on() == 1.0
    assert order.go_on() is None
    assert order.done


def test_an_order_that_was_cancelled_before_its_turn_is_never_begun() -> None:
    begun: list[bool] = []
    order = _Order(lambda: begun.append(True) or waiting(), lambda: None)  # type: ignore[func-returns-value]
    order.cancelled = True
    assert order.go_on() is None
    assert not begun


def test_the_error_of_a_round_reaches_its_sender() -> None:
    def fail() -> Generator[float, None, None]:
        raise KeyError
        yield 1.0

    order = _Order(fail, lambda: None)
    assert order.go_on() is None
    assert isinstance(order.error, KeyError)
