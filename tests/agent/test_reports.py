"""The socket that training processes write to, which anybody on the node may write to."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from array import array
from pathlib import Path
from typing import Any

import pytest

from flopwatch.wire import (
    BATCH_TYPE,
    MAX_ENTRIES,
    AttributedReport,
    Batch,
    Epoch,
    Evidence,
    Report,
    encode_batch,
    encode_report,
)
from flopwatch_agent.reports import (
    MOST_BYTES,
    MOST_BYTES_OF_USER,
    JobOf,
    ReportBook,
    ReportSocket,
)
from flopwatch_server.telemetry.header import check_header
from flopwatch_server.telemetry.ingest import decode


def report(boot: str = "b1", sequence: int = 1, **fields: Any) -> Report:
    values: dict[str, Any] = {
        "rank": 0, "world_size": 1, "device_name": "NVIDIA H100 80GB HBM3", "device_uuid": "GPU-1",
        "train_flops": {"bfloat16": 1e15}, "forward_only_flops": {}, "train_seconds": 2.0,
        "elapsed_seconds": 3.0, "steps": 10,
    }  # fmt: skip
    return Report(boot, sequence, **(values | fields))


def book(job_of: JobOf = lambda _pid, _uid: 18) -> ReportBook:
    return ReportBook(job_of, lambda: 1000.0)


def test_only_the_newest_report_of_each_process_is_sent_and_only_once() -> None:
    reports = book()
    for sequence in (1, 3, 2):
        reports.add(encode_report(report(sequence=sequence)), 7, 1001)
    reports.add(encode_report(report(boot="b2")), 8, 1001)
    taken = reports.take()
    assert [(each.pid, each.report.sequence) for each in taken] == [(7, 3), (8, 1)]
    assert taken[0] == AttributedReport(report(sequence=3), 7, 1001, 18, 1000.0)
    reports.add(encode_report(report(sequence=3)), 7, 1001)
    assert reports.take() == []


def test_a_last_report_of_a_process_that_is_gone_keeps_its_job() -> None:
    jobs = {(7, 1001): 18}
    reports = book(lambda pid, uid: jobs.get((pid, uid)))
    reports.add(encode_report(report(sequence=1)), 7, 1001)
    jobs.clear()
    reports.add(encode_report(report(sequence=2)), 7, 1001)
    reports.add(encode_report(report(boot="another")), 7, 1001)
    reports.add(encode_report(report(sequence=3)), 7, 666)  # the pid is another user's by now
    assert [(each.uid, each.job_id) for each in reports.take()] == [
        (1001, 18), (1001, None), (666, None),
    ]  # fmt: skip


SPOILT: list[dict[str, Any]] = [
    {"sequence": 1.5},
    {"steps": True},
    {"rank": 2**60},
    {"boot": "x" * 300},
    {"boot": "a\x00b"},
    {"device_uuid": "\ud800"},
    {"device_uuid": {"a": 1}},
    {"reason": ["no"]},
    {"device_name": "H100\nERROR forged"},
    {"train_flops": {"a\x1b[2J": 1.0}},
    {"phase_seconds": {f"p{number}": 1.0 for number in range(100)}},
    {"train_flops": {"bfloat16": 1e40}},
    {"version": 99},
    {"boot": "a b"},
    {"boot": ""},
    {"convention": "x" * 65},
    {"device_uuid": "MIG-1,MIG-2"},
    {"device_uuid": ""},
    {"phase_seconds": {"": 1.0}},
]


LARGEST: list[dict[str, Any]] = [
    {"boot": "x" * 64, "convention": "y" * 64, "device_uuid": "U" * 128},
    {"rank": 2**53 - 1, "sequence": 2**53 - 1, "steps": 2**53 - 1, "dropped": 2**53 - 1},
    {"train_seconds": 9e29, "elapsed_seconds": 9e29, "train_flops": {"bfloat16": 9e29}},
    {"device_name": "ü" * 256, "reason": "<b>" * 80, "phase_seconds": {"ö" * 200: 1.0}},
    {"train_flops": {f"d{number}": 1.0 for number in range(64)}},
]


@pytest.mark.parametrize("fields", LARGEST, ids=lambda fields: next(iter(fields)))
def test_whatever_the_agent_takes_the_server_takes_too(fields: dict[str, Any]) -> None:
    """Else one process of any user would cost the samples of its whole node."""
    reports = book()
    reports.add(encode_report(report(**fields)), 7, 1001)
    taken = reports.take()
    assert len(taken) == 1
    epoch = Epoch("boot", 1, 1000.0, "0.1.0")
    check_header(Batch("g1", epoch, reports=taken))


def test_a_job_id_of_63_bits_reaches_the_server_as_it_is() -> None:
    reports = book(lambda _pid, _uid: 2**63 - 1)
    reports.add(encode_report(report()), 7, 1001)
    sign = Evidence("environ", 2**63 - 1, 990.0, 1000.0, pid=7)
    sent = Batch("g1", Epoch("boot", 1, 1000.0, "0.1.0"), reports=reports.take(), evidence=[sign])
    batch, _ = decode(encode_batch(sent, array("f")), BATCH_TYPE)
    check_header(batch)
    ids = batch.reports[0].job_id, batch.evidence[0].job_id
    assert ids == (9223372036854775807, 9223372036854775807)


def test_no_more_reports_are_kept_than_a_batch_may_hold() -> None:
    reports = book()
    small = report(
        boot="b", device_name="", device_uuid=None, train_flops={}, train_seconds=0.0,
        elapsed_seconds=0.0, steps=0, convention="p",
    )  # fmt: skip
    for number in range(3 * MAX_ENTRIES):
        reports.add(encode_report(small), number, number % 16)
    assert MAX_ENTRIES * 0.9 < len(reports.take()) <= MAX_ENTRIES


@pytest.mark.parametrize("fields", SPOILT, ids=str)
def test_a_report_that_would_spoil_a_batch_is_refused(fields: dict[str, Any]) -> None:
    good = json.loads(encode_report(report()))
    reports = book()
    reports.add(json.dumps(good | fields).encode(), 7, 1001)
    assert reports.take() == []


@pytest.mark.parametrize("datagram", [b"", b"\xff\xfe", b"[]", b"{}", b"[" * 8000, b"x" * 8193])
def test_a_datagram_that_is_no_report_is_refused(datagram: bytes) -> None:
    reports = book()
    reports.add(datagram, 7, 1001)
    assert reports.take() == []


def test_integers_too_large_for_other_decoders_become_floats() -> None:
    reports = book()
    reports.add(encode_report(report(train_flops={"bfloat16": 10**25})), 7, 1001)
    (taken,) = reports.take()
    assert json.dumps(taken.report.train_flops) == '{"bfloat16": 1e+25}'


def test_refusals_are_logged_once_with_their_number(caplog: pytest.LogCaptureFixture) -> None:
    reports = book()
    for _ in range(1000):
        reports.add(b"{", 7, 1001)
    reports.complain()
    reports.complain()
    (record,) = caplog.records
    assert record.getMessage().startswith("1000 reports refused")


def test_a_flood_costs_its_sender_and_not_the_other_users() -> None:
    reports = book()
    big = report(phase_seconds={"p" * 200 + str(number): 1.0 for number in range(20)})
    for pid in range(2000):
        reports.add(encode_report(big), pid, 666)
    reports.add(encode_report(report()), 5000, 1001)
    taken = reports.take()
    flood = sum(len(encode_report(each.report)) for each in taken if each.uid == 666)
    assert MOST_BYTES_OF_USER * 0.95 < flood <= MOST_BYTES_OF_USER
    assert [each.pid for each in taken if each.uid == 1001] == [5000]


def test_many_users_together_are_bounded_too() -> None:
    reports = book()
    big = report(phase_seconds={"p" * 200 + str(number): 1.0 for number in range(20)})
    for uid in range(10):
        for pid in range(300):
            reports.add(encode_report(big), uid * 1000 + pid, uid)
    assert sum(len(encode_report(each.report)) for each in reports.take()) <= MOST_BYTES


def test_the_kernel_says_who_sent_a_report_whatever_the_report_says(tmp_path: Path) -> None:
    path = tmp_path / "run/hook.sock"
    jobs = {(os.getpid(), os.getuid()): 18}
    reports = book(lambda pid, uid: jobs.get((pid, uid)))
    ReportSocket(path, reports).start()
    assert path.stat().st_mode & 0o777 == 0o666
    assert path.parent.stat().st_mode & 0o777 == 0o755
    script = (
        "import os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); os.setuid(65534)\n"
        "s.sendto(sys.argv[2].encode(), sys.argv[1]); print(os.getpid())"
    )
    message = encode_report(report(boot="nobody")).decode()
    os.chmod(tmp_path, 0o755)
    child = subprocess.run(
        [sys.executable, "-c", script, str(_reachable(path)), message],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        own.sendto(encode_report(report(boot="root")), str(path))
    taken = {each.report.boot: each for each in _wait_for(reports, 2)}
    assert (taken["nobody"].uid, taken["nobody"].pid) == (65534, int(child.stdout))
    assert taken["nobody"].job_id is None
    assert (taken["root"].pid, taken["root"].job_id) == (os.getpid(), 18)


def test_a_restarted_agent_takes_over_the_socket_of_the_last_one(tmp_path: Path) -> None:
    path = tmp_path / "hook.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(path))
    reports = book()
    ReportSocket(path, reports).start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        own.sendto(encode_report(report()), str(path))
    assert len(_wait_for(reports, 1)) == 1


def _reachable(path: Path) -> Path:
    """Let another user walk to the socket: pytest closes its temporary folders to all others."""
    for folder in path.parents:
        if folder.stat().st_mode & 0o001 == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    return path


def _wait_for(reports: ReportBook, count: int) -> list[AttributedReport]:
    taken: list[AttributedReport] = []
    deadline, pause = time.monotonic() + 10, threading.Event()
    while len(taken) < count and time.monotonic() < deadline:
        taken += reports.take()
        pause.wait(0.01)
    return taken
