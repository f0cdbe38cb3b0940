"""What a task does that did not get its lock: retry, skip, fail; and what must never be dropped.

`refused` is for a lock that someone else holds, `unanswered` for a quorum that could not be asked.
They have policies, counters and errors of their own (T6, T7, T9). Each ends in an exception that
Celery understands.
"""

from __future__ import annotations

import logging
import math
import random
import time
from typing import Any, NoReturn

from celery.exceptions import Ignore, Reject, Retry
from kombu.exceptions import EncodeError, SerializerNotInstalled
from kombu.serialization import registry  # type: ignore[attr-defined]

from .errors import LockHeld, QuorumUnreachable, RedlockError
from .header import HEADER, Header, Tries
from .options import Options
from .owner import as_stored

logger = logging.getLogger("celery_redlock")

#: The header of a message that was sent by beat.
FROM_BEAT = "celery_beat_task"

#: Seconds. Retries come at most so far apart; and so small a part of the broker's visibility timeout,
#: if it has one: a message that waits longer than that is delivered twice.
LONGEST_PAUSE = 60
OF_VISIBILITY = 1 / 4

#: How often, beyond the first time, the next attempt's message is tried to be published.
PUBLISH_RETRIES = 3

#: Seconds until a message that could not be published anew comes back from the broker.
REJECT_PAUSE = 1.0


def refused(task: Any, options: Options, held: LockHeld) -> NoReturn:
    """Someone else holds the lock."""
    request = task.request
    own_copy = _is_by(request.id, held)
    header = Header.read(task.name, request)
    header = header.after_conflict(time.time(), keep=own_copy or _must_stay(request))
    policy = _policy(task, options)
    if policy == "skip" and held.holder is not None and not header.keep:
        _skip(task, held)
    own = own_copy or is_by_step_before(request, held)
    if request.is_eager or task.app.conf.task_always_eager or (policy == "fail" and not own):
        raise held
    if header.conflicts.lasting(time.time()) >= options.give_up:
        if own_copy:
            _leave_to_the_other(task, held)
        raise _given_up(held, header.conflicts)
    _try_later(task, header, held, header.conflicts, held.retry_after)


def unanswered(task: Any, options: Options, error: QuorumUnreachable) -> None:
    """Too few nodes could be asked. Returns only if the task is to run all the same."""
    request = task.request
    if options.on_error == "run":
        logger.error("task %s[%s] runs WITHOUT its lock: %s", task.name, request.id, error)
        return
    header = Header.read(task.name, request).after_error(time.time(), keep=_must_stay(request))
    if options.on_error == "fail" or request.is_eager or task.app.conf.task_always_eager:
        raise error
    if header.errors.lasting(time.time()) >= options.give_up:
        raise _given_up(error, header.errors)
    _try_later(task, header, error, header.errors, error.retry_after)


def is_by_step_before(request: Any, held: LockHeld) -> bool:
    """The holder is the task of the same chain that has sent this one."""
    return _is_member(request) and _is_by(request.parent_id, held)


def _is_by(task_id: str | None, held: LockHeld) -> bool:
    return held.holder is not None and bool(task_id) and held.holder.task_id == as_stored(task_id or "")


def waits(task: Any, options: Options) -> float:
    """For how many seconds the acquire itself waits. Nobody can retry an eager task later."""
    policy = _policy(task, options)
    return options.wait if policy == "wait" or (policy == "retry" and task.request.is_eager) else 0.0


def _policy(task: Any, options: Options) -> str:
    if options.on_conflict is None:
        request = task.request
        from_beat = FROM_BEAT in (request.headers or {}) or getattr(request, FROM_BEAT, False)
        return "skip" if from_beat else "retry"
    return options.on_conflict


def _must_stay(request: Any) -> bool:
    """A redelivered message may be the last copy; a canvas would wait for its member for ever."""
    return bool((request.delivery_info or {}).get("redelivered")) or _is_member(request)


def _is_member(request: Any) -> bool:
    return any(part is not None for part in (request.group, request.chord, request.chain))


