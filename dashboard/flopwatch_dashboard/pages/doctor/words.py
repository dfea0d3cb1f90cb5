"""The doctor's sentences."""

import re
from collections import Counter
from typing import get_args

from dash import html
from dash.development.base_component import Component

from flopwatch_dashboard.format import plural
from flopwatch_server.doctor.schemas import Diagnosis, Severity

_KINDS: tuple[Severity, ...] = get_args(Severity)
_QUOTED = re.compile(r"(?<!\w)'([^']+)'(?!\w)")


def lead(found: Diagnosis) -> str:
    """How much there is to mend, or that there is nothing."""
    checks = plural(len(found.checks), "check")
    if not found.findings:
        return f"Nothing to mend on {found.cluster}: all {checks} passed."
    number = Counter(finding.severity for finding in found.findings)
    told = [plural(number[kind], kind) for kind in _KINDS if number[kind]]
    listed = " and ".join(filter(None, (", ".join(told[:-1]), told[-1])))
    return f"{listed} on {found.cluster}; {checks} were made."


def sentence(clause: str) -> list[str | Component]:
    """A clause as a sentence, with what stands in quotes set as code: commands, for the most."""
    text = clause[:1].upper() + clause[1:]
    parts: list[str | Component] = list(_QUOTED.split(text if text.endswith(".") else f"{text}."))
    parts[1::2] = [html.Code(command) for command in parts[1::2]]
    return parts
