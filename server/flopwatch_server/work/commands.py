"""`flopwatch worker` and `flopwatch beat`: the periodic work in processes of its own."""

import sys
from collections.abc import Sequence

import typer

from flopwatch.gpus import PeakTable, PeakTableError
from flopwatch_server.commands import settings_or_exit
from flopwatch_server.database.opening import UnusableDatabaseError, opened
from flopwatch_server.house import House
from flopwatch_server.settings import Settings
from flopwatch_server.work.celery_app import celery_app, register
from flopwatch_server.work.schedule import periodic_tasks
from flopwatch_server.work.tasks import Task

_PROCESSES = 4  # so many tasks may take long before a short one has to wait
_LOG_LEVEL = "--loglevel=WARNING"  # of every turn Celery tells twice at INFO


def worker() -> None:
    """Entry point of `flopwatch worker`."""
    typer.run(_worker)


def beat() -> None:
    """Entry point of `flopwatch beat`."""
    typer.run(_beat)


def run_worker(settings: Settings, tasks: Sequence[Task]) -> None:
    """Do what beat hands out, until SIGTERM; the turns that run then come to their end."""
    app = celery_app(settings, tasks)
    register(app, tasks, _house(settings))
    app.worker_main(
        ["worker", f"--concurrency={_PROCESSES}", _LOG_LEVEL, "--without-gossip",
         "--without-mingle", "--without-heartbeat"]
    )  # fmt: skip


def run_beat(settings: Settings, tasks: Sequence[Task]) -> None:
    """Hand out the tasks, each once a period, until SIGTERM."""
    celery_app(settings, tasks).start(["beat", _LOG_LEVEL])


def _worker() -> None:
    """Do the periodic work that 'flopwatch beat' hands out. Run as many as you like."""
    settings = _celery_settings()
    run_worker(settings, periodic_tasks(settings))


def _beat() -> None:
    """Hand out the periodic work to workers, by Redis. A second one stands by."""
    settings = _celery_settings()
    run_beat(settings, periodic_tasks(settings))


def _celery_settings() -> Settings:
    settings = settings_or_exit()
    if settings.work != "celery":
        sys.exit(
            "the server does the periodic work itself: set FLOPWATCH_WORK=celery for the server "
            "and for this command"
        )
    return settings


def _house(settings: Settings) -> House:
    """What a task is given. No connection is open: each of the worker's processes makes its own."""
    assert settings.database_url is not None  # with celery the settings ask for it
    try:
        database = opened(settings.database_url)
        peaks = PeakTable.load(settings.gpu_peaks)
    except UnusableDatabaseError as error:
        sys.exit(str(error))
    except (PeakTableError, OSError) as error:
        sys.exit(f"FLOPWATCH_GPU_PEAKS: {error}")
    database.dispose()
    return House(database, settings, peaks)
