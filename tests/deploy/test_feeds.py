"""The worked feeds of other schedulers: what they print is what the server takes, and it is right.

The tables below are worked out by hand from the answers in `feeds/`; see ORIGIN there.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import pytest

from flopwatch_server.scheduler.feed import FeedSnapshot, parse
from tests.deploy.feeding import ANSWERS, FEEDS, change, feed, jobs_file, node_row, row

DAYS = {"pbs": "2023-04-26", "lsf": "2026-04-12", "flux": "2023-06-27", "kubernetes": "2026-03-12"}

# id | state | submitted | started | ended | exit | limit (s) | GPUs in all | nodes and their GPUs
RUNS = {
    "pbs": """
3472664 | RUNNING | 08:10:10 | 08:10:15 | - | - | 1200 | 1 | khas024:1
3472665[0] | RUNNING | 07:00:00 | 07:30:00 | - | - | 93600 | 4 | aice003:0,1 mixed:0,1
3472665[7] | PENDING | 07:00:00 | - | - | - | 93600 | 4 | ?
3472600 | TIMEOUT | 06:00:00 | 06:00:30 | 08:01:00 | - | 7200 | 1 | khas024:1
3472601 | CANCELLED | 07:50:00 | - | 08:00:00 | - | - | 1 | ?
3472602 | FAILED | 07:50:00 | 07:51:00 | 08:05:00 | 0:9 | 7200 | 0 |
3472603 | RUNNING | 07:50:00 | 07:51:00 | - | - | - | - | ?
""",
    "lsf": """
123 | RUNNING | 18:10:00 | 18:10:55 | - | - | 15360 | 4 | n1.example.org:0,1 n2.example.org:2,3
5346451[7] | SUSPENDED | 09:58:00 | 09:59:00 | - | - | 600 | 2 | n1.example.org:0,1
5800001 | PENDING | 14:02:11 | - | - | - | 43200 | 8 | ?
5800002 | COMPLETED | 17:58:02 | 17:58:05 | 18:01:44 | 0:0 | - | 4 | n3.example.org:0,1,2,3
5800003 | TIMEOUT | 13:58:03 | 13:58:06 | 18:00:12 | 140:0 | 14400 | 0 |
5800004 | CANCELLED | 18:00:03 | - | 18:00:12 | - | 14400 | 1 | ?
5800006 | RUNNING | 2025-12-31 09:00:00 | 2025-12-31 09:01:00 | - | - | - | 2 | ?
""",
    "flux": """
ƒPuMuVy | COMPLETED | 04:04:31 | 04:04:31 | 04:04:32 | 0:0 | - | - | ?
ƒuZZybuNNy | RUNNING | 03:53:20 | 03:53:21 | - | - | 3600 | 5 | tioga08:0,1,2,3 tioga10:2
ƒNH | PENDING | 03:55:00 | - | - | - | - | - | ?
ƒLUv | CANCELLED | 03:56:40 | - | 03:58:20 | - | - | - | ?
ƒ211 | FAILED | 03:56:40 | 03:56:41 | 03:58:20 | 0:9 | - | - | ?
""",
    "kubernetes": """
nlp/whole-0 | RUNNING | 08:00:00 | 08:01:00 | - | - | 86400 | 8 | gpu-a:0,1,2,3,4,5,6,7
nlp/part-0 | COMPLETING | 08:00:00 | 08:01:00 | - | - | - | 4 | gpu-b:4
nlp/waits | PENDING | 08:00:00 | - | - | - | - | 16 | ?
nlp/pulls | CONFIGURING | 08:00:00 | 08:10:00 | - | - | - | 2 | gpu-b:2 of mig-1g.10gb
bio/shares | RUNNING | 08:00:00 | 08:10:00 | - | - | - | 1 | gpu-b:1 shared
nlp/done | COMPLETED | 08:00:00 | 08:01:00 | 08:20:00 | 0:0 | - | 1 | gpu-b:1
nlp/oom | OUT_OF_MEMORY | 08:00:00 | 08:01:00 | 08:21:00 | 137:0 | - | 1 | gpu-b:1
nlp/evicted | PREEMPTED | 08:00:00 | 08:05:00 | 08:05:00 | - | - | 1 | gpu-b:1
""",
}  # fmt: skip
# name | state | GPUs | type
NODES = {
    "pbs": """
aice003 | MIXED | 2 | -
khas024 | ALLOCATED | 2 | -
mixed | MIXED+DRAIN | 2 | -
cpu001 | DOWN | - | -
""",
    "lsf": """
n1.example.org | MIXED | 2 | -
n2.example.org | ALLOCATED | 4 | -
n3.example.org | IDLE+DRAIN | 4 | -
login1 | DOWN | - | -
""",
    "flux": """
