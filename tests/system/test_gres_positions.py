"""A real Slurm whose device files are in another order than their minors."""

import psycopg
import pytest

from tests.lab.processes import wait_for
from tests.system.site import Site, site

REVERSED = (7, 6, 5, 4, 3, 2, 1, 0)  # minors of the files nvidia0, nvidia1, ...


@pytest.mark.timeout(300)
def test_a_job_is_charged_for_the_gpus_that_it_can_open() -> None:
    with site(nodes=1, device_minors=REVERSED) as centre:
        [node] = centre.slurm.nodes
        driver = centre.drivers[node]
        minors = {driver.uuid(gpu): (gpu + 4) % 8 for gpu in range(8)}  # as FakeDriver has them
        job = centre.slurm.submit(
            f"for file in {centre.slurm.device_folder(node)}/nvidia*; do\n"
            '  (: <"$file") 2>&1 | grep -q "not permitted" || stat --format=%T "$file"\n'
            "done\n"
            "exec sleep 1000",
            "--gpus=2",
        )
        centre.slurm.wait_state(job, "RUNNING")
        wait_for(lambda: len(_charged(centre, job)) == 2, "both GPUs of the job are known", 60)
        output = centre.slurm.users["fwalice"].home / f"slurm-{job}.out"
        opened = {int(minor, 16) for minor in output.read_text().split()}
        assert opened == {7, 6}
        assert {minors[uuid] for uuid, _ in _charged(centre, job)} == opened
        assert {confidence for _, confidence in _charged(centre, job)} == {"likely"}


def _charged(centre: Site, job: int) -> list[tuple[str, str]]:
    """UUID and confidence of each GPU that the server says the job holds."""
    with psycopg.connect(centre.server.database_url()) as connection:
        return connection.execute(
            "SELECT uuid, confidence FROM allocations JOIN runs ON runs.id = run_id"
            " JOIN devices ON devices.id = device_id WHERE raw_job_id = %s",
            (job,),
        ).fetchall()
