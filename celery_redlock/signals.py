"""What happened to a task's lock, as Celery signals."""

from __future__ import annotations

from celery.utils.dispatch import Signal

#: The lock of a running task was lost. Sender: the task; sent in a thread of its own, once.
lock_lost = Signal(name="lock_lost", providing_args=["task_id", "lease"])