tioga08 | ALLOCATED | 4 | -
tioga09 | IDLE | 4 | -
tioga10 | MIXED | 4 | -
login | DOWN | 0 | -
""",
    "kubernetes": """
gpu-a | ALLOCATED | 8 | NVIDIA-H100-80GB-HBM3
gpu-b | MIXED+DRAIN | 8 | NVIDIA-H100-80GB-HBM3
gpu-c | DOWN | 8 | NVIDIA-H100-80GB-HBM3
cpu-a | IDLE | - | -
""",
}
# Where in the answer a text of a user's choice stands; Kubernetes lets them choose no odd names.
NAMES = {
    "pbs": ("Jobs", "3472664.pbshpc", "Job_Name"),
    "lsf": ("RECORDS", 0, "JOB_NAME"),
    "flux": ("jobs", 1, "name"),
    "kubernetes": ("items", 0, "metadata", "annotations", "example.org/owner"),
}
# A field that no record may lack, and what standard error calls the record that does.
BROKEN = {
    "pbs": ("ctime", "3472664.pbshpc"),
    "lsf": ("SUBMIT_TIME", "123"),
    "flux": ("t_submit", "ƒuZZybuNNy"),
    "kubernetes": ("spec", "nlp/whole-0"),
}
# The same of one that waits and of one that is over: the record, and what is wrong with it then.
WAITS_OR_IS_OVER = [
    ("pbs", ("Jobs", "3472665[7].pbshpc"), "ctime", "nonsense"),
    ("pbs", ("Jobs", "3472600.pbshpc"), "obittime", "Wed Apr 26 05:00:00 2023"),
    ("pbs", ("Jobs", "3472602.pbshpc"), "Resource_List", {"ngpus": "2147483648"}),
    ("pbs", ("Jobs", "3400000.pbshpc"), "ctime", "nonsense"),
    ("lsf", ("RECORDS", 2), "SUBMIT_TIME", "nonsense"),
    ("lsf", ("RECORDS", 3), "FINISH_TIME", ""),
    ("lsf", ("RECORDS", 4), "SUBMIT_TIME", "nonsense"),
    ("flux", ("jobs", 2), "t_submit", "nonsense"),
    ("flux", ("jobs", 3), "result", "nonsense"),
    ("kubernetes", ("items", 2), "metadata", {"namespace": "nlp", "name": "waits"}),
    ("kubernetes", ("items", 5), "metadata", {"namespace": "nlp", "name": "done"}),
    ("kubernetes", ("items", 6, "status", "containerStatuses", 0), "state", None),
    ("kubernetes", ("items", 8), "metadata", {"namespace": "nlp", "name": "yesterday"}),
]
# Where the state stands of one that waits.
STATES = {
    "pbs": ("Jobs", "3472665[7].pbshpc", "job_state"),
    "lsf": ("RECORDS", 2, "STAT"),
    "flux": ("jobs", 2, "state"),
    "kubernetes": ("items", 2, "status", "phase"),
}
SCHEDULERS = list(RUNS)
HOSTILE = 'x"\n\r{"kind": "run"}\t\\\x1b[2J ü \u2028'


@pytest.fixture
def kept(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of what the scheduler answered."""
    return Path(shutil.copytree(ANSWERS / request.getfixturevalue("scheduler"), tmp_path / "kept"))


@cache
def told(scheduler: str) -> tuple[FeedSnapshot, str]:
    """The same of the answers as they are."""
    with TemporaryDirectory() as folder:
        return feed(scheduler, Path(shutil.copytree(ANSWERS / scheduler, Path(folder) / "kept")))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_server_reads_the_runs_that_the_scheduler_told(scheduler: str) -> None:
    snapshot, errors = told(scheduler)
    assert [row(job, DAYS[scheduler]) for job in snapshot.jobs] == RUNS[scheduler].split("\n")[1:-1]
    assert snapshot.complete
    assert "job" not in errors


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_server_reads_the_nodes_that_the_scheduler_told(scheduler: str) -> None:
    nodes = [node_row(node) for node in told(scheduler)[0].nodes]
    assert nodes == NODES[scheduler].split("\n")[1:-1]


