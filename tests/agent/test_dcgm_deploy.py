"""What we ship for a dcgm-exporter is what the agent reads, and it needs one pass of counters."""

from pathlib import Path

from flopwatch.metrics import METRICS
from flopwatch_agent.collectors import start
from flopwatch_agent.collectors.dcgm import ENERGY_FIELD, ONE_PASS, XID_FIELD, field_of

FOLDER = Path(__file__).parents[2] / "deploy/dcgm-exporter"
# Counters of one pass on every list of counter groups that was published (A10, T4 and A100): the
# ratios but those of the FP pipes, PCIe and NVLink.
PUBLISHED_ONE_PASS = {1001, 1002, 1003, 1004, 1005, 1009, 1010, 1011, 1012}


def rows() -> list[list[str]]:
    lines = (FOLDER / "flopwatch.csv").read_text().splitlines()
    return [[cell.strip() for cell in line.split(",")] for line in lines if line[:1] != "#"]


def test_every_row_has_a_field_a_type_and_words() -> None:
    assert all(len(row) == 3 and all(row) for row in rows())
    assert {row[1] for row in rows()} == {"gauge", "counter"}


def test_the_profiling_fields_are_those_of_one_pass() -> None:
    fields = {field_of(row[0]) for row in rows()}
    assert {field for field in fields if field and field > 1000} == PUBLISHED_ONE_PASS
    assert fields - PUBLISHED_ONE_PASS == {XID_FIELD, ENERGY_FIELD}
    assert set(ONE_PASS) == PUBLISHED_ONE_PASS


def test_every_profiling_field_is_a_metric_of_ours() -> None:
    ours = {metric.dcgm_field: metric for metric in METRICS if metric.dcgm_field}
    assert set(ours) >= PUBLISHED_ONE_PASS
    assert {ours[field].unit for field in PUBLISHED_ONE_PASS} == {"ratio", "B/s"}


def test_the_exporter_samples_as_often_as_the_agent_believes_and_where_it_looks() -> None:
    (command,) = [
        line.removeprefix("ExecStart=").split()
        for line in (FOLDER / "flopwatch.conf").read_text().splitlines()
        if line.startswith("ExecStart=/")
    ]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["-f"].endswith("/flopwatch.csv")
    url = f"http://{options['-a']}/metrics"
    assert url in (FOLDER / "flopwatch.conf").read_text()
    (source,) = [each.source for each in start({"dcgm-exporter": url})
                 if each.collector.name == "dcgm_exporter"]  # fmt: skip
    assert source.period_seconds == int(options["-c"]) / 1000  # type: ignore[attr-defined]