def _skip(task: Any, held: LockHeld) -> NoReturn:
    """End it as revoked, so that nobody waits for its result in vain."""
    request = task.request
    logger.info("skipped task %s[%s]: %s", task.name, request.id, held)
    if request.is_eager:
        raise Ignore(str(held))
    task.backend.mark_as_revoked(
        request.id,
        f"skipped: {held}",
        request=request,
        store_result=not _ignores_result(task),
    )
    try:
        task.send_event("task-revoked", terminated=False, signum=None, expired=False)
    except Exception as failure:  # not worth failing for: the state is stored
        logger.warning("no event that task %s[%s] was skipped: %s", task.name, request.id, failure)
    raise Ignore(str(held))


def _leave_to_the_other(task: Any, held: LockHeld) -> NoReturn:
    """The holder is the same task, delivered twice: its end is the result, and not ours to spoil."""
    logger.warning(
        "gave up task %s[%s]: its other copy is still at work; %s", task.name, task.request.id, held
    )
    raise Ignore(str(held))


def _given_up(error: RedlockError, tries: Tries) -> RedlockError:
    message, *rest = error.args
    waited = tries.lasting(time.time())
    return type(error)(f"gave up after {waited:.0f} s and {tries.count} tries: {message}", *rest)


def _try_later(
    task: Any, header: Header, error: RedlockError, tries: Tries, at_most: float | None
) -> NoReturn:
    """Publish the next attempt, then say so: if the publishing fails, nothing is lost."""
    request = task.request
    pause = _pause(tries.count, at_most, _longest_pause(task.app))
    options = request.as_execution_options()
    again = task.signature_from_request(
        request,
        countdown=pause,
        retries=request.retries,  # what the task's own max_retries counts is not touched
        ignore_result=_ignores_result(task),
        argsrepr=request.__dict__.get("argsrepr"),  # it may hide a secret
        kwargsrepr=request.__dict__.get("kwargsrepr"),
        headers={**(options["headers"] or {}), HEADER: header.written()},
    )
    try:
        _publish(task, again)
    except Exception as failure:
        _cannot_publish(task, failure)
    logger.info("task %s[%s] tries again in %d s: %s", task.name, request.id, pause, error)
    raise Retry(str(error), exc=error, when=pause, sig=again)  # type: ignore[arg-type]


def _publish(task: Any, again: Any) -> None:
    """By the task's serializer; but the message may have come by any that is accepted."""
    how = {"add_to_parent": False, "retry": True, "retry_policy": {"max_retries": PUBLISH_RETRIES}}
    try:
        again.apply_async(**how)
    except EncodeError:
        for accepted in task.app.conf.accept_content:
            serializer = registry.type_to_name.get(accepted, accepted)
            try:
                again.apply_async(serializer=serializer, **how)
                return
            except (EncodeError, SerializerNotInstalled):
                continue
        raise


def _ignores_result(task: Any) -> bool:
    """The caller's word, else the task's."""
    said = task.request.__dict__.get("ignore_result")
    return bool(task.ignore_result if said is None else said)


def _cannot_publish(task: Any, failure: Exception) -> NoReturn:
    if not task.acks_late:
        raise failure
    logger.error("task %s[%s] goes back to its queue: %s", task.name, task.request.id, failure)
    time.sleep(REJECT_PAUSE)  # the broker hands it out again at once
    raise Reject(str(failure), requeue=True)


def _pause(tries: int, at_most: float | None, longest: float = LONGEST_PAUSE) -> int:
    """Whole seconds: fractions break quorum queues, and 0 lets RETRY be stored after the result (T6)."""
    longest = min(2.0 ** min(tries, 10), longest)
    if at_most is not None:
        longest = min(longest, at_most)
    return math.ceil(max(1.0, random.uniform(0.5, 1.0) * longest))


def _longest_pause(app: Any) -> float:
    visibility = (app.conf.broker_transport_options or {}).get("visibility_timeout")
    return min(LONGEST_PAUSE, OF_VISIBILITY * visibility) if visibility else LONGEST_PAUSE