@pytest.mark.parametrize(
    ("scheduler", "display_id", "raw_id", "user", "account", "partition"),
    [
        ("pbs", "3472664", 3472664, "anna", "col380.anna", "standard"),
        ("pbs", "3472665[7]", 8 * 2**40 + 3472665, "bob", "", "standard"),
        ("pbs", "3472600", 3472600, "bob", "chem", "standard"),
        ("lsf", "5346451[7]", 7 * 2**32 + 5346451, "bob", "vision", "gpu"),
        ("flux", "ƒuZZybuNNy", 6731191091817518, "anna", "nlp", "pbatch"),
        # The first 8 bytes of `printf UID | sha256sum` without their last bit, by another program.
        ("kubernetes", "nlp/whole-0", 8626742912117671230, "mchen", "nlp", ""),
        ("kubernetes", "bio/shares", 602782799459535263, "", "bio", ""),
    ],
)
def test_whose_run_it_is_and_by_which_numbers_it_goes(
    scheduler: str, display_id: str, raw_id: int, user: str, account: str, partition: str,
) -> None:  # fmt: skip
    (job,) = [job for job in told(scheduler)[0].jobs if job.display_id == display_id]
    found = (job.raw_job_id, job.user, job.account, job.partition)
    assert found == (raw_id, user, account, partition)


@pytest.mark.parametrize("scheduler", ["pbs", "lsf"])
def test_an_element_of_an_array_names_its_array(scheduler: str) -> None:
    elements = [job for job in told(scheduler)[0].jobs if job.display_id.endswith("[7]")]
    array = {"pbs": 3472665, "lsf": 5346451}[scheduler]
    assert [(job.array_job_id, job.array_task_id) for job in elements] == [(array, 7)]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_hostile_name_arrives_as_it_is_and_harms_no_other(scheduler: str, kept: Path) -> None:
    before = told(scheduler)[0].jobs
    change(kept, *NAMES[scheduler], to=HOSTILE)
    after = feed(scheduler, kept)[0].jobs
    assert [text for job in after for text in (job.name, job.user) if "{" in text] == [HOSTILE]
    assert [job.raw_job_id for job in after] == [job.raw_job_id for job in before]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_name_that_is_no_utf8_does_not_stop_the_feed(scheduler: str, kept: Path) -> None:
    change(kept, *NAMES[scheduler], to="a name")
    file = jobs_file(kept)
    file.write_bytes(file.read_bytes().replace(b"a name", b"\xff\xfe"))
    snapshot, errors = feed(scheduler, kept)
    assert len(snapshot.jobs) == len(RUNS[scheduler].split("\n")[1:-1])
    assert "job" not in errors


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_broken_record_is_named_and_the_others_are_no_snapshot(
    scheduler: str, kept: Path
) -> None:
    """A complete snapshot without it would say that it has left the queue."""
    before = told(scheduler)[0]
    field, name = BROKEN[scheduler]
    change(kept, *NAMES[scheduler][:2], field)
    after, errors = feed(scheduler, kept)
    assert not after.complete
    assert len(after.jobs) == len(before.jobs) - 1
    assert after.nodes != []
    assert [line for line in errors.splitlines() if line.startswith(f"job {name!r} left out: ")]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_record_that_is_no_record_at_all_is_told_too(scheduler: str, kept: Path) -> None:
    change(kept, *NAMES[scheduler][:2], to="nonsense")
    snapshot, errors = feed(scheduler, kept)
    assert not snapshot.complete
    assert "left out" in errors


@pytest.mark.parametrize(("scheduler", "place", "field", "wrong"), WAITS_OR_IS_OVER)
def test_a_broken_record_that_can_hold_no_gpu_leaves_the_snapshot_complete(
    scheduler: str, place: tuple[str | int, ...], field: str, wrong: object, kept: Path
) -> None:
    """It may stay broken for days, in which no run would ever leave the queue."""
    running = [row for row in RUNS[scheduler].split("\n") if "| RUNNING |" in row]
    change(kept, *place, field, to=wrong)
    snapshot, errors = feed(scheduler, kept)
    assert snapshot.complete
    assert [line for line in errors.splitlines() if line.startswith("job ")] != []
    told = [row(job, DAYS[scheduler]) for job in snapshot.jobs]
    assert [row for row in told if "| RUNNING |" in row] == running


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_record_whose_state_is_unknown_might_hold_gpus(scheduler: str, kept: Path) -> None:
    change(kept, *STATES[scheduler], to="?")
    snapshot, errors = feed(scheduler, kept)
    assert not snapshot.complete
    assert [line for line in errors.splitlines() if line.startswith("job ")] != []


def test_what_the_server_would_refuse_costs_one_run_and_not_the_post(tmp_path: Path) -> None:
    kept = Path(shutil.copytree(ANSWERS / "pbs", tmp_path / "kept"))
    change(kept, "Jobs", "3472600.pbshpc", "obittime", to="Wed Apr 26 05:00:00 2023")
    change(kept, "Jobs", "3472664.pbshpc", "stime")
    change(kept, "Jobs", "3472602.pbshpc", "Job_Owner", to="b" * 999 + "@login01")
    snapshot, errors = feed("pbs", kept)
    assert "'3472600.pbshpc' left out: ValueError: it ended before it started" in errors
    assert "'3472664.pbshpc' left out: ValueError: RUNNING, but its start is not told" in errors
    assert [job.user for job in snapshot.jobs if job.raw_job_id == 3472602] == ["b" * 256]


