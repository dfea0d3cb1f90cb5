"""One real Slurm for all tests of this room."""

from collections.abc import Iterator

import pytest

from tests.lab.slurm import SlurmLab, lab_folder


@pytest.fixture(scope="session")
def slurm_lab() -> Iterator[SlurmLab]:
    """Two nodes with eight GPUs each."""
    with lab_folder() as root, SlurmLab(root) as lab:
        yield lab
