"""Reports reach an agent that listens; whatever else is at the path, the run goes on."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import flopwatch
import flopwatch.hook.session
from flopwatch.hook.session import Session
from flopwatch.hook.transport import Transport
from flopwatch.wire import DEFAULT_SOCKET, Report
from tests.hook.conftest import Agent
from tests.hook.toys import Hand, report, train

STEP = 2 * (2 * 2 * 4 * 4)


def some_report() -> Report:
    return Report("boot", 0, 0, 1, "CPU", None, {}, {}, 0.0, 0.0, 0)


def train_a_little(steps: int) -> None:
    model = nn.Linear(4, 4)
    flopwatch.watch(model)
    train(model, steps, lambda: torch.randn(2, 4))


def test_reports_are_cumulative_and_numbered(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flopwatch.hook.session, "REPORT_PERIOD_SECONDS", 0.0)
    train_a_little(4)
    received = agent.reports()
    assert [r.sequence for r in received] == list(range(len(received)))
    assert len({r.boot for r in received}) == 1
    assert [r.steps for r in received] == sorted(r.steps for r in received)
    assert received[-1].train_flops == {"float32": 3 * STEP}
    assert received[-1].device_name == "CPU"
    assert received[-1].device_uuid is None
    assert received[-1].train_seconds > 0


def test_at_most_one_report_a_second(agent: Agent) -> None:
    hand = Hand()
    session = Session(hand)
    session.is_watching = True
    for _ in range(31):
        session.add_evaluation({"float32": 1.0})
        hand.time += 0.125
    assert [r.elapsed_seconds for r in agent.reports()] == [0.0, 1.0, 2.0, 3.0]


def test_ranks_report_at_different_times(monkeypatch: pytest.MonkeyPatch) -> None:
    phases = set()
    for rank in range(8):
        monkeypatch.setenv("RANK", str(rank))
        phases.add(round(flopwatch.hook.session._own_phase(), 2))
    gaps = [b - a for a, b in zip(sorted(phases), sorted(phases)[1:], strict=False)]
    assert len(phases) == 8
    assert min(gaps) > 0.05


def test_rank_comes_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "16")
    flopwatch.watch(nn.Linear(4, 4))
    assert (report().rank, report().world_size) == (3, 16)


def test_default_path_is_the_one_of_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOPWATCH_SOCKET")
    assert Transport()._path == DEFAULT_SOCKET


def test_absent_agent_is_counted_and_found_once_it_comes(socket_path: Path) -> None:
    transport = Transport()
    transport.send(some_report())
    assert transport.dropped == 1
    agent = Agent(socket_path)
    transport.send(some_report())
    assert transport.dropped == 1
    assert len(agent.reports()) == 1
    agent.socket.close()


def test_restarted_agent_is_found_again(socket_path: Path) -> None:
    transport = Transport()
    first = Agent(socket_path)
    transport.send(some_report())
    first.socket.close()
    transport.send(some_report())  # to the stale file
    assert transport.dropped == 1
    socket_path.unlink()
    second = Agent(socket_path)
    transport.send(some_report())
    assert len(second.reports()) == 1
    second.socket.close()


def test_agent_that_does_not_read_is_never_waited_for(agent: Agent) -> None:
    transport = Transport()
    for _ in range(600):  # more than any queue of the kernel's holds by default
        transport.send(some_report())
    assert transport.dropped > 0
    assert len(agent.reports()) == 600 - transport.dropped


@pytest.mark.parametrize("kind", ["file", "folder", "stream", "too long"])
def test_whatever_else_is_at_the_path_raises_nothing(
    kind: str, socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if kind == "file":
        socket_path.touch()
    elif kind == "folder":
        socket_path.mkdir()
    elif kind == "stream":
        stream.bind(str(socket_path))
        stream.listen()
    else:
        monkeypatch.setenv("FLOPWATCH_SOCKET", str(socket_path) * 20)
    transport = Transport()
    transport.send(some_report())
    stream.close()
    assert transport.dropped == 1


def test_forked_child_sends_nothing_and_may_begin_a_session_of_its_own(agent: Agent) -> None:
    train_a_little(2)
    session = flopwatch.hook.session.current()
    agent.reports()
    child = os.fork()
    if child == 0:
        session.flush()
        own = flopwatch.hook.session.current()
        os._exit(0 if own is not session else 1)
    _, exit_status = os.waitpid(child, 0)
    assert exit_status == 0
    assert agent.reports() == []
    session.flush()
    assert len(agent.reports()) == 1


SCRIPT = """
import torch, flopwatch
model = torch.nn.Linear(4, 4)
flopwatch.watch(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
"""


def test_last_counters_are_sent_when_the_process_ends(agent: Agent, socket_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | {"FLOPWATCH_SOCKET": str(socket_path)},
        check=True,
    )
    assert agent.reports()[-1].train_flops == {"float32": 2 * STEP}


def test_a_process_that_only_marks_phases_sends_nothing(agent: Agent) -> None:
    with flopwatch.phase("load"):
        pass
    flopwatch.hook.session.current().flush()
    assert agent.reports() == []


def test_a_report_with_every_field_full_fits_into_a_datagram(agent: Agent) -> None:
    flopwatch.watch(nn.Linear(4, 4))
    for number in range(100):
        with flopwatch.phase(f"{number:03}" + "p" * 200):
            pass
    session = flopwatch.hook.session.current()
    session.fail("r" * 10_000)
    agent.reports()
    session.flush()
    (received,) = agent.reports()
    assert received.reason is not None
    assert "other" in received.phase_seconds
