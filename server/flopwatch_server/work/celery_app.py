"""Runs the list of periodic tasks as a Celery application: beat sends, workers do, Redis between.

A message names a task and holds nothing else, so it is worth no more than its turn: beat lets it
expire after one period, so that turns do not pile up while no worker runs, and a worker takes it
off the queue before it begins, so that a turn that dies with its worker is done by the next one
and never by an old message.
"""

from collections.abc import Callable, Sequence
from ctypes import c_bool
from datetime import UTC, datetime
from multiprocessing.sharedctypes import RawValue

from celery import Celery, signals

from flopwatch_server.house import House
from flopwatch_server.settings import Settings
from flopwatch_server.work.runner import run_once
from flopwatch_server.work.tasks import Task

TURN_LIMIT_SECONDS = 900
"""A turn that takes longer hangs: it is ended with a traceback, or killed half a minute later.

If it had a long backlog instead, the next turn goes on with that.
"""

QUEUE = "flopwatch"
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


def celery_app(settings: Settings, tasks: Sequence[Task]) -> Celery:
    """The application with the timetable of these tasks, which is all that beat needs."""
    app = Celery("flopwatch", broker=str(settings.redis_url), set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_default_queue=QUEUE,
        task_soft_time_limit=TURN_LIMIT_SECONDS,
        task_time_limit=TURN_LIMIT_SECONDS + 30,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # After this time Redis gives what a killed worker had taken to another one, which finds it
        # expired and throws it away.
        broker_transport_options={"visibility_timeout": 2 * TURN_LIMIT_SECONDS},
        beat_scheduler="flopwatch_server.work.celery_beat:SoleScheduler",
        beat_enable_remote_control=True,
        beat_schedule={
            task.name: {
                "task": task.name,
                "schedule": task.period_seconds,
                "last_run_at": _NEVER,  # every task is due when beat starts
                "options": {"expires": task.period_seconds},
            }
            for task in tasks
        },
    )
    return app


def register(app: Celery, tasks: Sequence[Task], house: House) -> None:
    """Let a worker of this application do the tasks, each turn under the task's lock.

    The worker forks: `house` must have no database connection open by then.
    """
    is_stopping = RawValue(c_bool, False)  # in memory which the forked processes share

    def stop(**_: object) -> None:
        is_stopping.value = True

    signals.worker_shutting_down.connect(stop, weak=False)
    for task in tasks:
        app.task(_turn(task, house, lambda: is_stopping.value), name=task.name)


def _turn(task: Task, house: House, is_stopping: Callable[[], bool]) -> Callable[[], None]:
    def turn() -> None:
        run_once(task, house, is_stopping)

    return turn
