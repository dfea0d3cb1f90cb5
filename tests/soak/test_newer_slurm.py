"""All tests of a real Slurm again on Debian 13: Slurm 24.11, Python 3.13, MariaDB 11."""

import shlex
import tomllib
from pathlib import Path

import pytest

from tests.soak.bare_root import bare_root, run_pytest

TESTS = ("tests/slurm", "tests/system/test_gres_positions.py")
NEEDED = ("hypothesis", "pytest", "pytest-timeout")
"""Of the packages for developers, what these tests import: no torch, which takes minutes."""

_SCRIPT = """\
set -e
make .venv/run
.venv/bin/pip install --quiet --disable-pip-version-check --no-compile {packages}
tests/lab/prepare.sh slurm
slurmctld -V
exec .venv/bin/pytest --durations 10 {tests}
"""


def requirements(pyproject: Path) -> list[str]:
    """NEEDED as the project asks for them."""
    project = tomllib.loads(pyproject.read_text())["project"]
    told = {each.split(">=")[0]: each for each in project["optional-dependencies"]["dev"]}
    return [told[name] for name in NEEDED]


@pytest.mark.timeout(1200)
def test_slurm_24_11_is_read_as_22_05_is(tmp_path: Path) -> None:
    log = tmp_path / "test.log"
    with bare_root(tmp_path / "root", "trixie") as root:
        packages = shlex.join(requirements(root.clone / "pyproject.toml"))
        script = _SCRIPT.format(packages=packages, tests=shlex.join(TESTS))
        run_pytest(root, ["sh", "-c", script], log, 1100)
    assert "slurm-wlm 24.11" in log.read_text()
