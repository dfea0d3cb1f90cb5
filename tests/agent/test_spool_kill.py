"""kill -9 at any moment, in front of a server that fails in every way: nothing is lost."""

import json
import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from flopwatch.wire import split_batch
from tests.agent.test_shipper import Server
from tests.lab.spooled import waiting

LIVES = 6


@pytest.mark.parametrize("seed", [1, 2])
def test_all_that_was_on_disk_arrives_after_any_number_of_kills(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("fpn_secret")
    server = Server()
    # 0 takes the batch and hangs up: the agent can't know that the server has it.
    statuses = [200, 200, 200, 0, 500, 503]
    server.answers = [(draw.choice(statuses), {}) for _ in range(400)]
    spooled: set[tuple[int, int]] = set()
    for epoch in range(LIVES):
        life = subprocess.Popen(
            [sys.executable, "-m", "tests.agent.spool_process",
             str(tmp_path / "spool"), server.url, str(token), str(epoch)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert life.stdin is not None
        assert life.stdout is not None
        spooled.add((epoch, int(life.stdout.readline())))
        if epoch < LIVES - 1:
            threading.Timer(draw.uniform(0.0, 0.8), life.kill).start()
        else:
            life.stdin.close()  # the last life ships all that is left
        spooled |= {(epoch, int(line)) for line in life.stdout if line.endswith("\n")}
        life.wait(60)
    assert life.returncode == 0
    server.close()
    assert waiting(tmp_path / "spool") == []
    arrived = Counter(key for body in server.bodies for key in _keys(body))
    assert spooled <= set(arrived)
    # A batch that was written in the moment of a kill was not told of, but arrives all the same.
    assert len(set(arrived) - spooled) <= LIVES
    assert (tmp_path / "spool/gaps.json").exists() is False


def _keys(body: bytes) -> list[tuple[int, int]]:
    """(epoch, time) of each sample."""
    header = json.loads(split_batch(body)[0])
    return [(header["epoch"]["number"], time) for time in header["samples"]["time"]]