COMMANDS = {
    "qstat -x -t -f -F json": ("pbs", "jobs"),
    "pbsnodes -a -F json": ("pbs", "nodes"),
    "bjobs -u all -a -o": ("lsf", "jobs"),
    "bhosts -o host_name status njobs ngpus -json": ("lsf", "hosts"),
    "flux jobs -A -a --count=0 --since=-1h --json": ("flux", "jobs"),
    "flux resource R -s all": ("flux", "resources"),
    "flux resource R -s down": ("flux", "down"),
    "flux resource R -s allocated": ("flux", "allocated"),
    "flux job info 6731191091817518 R": ("flux", "R-6731191091817518"),
    "kubectl get pods --all-namespaces -o json": ("kubernetes", "pods"),
    "kubectl get nodes -o json": ("kubernetes", "nodes"),
}


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A folder of commands that answer what is kept, to these arguments and in UTC alone."""
    for name in {command.split()[0] for command in COMMANDS}:
        cases = "".join(
            f'"{command}"*) exec /bin/cat {ANSWERS / scheduler / file}.json ;;\n'
            for command, (scheduler, file) in COMMANDS.items()
        )
        script = f'#!/bin/sh\n[ "$TZ" = UTC ] || exit 3\ncase "{name} $*" in\n{cases}esac\nexit 2\n'
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def asked_by_command(scheduler: str, path: Path) -> "subprocess.CompletedProcess[bytes]":
    environment = {"PATH": str(path), "TZ": "Asia/Kolkata"}
    script = FEEDS / f"{scheduler}.py"
    return subprocess.run([sys.executable, script], env=environment, capture_output=True)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_asked_by_its_commands_it_tells_what_runs_now_and_no_old_ends(
    scheduler: str, commands: Path
) -> None:
    result = asked_by_command(scheduler, commands)
    snapshot = parse(result.stdout, datetime.now(UTC))
    ended = ("COMPLETED", "TIMEOUT", "CANCELLED", "FAILED", "PREEMPTED", "OUT_OF_MEMORY")
    rows = [line.split(" | ") for line in RUNS[scheduler].split("\n")[1:-1]]
    assert [job.display_id for job in snapshot.jobs] == [r[0] for r in rows if r[1] not in ended]
    assert snapshot.complete


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_scheduler_that_does_not_answer_leaves_nothing_to_post(
    scheduler: str, tmp_path: Path
) -> None:
    """An empty snapshot would say that all jobs have left the queue."""
    assert asked_by_command(scheduler, tmp_path).returncode == 1
    for name in ("qstat", "bjobs", "flux", "kubectl"):
        (tmp_path / name).write_text('#!/bin/sh\necho \'{"jobs": [], "items": []\'\n')
        (tmp_path / name).chmod(0o755)
    result = asked_by_command(scheduler, tmp_path)
    assert (result.returncode, result.stdout) == (1, b"")
    assert result.stderr != b""


class Server:
    """Takes posts, and remembers them."""

    def __init__(self) -> None:
        self.posts: list[tuple[str, str | None, str | None, bytes]] = []
        posts = self.posts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = (self.headers["Authorization"], self.headers["Content-Type"])
                posts.append((self.path, *headers, body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def post(self, feed: str, path: Path) -> int:
        """How `post.sh` ends; commands are found in `path` first."""
        (path / "token").write_text("fw_secret\n")
        environment = {
            "PATH": f"{path}:/usr/bin:/bin",
            "FLOPWATCH_URL": f"http://127.0.0.1:{self.http.server_port}",
            "FLOPWATCH_FEED_TOKEN_FILE": str(path / "token"),
            "TMPDIR": str(path),
        }
        return subprocess.run([FEEDS / "post.sh", feed], env=environment).returncode


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


def test_a_feed_is_posted_as_the_server_wants_it_and_leaves_no_file(
    server: Server, commands: Path
) -> None:
    before = {*commands.iterdir(), commands / "token"}
    assert server.post("pbs.py", commands) == 0
    ((path, authorization, content_type, body),) = server.posts
    assert (path, authorization) == ("/api/v1/feed", "Bearer fw_secret")
    assert content_type == "application/x-ndjson"
    assert len(parse(body, datetime.now(UTC)).jobs) > 0
    assert {*commands.iterdir()} == before


def test_a_feed_that_fails_is_not_posted(server: Server, tmp_path: Path) -> None:
    assert server.post("pbs.py", tmp_path) != 0
    assert server.posts == []
