"""How commands are run: with real processes."""

import pytest

from flopwatch_server.scheduler.records import SchedulerError
from flopwatch_server.scheduler.slurm.client import Client


def test_times_come_as_epoch_seconds_and_filters_of_the_environment_do_not_reach() -> None:
    client = Client({"SQUEUE_USERS": "nobody", "SLURM_CONF": "/etc/slurm/other.conf"})
    printed = client.ask("env").splitlines()
    assert "SLURM_TIME_FORMAT=%s" in printed
    assert "SLURM_CONF=/etc/slurm/other.conf" in printed
    assert not [line for line in printed if line.startswith("SQUEUE_")]


def test_bytes_that_are_no_utf_8_are_replaced() -> None:
    assert Client().ask("printf", r"a\xffb") == "a\ufffdb"


def test_a_missing_command_is_named() -> None:
    with pytest.raises(SchedulerError, match="no-such-squeue: no such command"):
        Client().ask("no-such-squeue")


def test_a_failing_command_is_named_with_what_it_said() -> None:
    with pytest.raises(SchedulerError, match="bash: exit status 3: it broke"):
        Client().ask("bash", "-c", "echo it broke >&2; exit 3")


def test_a_command_that_hangs_is_ended_at_its_deadline() -> None:
    with pytest.raises(SchedulerError, match=r"sleep: no answer within 0\.1 s"):
        Client(deadline_seconds=0.1).ask("sleep", "60")
