"""The doctor's page in a real browser: what it tells staff, and that nobody else has it."""

import pytest
from playwright.sync_api import Page
from sqlalchemy import select, update

from flopwatch_dashboard.pages.doctor import words
from flopwatch_server.access.principal import Principal, Role
from flopwatch_server.doctor.checks import CHECKS
from flopwatch_server.doctor.schemas import CheckView, Diagnosis, FindingView
from flopwatch_server.fleet.models import Node, Placement
from flopwatch_server.jobs.models import Evidence
from tests.dashboard import cluster
from tests.dashboard.conftest import Server
from tests.dashboard.screen import go
from tests.dashboard.visitors import served_to
from tests.lab.processes import wait_for


def mend(server: Server) -> None:
    """Do what the page says must be done on the small cluster."""
    with server.database.session() as session:
        session.execute(update(Node).where(Node.name == "x001").values(gpu_count=None))
        session.execute(update(Placement).values(ordinal_source="gres.conf"))
        session.execute(update(Node).where(Node.name == "g014").values(scheduler_state="MIXED"))
        node_id = session.scalars(select(Node.id).where(Node.name == "g014")).one()
        seen_at = server.clock.now
        session.add(
            Evidence(node_id=node_id, kind="cgroup", raw_job_id=int(cluster.TRAINING), pid=7, uid=1,
                     first_seen_at=seen_at, last_seen_at=seen_at)
        )  # fmt: skip


def test_findings_say_what_to_do_and_go_away_by_themselves_once_mended(
    page: Page, server: Server
) -> None:
    go(page, server, "/doctor")
    found = page.get_by_test_id("finding")
    assert [each.locator(".what").inner_text() for each in found.all()] == [
        "Nodes with GPUs whose agent has never reported: x001.",
        "2 jobs run on nodes whose agents see no process of any job.",
        "Which GPU stands at which GRES position is assumed on g014.",
    ]
    assert found.first.locator(".severity").get_attribute("class") == "severity warning"
    assert found.first.locator(".remedy").inner_text().startswith("Install the agent there;")
    assert page.locator("#doctor-lead").inner_text() == (
        f"2 warnings and 1 note on granite; {len(CHECKS)} checks were made."
    )
    mend(server)
    page.get_by_role("heading", name="Nothing to mend").wait_for()
    rows = page.get_by_role("table", name="Checks that were made").locator("tbody tr")
    assert rows.count() == len(CHECKS)
    assert rows.locator(".passed").count() == len(CHECKS)
    looked_at = page.locator("#doctor-looked-at").inner_text()
    assert looked_at.startswith("What was looked at\nExamined\n2")
    assert looked_at.endswith("1 of 1 report")


@pytest.mark.parametrize(
    ("role", "status", "title"),
    [("support", 200, "Doctor"), ("researcher", 404, "Not found")],
)
def test_the_page_and_the_way_to_it_are_there_for_staff_only(
    page: Page,
    server: Server,
    tmp_path_factory: pytest.TempPathFactory,
    role: Role,
    status: int,
    title: str,
) -> None:
    with served_to(Principal("bo", role), server, tmp_path_factory) as there:
        answer = page.goto(there.url + "/doctor")
        assert answer is not None
        assert answer.status == status
        wait_for(lambda: page.locator("h1").all_inner_texts() == [title], "the page's title", 20)
        links = page.locator(".rail a[data-nav]").all_inner_texts()
        assert ("Doctor" in links) == (status == 200)
        live = page.request.get(
            f'{there.url}/_live?wish={{"type":"follow","number":1,"path":"/doctor"}}'
        )
        assert live.status == status
        page.goto("about:blank")  # the server ends once nobody follows


def test_commands_are_set_as_code_and_apostrophes_are_not() -> None:
    text = words.sentence("can't read the node's file: run 'ls -l' as the server's user")
    assert [getattr(part, "children", part) for part in text] == [
        "Can't read the node's file: run ", "ls -l", " as the server's user.",
    ]  # fmt: skip


def test_the_lead_counts_each_kind(server: Server) -> None:
    checks = [CheckView(name=name, looks_for="", findings=0) for name in ("a", "b")]
    kinds = ("fault", "fault", "note")
    findings = [FindingView(check="", severity=kind, what="", remedy="") for kind in kinds]
    made = Diagnosis(
        cluster="granite", examined_at=server.clock.now, findings=[], checks=checks, sources=[],
        version=None, cgroups={}, agents=0, agents_reporting=0,
    )  # fmt: skip
    assert words.lead(made) == "Nothing to mend on granite: all 2 checks passed."
    many = made.model_copy(update={"findings": findings})
    assert words.lead(many) == "2 faults and 1 note on granite; 2 checks were made."
