"""What a refused task's message carries to its next attempt (T14)."""

from __future__ import annotations

from typing import Any

import pytest
from celery.app.task import Context

from celery_redlock.header import Header, Tries

WRITTEN = Header("shop.sync", "id-1", Tries(3, 100.0), Tries(1, 200.0), keep=True)


def request(**fields: Any) -> Context:
    return Context({"id": "id-1", **fields})


def test_it_is_read_as_it_was_written() -> None:
    assert Header.read("shop.sync", request(redlock=WRITTEN.written())) == WRITTEN


def test_it_is_found_one_level_deeper() -> None:
    nested = request(headers={"redlock": WRITTEN.written()})
    assert Header.read("shop.sync", nested) == WRITTEN


@pytest.mark.parametrize(
    ("task", "task_id"), [("shop.other", "id-1"), ("shop.sync", "id-2"), ("shop.sync", None)]
)
def test_another_tasks_is_not_ours(task: str, task_id: str | None) -> None:
    fresh = Header.read(task, request(redlock=WRITTEN.written(), id=task_id))
    assert fresh == Header(task, task_id)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "written",
    [
        None,
        "text",
        {},
        {**WRITTEN.written(), "v": 2},
        {**WRITTEN.written(), "tries": None},
        {**WRITTEN.written(), "tries": [[1]]},
        {**WRITTEN.written(), "tries": [["a", 1], [1, 1]]},
        {**WRITTEN.written(), "tries": [[float("inf"), 1], [1, 1]]},
        {key: value for key, value in WRITTEN.written().items() if key != "tries"},
    ],
)
def test_one_that_makes_no_sense_is_as_good_as_none(written: Any) -> None:
    assert Header.read("shop.sync", request(redlock=written)) == Header("shop.sync", "id-1")


def test_a_row_of_refusals_remembers_when_it_began() -> None:
    header = Header("shop.sync", "id-1")
    for now in (100.0, 110.0, 130.0):
        header = header.after_conflict(now, keep=False)
    assert header.conflicts == Tries(3, 100.0)
    assert header.conflicts.lasting(130.0) == 30.0


def test_a_clock_that_was_set_back_hurries_nobody() -> None:
    assert Tries(3, 100.0).lasting(50.0) == 0.0


def test_an_answer_ends_a_row_of_errors_but_no_answer_does_not_end_one_of_refusals() -> None:
    header = (
        Header("shop.sync", "id-1")
        .after_conflict(1.0, False)
        .after_error(2.0, False)
        .after_error(3.0, False)
    )
    assert (header.conflicts, header.errors) == (Tries(1, 1.0), Tries(2, 2.0))
    header = header.after_conflict(4.0, False)
    assert (header.conflicts, header.errors) == (Tries(2, 1.0), Tries())


def test_what_must_be_kept_is_kept_for_good() -> None:
    header = Header("shop.sync", "id-1").after_error(1.0, keep=True)
    header = header.after_conflict(2.0, keep=False).after_error(3.0, keep=False)
    assert header.keep


def test_the_tasks_own_retry_counts_afresh_and_is_not_dropped() -> None:
    refused = Header("shop.sync", "id-1").after_conflict(1.0, keep=False)
    assert refused.afresh() == Header("shop.sync", "id-1", keep=True)
