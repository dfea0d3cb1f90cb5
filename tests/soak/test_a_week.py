"""A week of every GPU, second by second."""

import pytest

from tests.lab.postgres import DatabaseFactory, postgres, public_folder
from tests.server.test_conservation import check
from tests.simulation.conservation import Stretch


@pytest.mark.timeout(900)
def test_a_week_of_every_gpu_adds_up_to_the_second() -> None:
    with (
        public_folder() as folder,
        postgres(folder) as server,
        DatabaseFactory(server.url).database() as database,
    ):
        check(database, Stretch(days=7))
