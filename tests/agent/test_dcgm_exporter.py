"""Activity from a dcgm-exporter: a real server, its faults, and how often it has anything new."""

from collections.abc import Iterator
from itertools import count

import pytest

from flopwatch_agent import collectors
from flopwatch_agent.collectors.dcgm_exporter import MAX_PAGE_BYTES, Heartbeat
from flopwatch_agent.sampler import Interval
from tests.agent.conftest import START, Bench
from tests.lab.fake_exporter import FakeExporter
from tests.lab.fake_nvml import FakeDriver
from tests.lab.processes import wait_for


@pytest.fixture
def exporter() -> Iterator[FakeExporter]:
    made = FakeExporter()
    yield made
    made.down()


@pytest.fixture
def bench(driver: FakeDriver, exporter: FakeExporter) -> Iterator[Bench]:
    """Two GPUs without GPM, and an exporter that knows both."""
    for gpu in range(2):
        driver.set(gpu, gpm="0", power_watts=300)
        exporter.set(driver.uuid(gpu), sm_active=0.5 + 0.25 * gpu, engine_active=0.9, pcie_rx=3e9)
    driver.write()
    made = Bench(driver, {"dcgm-exporter": exporter.url})
    yield made
    made.inventory.close()


def interval_of(bench: Bench, gpu: int, first: int, last: int) -> Interval:
    """The last interval of a GPU in these seconds."""
    closed = bench.seconds(first, last)
    return [each for key, each in closed if key[0] == bench.driver.uuid(gpu)][-1]


def test_a_gpu_without_gpm_has_the_activity_that_the_page_tells_of_it(bench: Bench) -> None:
    bench.seconds(0, 10)
    closed = bench.seconds(11, 20)
    for gpu, sm_active in ((0, 0.5), (1, 0.75)):
        values = bench.values(gpu, closed)
        assert values["sm_active"] == pytest.approx(sm_active)
        assert values["pcie_rx"] == pytest.approx(3e9)
        assert (values["sm_min"], values["sm_max"]) == pytest.approx((sm_active, sm_active))
        assert values["engine_low_share"] == 0
        assert values["tensor_active"] == "absent"
        assert values["power_watts"] == pytest.approx(300)
        assert values["source_period"] == 1
    source = closed[0][1].source
    assert (source.name, source.period_seconds) == ("dcgm_exporter", 1)
    assert source.passed_over == {"gpm": "unsupported"}


def test_the_mean_is_of_all_points_of_the_interval(bench: Bench, exporter: FakeExporter) -> None:
    uuid = bench.driver.uuid(0)

    def work(offset: int) -> None:
        exporter.set(uuid, sm_active=1.0 if 12 <= offset < 15 else 0.0)

    bench.seconds(0, 10, work)
    values = bench.values(0, bench.seconds(11, 20, work))
    assert values["sm_active"] == pytest.approx(0.3)
    assert (values["sm_min"], values["sm_max"]) == (0, 1)


def test_an_exporter_that_samples_every_30_seconds_is_no_finer_than_that(
    bench: Bench, exporter: FakeExporter
) -> None:
    def sample(offset: int) -> None:
        exporter.samples = offset % 30 == 29

    exporter.samples = False
    bench.seconds(0, 100, sample)
    found = interval_of(bench, 0, 101, 110)
    assert found.values["source_period"] == found.source.period_seconds == 30
    assert found.values["sm_active"] == pytest.approx(0.5)
    assert [found.values[name] for name in ("engine_low_share", "sm_min", "sm_max")] == [
        "unsupported"
    ] * 3


def test_an_exporter_that_samples_faster_again_is_believed(
    bench: Bench, exporter: FakeExporter
) -> None:
    def sample(offset: int) -> None:
        exporter.samples = offset % 30 == 29 or offset > 100

    bench.seconds(0, 110, sample)
    assert interval_of(bench, 0, 111, 120).values["source_period"] == 1


