"""The doctor's page: what is wrong, worst first; which checks were made; what they looked at."""

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from flopwatch_dashboard.address import Place
from flopwatch_dashboard.components import (
    Column,
    card,
    code,
    empty,
    facts,
    full_time,
    icon,
    severity,
    table,
)
from flopwatch_dashboard.components.severity import Severity
from flopwatch_dashboard.format import count, plural
from flopwatch_dashboard.freshness import freshness
from flopwatch_dashboard.pages import Shown
from flopwatch_dashboard.pages.doctor import words
from flopwatch_dashboard.services import Visit, call, time_of
from flopwatch_dashboard.words import source_name, source_state
from flopwatch_server.doctor import service
from flopwatch_server.doctor.schemas import CheckView, Diagnosis, FindingView

NO_CLUSTER = "no cluster"
_SIGNS: dict[str, tuple[Severity, str]] = {
    "fault": ("flag", "Fault: figures are missing or wrong"),
    "warning": ("warning", "Warning: figures may be missing or wrong"),
    "note": ("watch", "Note: a figure rests on an assumption"),
}


def read(visit: Visit, cluster: str) -> Diagnosis:
    """The diagnosis of one cluster."""
    return service.diagnosis(visit.session, visit.principal, cluster, visit.now)


async def show(place: Place) -> Shown:
    """The whole page for an address."""
    if place.cluster is None:
        return Shown(_no_cluster(), freshness(None, await call(time_of)), shape=NO_CLUSTER)
    found = await call(read, place.cluster.name)
    lead, findings, checks, looked_at = (
        html.Div(children, id=name) for name, children in parts(found).items()
    )
    content = html.Div(
        [
            html.Div(html.Div([html.H1("Doctor", tabIndex="-1"), lead]), className="page-head"),
            html.Div(
                [
                    html.Div([findings, checks], className="stack"),
                    html.Div([looked_at, _command_card(found.cluster)], className="stack"),
                ],
                className="columns doctor",
            ),
        ]
    )
    return Shown(content, freshness(found.examined_at, found.examined_at), shape=found.cluster)


def parts(found: Diagnosis) -> dict[str, Component]:
    """What each place of the page shows, in their order."""
    return {
        "doctor-lead": html.P(words.lead(found), className="lead"),
        "doctor-findings": _findings_card(found.findings),
        "doctor-checks": _checks_card(found),
        "doctor-looked-at": _looked_at_card(found),
    }


def _no_cluster() -> Component:
    why = (
        "No agent has reported and no scheduler has told of anything: there is nothing to examine."
    )
    start = html.A("Overview", href="/", className="button")
    return html.Div([html.H1("Doctor", tabIndex="-1"), empty("No cluster yet", why, start)])


def _findings_card(findings: Sequence[FindingView]) -> Component:
    if not findings:
        passed = html.P("Every check passed. They are listed below, and are made again every 5 s "
                        "while this page is open.")  # fmt: skip
        return card("Nothing to mend", html.Div(passed, className="card-body"))
    legend = [html.Span([severity(*sign), kind]) for kind, sign in _SIGNS.items()]
    return card(
        "Findings",
        html.Ul([_finding(each) for each in findings], className="findings"),
        note="worst first",
        aside=html.Span(legend, className="legend"),
    )


def _finding(found: FindingView) -> Component:
    return html.Li(
        [
            severity(*_SIGNS[found.severity]),
            html.Div(
                [
                    html.P(words.sentence(found.what), className="what"),
                    html.P(words.sentence(found.remedy), className="remedy"),
                ]
            ),
        ],
        **{"data-testid": "finding"},
    )


def _checks_card(found: Diagnosis) -> Component:
    worst = {finding.check: finding.severity for finding in reversed(found.findings)}

    def name(check: CheckView) -> Component:
        failed = worst.get(check.name)
        sign = severity(*_SIGNS[failed]) if failed else icon("check")
        text = check.name[:1].upper() + check.name[1:]
        return html.Span([sign, text], className="check" if failed else "check passed")

    columns: Sequence[Column[CheckView]] = (
        Column("Check", name, "strong"),
        Column("Looks for", lambda check: check.looks_for, "looks-for optional"),
        Column("Findings", lambda check: count(check.findings), "number"),
    )
    passed = sum(not check.findings for check in found.checks)
    return card(
        "Checks",
        table(columns, found.checks, "Checks that were made"),
        note=f"{passed} of {plural(len(found.checks), 'check')} passed",
    )


def _looked_at_card(found: Diagnosis) -> Component:
    answers = [
        (source_name(source), source_state(source, found.examined_at)) for source in found.sources
    ]
    agents = f"{count(found.agents_reporting)} of {count(found.agents)} report"
    cgroups = [f"{form} on {plural(nodes, 'node')}" for form, nodes in found.cgroups.items()]
    rows = [
        ("Examined", full_time(found.examined_at)),
        *([("Slurm's version", found.version)] if found.version else []),
        *(answers or [("Scheduler", "none has told of anything")]),
        ("Agents", agents if found.agents else "none yet"),
        *([("Cgroups", ", ".join(sorted(cgroups)))] if cgroups else []),
    ]
    return card("What was looked at", html.Div(facts(rows), className="card-body"))


def _command_card(cluster: str) -> Component:
    text = html.P("The same on the server's host; it exits with 1 while there is a fault.")
    command = code(f"flopwatch doctor --cluster {cluster}")
    return card("On the command line", html.Div([text, command], className="card-body just"))
