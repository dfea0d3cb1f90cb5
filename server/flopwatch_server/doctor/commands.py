"""`flopwatch doctor`: what is wrong with an installation, and what to do."""

import sys
from typing import Annotated

import typer

from flopwatch_server.clock import utc_now
from flopwatch_server.commands import database_or_exit
from flopwatch_server.doctor.service import examine
from flopwatch_server.fleet.repository.clusters import every_cluster


def doctor() -> None:
    """Entry point of `flopwatch doctor`."""
    typer.run(_doctor)


def _doctor(
    cluster: Annotated[str | None, typer.Option(help="This cluster only; else all.")] = None,
) -> None:
    """Say what is wrong with clusters, agents and clocks, and what to do. Exits 1 on a fault."""
    with database_or_exit() as database, database.session() as session:
        names = sorted(found.name for found in every_cluster(session))
        if cluster is not None and cluster not in names:
            sys.exit(f"there is no cluster {cluster}; known: {', '.join(names) or 'none'}")
        faulty = False
        for name in names if cluster is None else [cluster]:
            findings = examine(session, name, utc_now())
            print(f"{name}:" if findings else f"{name}: nothing to mend")
            for finding in findings:
                print(f"  {finding.severity}: {finding.what}\n    -> {finding.remedy}")
            faulty = faulty or any(finding.severity == "fault" for finding in findings)
    if faulty:
        raise typer.Exit(1)