def test_a_configured_period_holds_where_nothing_is_known_yet(
    driver: FakeDriver, exporter: FakeExporter
) -> None:
    driver.set(0, gpm="0")
    exporter.set(driver.uuid(0), sm_active=0.5)
    settings = {"dcgm-exporter": exporter.url, "dcgm-exporter-period": "15"}
    bench = Bench(driver, settings)
    bench.seconds(0, 10)
    assert interval_of(bench, 0, 11, 20).values["source_period"] == 15
    assert exporter.asked <= 3
    bench.inventory.close()


def test_a_page_that_has_not_changed_for_minutes_is_no_idleness(
    bench: Bench, exporter: FakeExporter
) -> None:
    bench.seconds(0, 20)
    exporter.samples = False
    bench.seconds(21, 150)
    found = interval_of(bench, 0, 151, 160)
    assert found.source.name is None
    assert found.values["sm_active"] in ("absent", "stale")
    assert "has not changed for" in found.source.passed_over["dcgm_exporter"]


def test_instances_are_found_by_their_gpus_uuid_and_their_number(
    bench: Bench, exporter: FakeExporter
) -> None:
    bench.driver.split(0, ["3g.40gb", "3g.40gb"])
    bench.driver.write()
    bench.inventory.discover()
    exporter.set(bench.driver.uuid(0), 2, sm_active=0.25)
    bench.seconds(0, 10)
    closed = {key: each for key, each in bench.seconds(11, 20) if key[1]}
    told = {key[1]: each.values["sm_active"] for key, each in closed.items()}
    assert told == {"1/0": "absent", "2/0": pytest.approx(0.25)}
    first = next(each for key, each in closed.items() if key[1] == "1/0")
    assert first.source.passed_over["dcgm_exporter"] == "no row for this GPU"


def test_one_gpu_uses_gpm_and_its_neighbour_the_page(
    driver: FakeDriver, exporter: FakeExporter
) -> None:
    driver.set(0, sm_active=0.4)
    driver.set(1, gpm="0")
    for gpu in range(2):
        exporter.set(driver.uuid(gpu), sm_active=0.9)
    bench = Bench(driver, {"dcgm-exporter": exporter.url})
    bench.seconds(0, 10)
    closed = dict(bench.seconds(11, 20))
    told = {each.source.name: each.values["sm_active"] for each in closed.values()}
    assert told == {"gpm": pytest.approx(0.4), "dcgm_exporter": pytest.approx(0.9)}
    bench.inventory.close()


def test_faults_of_a_page_are_logged_once_with_their_numbers(
    bench: Bench, exporter: FakeExporter, caplog: pytest.LogCaptureFixture
) -> None:
    uuid = bench.driver.uuid(0)
    exporter.body = (
        f'DCGM_FI_PROF_SM_ACTIVE{{UUID="{uuid}"}} 0.5\n'
        f'DCGM_FI_PROF_DRAM_ACTIVE{{UUID="{uuid}"}} 7\n'
        f'DCGM_FI_PROF_SM_OCCUPANCY{{UUID="{uuid}"}} ERROR\n'
    ).encode()
    bench.seconds(0, 10)
    found = interval_of(bench, 0, 11, 20)
    assert (found.values["sm_active"], found.values["dram_active"]) == (0.5, "implausible")
    (record,) = [each for each in caplog.records if "can't be read" in each.message]
    assert "1 lines can't be read, as: DCGM_FI_PROF_SM_OCCUPANCY" in record.message
    assert "1 values can't be" in record.message


def test_a_page_that_outlives_its_gpu_is_no_answer_of_the_gpu(bench: Bench) -> None:
    bench.seconds(0, 10)
    bench.driver.set(0, error="15")
    found = interval_of(bench, 0, 11, 20)
    assert (found.readings, found.covered) == (0, False)


def test_nobody_asks_for_a_page_that_no_gpu_needs(
    driver: FakeDriver, exporter: FakeExporter
) -> None:
    bench = Bench(driver, {"dcgm-exporter": exporter.url})
    bench.seconds(0, 20)
    asked = exporter.asked
    bench.seconds(21, 90)
    assert exporter.asked <= asked + 40  # for a while after the first interval at most
    before = exporter.asked
    bench.seconds(91, 150)
    assert exporter.asked == before
    bench.inventory.close()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"status": 503}, "HTTP 503"),
        ({"status": 302}, "HTTP 302"),
        ({"body": b"x" * (MAX_PAGE_BYTES + 1)}, f"the page is over {MAX_PAGE_BYTES} bytes"),
        ({"cuts": 5}, "the page is cut off"),
        ({"body": b""}, "no row for this GPU"),
        ({"body": b"\xff\xfe\x00 garbage\n" * 20}, "no row for this GPU"),
    ],
)
def test_what_is_wrong_with_the_answer_is_told(
    bench: Bench, exporter: FakeExporter, fault: dict[str, object], words: str
) -> None:
    for name, value in fault.items():
        setattr(exporter, name, value)
    bench.seconds(0, 10)
    found = interval_of(bench, 0, 11, 20)
    assert found.source.name is None
    assert found.source.passed_over == {"gpm": "unsupported", "dcgm_exporter": words}
    assert found.values["sm_active"] == "absent"
    assert found.values["power_watts"] == pytest.approx(300)


def test_a_refused_connection_is_told_and_asked_again_ever_more_seldom(
    bench: Bench, exporter: FakeExporter
) -> None:
    exporter.down()
    bench.seconds(0, 10)
    assert interval_of(bench, 0, 11, 20).source.passed_over["dcgm_exporter"] == "connection refused"
    exporter.up()
    bench.seconds(21, 120)
    assert interval_of(bench, 0, 121, 130).values["sm_active"] == pytest.approx(0.5)


def test_an_answer_that_drips_is_broken_off_and_costs_no_tick(
    bench: Bench, exporter: FakeExporter
) -> None:
    bench.inventory._deadline_seconds = 0.4
    exporter.hangs.set()
    bench.seconds(0, 10)
    found = interval_of(bench, 0, 11, 20)
    assert found.readings == 10
    assert found.values["power_watts"] == pytest.approx(300)
    assert found.source.name is None
    decades = count(2)

    def asked_again() -> bool:
        first = 10 * next(decades)
        bench.seconds(first + 1, first + 10)
        return exporter.asked > 1

    wait_for(asked_again, "the answer is broken off", 20, 0.02)
    first = 10 * next(decades)
    words = interval_of(bench, 0, first + 1, first + 10).source.passed_over
    assert words["dcgm_exporter"] == "no answer in 3 s"
    exporter.hangs.clear()
    first = 10 * next(decades)
    bench.seconds(first + 1, first + 100)
    assert interval_of(bench, 0, first + 101, first + 110).values["sm_active"] == 0.5


def test_a_new_code_in_the_xid_gauge_is_an_event_and_the_first_is_not(
    bench: Bench, exporter: FakeExporter
) -> None:
    uuid = bench.driver.uuid(0)
    exporter.set(uuid, xid=31)
    closed = bench.seconds(0, 30)
    exporter.set(uuid, xid=48)
    closed += bench.seconds(31, 60)
    told = [
        (each.kind, each.value, each.second - START)
        for key, interval in closed
        if key[0] == uuid
        for each in interval.happenings
    ]
    assert told == [("xid", 48, 31)]


@pytest.mark.parametrize("url", ["127.0.0.1:9400", "ftp://h/metrics", "http:///metrics"])
def test_what_is_no_url_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(ValueError, match="no http URL"):
        collectors.start({"dcgm-exporter": url})


@pytest.mark.parametrize("period", ["0", "-1", "1.5", "3601", "ten", ""])
def test_what_is_no_period_is_refused_at_the_start(period: str) -> None:
    settings = {"dcgm-exporter": "http://h/metrics", "dcgm-exporter-period": period}
    with pytest.raises(ValueError, match="no number of seconds"):
        collectors.start(settings)


def test_a_late_answer_does_not_make_the_period_longer() -> None:
    heart = Heartbeat(1)
    for second, page in ((1, 1), (2, 2), (3, 2), (4, 4), (5, 5), (6, 6)):
        heart.feel(page, second)
    assert heart.period(6) == 1
