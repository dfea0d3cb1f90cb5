"""Train seconds lie between optimizer steps, outside phases."""

import flopwatch
from flopwatch.hook.clock import MAX_PHASES, Clock
from flopwatch.hook.session import Session
from tests.hook.toys import Hand


def test_the_first_step_has_no_known_length() -> None:
    hand = Hand()
    clock = Clock(hand)
    hand.time += 60  # start-up
    assert not clock.close_window()
    hand.time += 3
    assert clock.close_window()
    hand.time += 4
    assert clock.close_window()
    hand.time += 50  # after the last step
    assert clock.train_seconds == 7
    assert clock.elapsed_seconds == 117


def test_phases_are_cut_out_of_the_window_they_interrupt() -> None:
    hand = Hand()
    clock = Clock(hand)
    clock.close_window()
    hand.time += 2
    clock.enter_phase("eval")
    hand.time += 30
    clock.enter_phase("checkpoint")
    hand.time += 10
    clock.leave_phase()
    hand.time += 5
    clock.leave_phase()
    hand.time += 1
    assert clock.train_seconds == 0  # the window is open still
    clock.close_window()
    assert clock.train_seconds == 3
    assert clock.phase_seconds == {"eval": 35, "checkpoint": 10}


def test_phase_before_the_first_step_is_timed() -> None:
    hand = Hand()
    clock = Clock(hand)
    hand.time += 5
    clock.enter_phase("load")
    hand.time += 7
    clock.leave_phase()
    assert clock.phase_seconds == {"load": 7}


def test_phases_without_end_are_gathered_under_one_name() -> None:
    clock = Clock(Hand())
    for number in range(MAX_PHASES + 10):
        clock.enter_phase(f"epoch {number}")
        clock.leave_phase()
    assert len(clock.phase_seconds) == MAX_PHASES + 1
    assert "other" in clock.phase_seconds


def test_flops_count_for_the_windows_whose_time_counts() -> None:
    hand = Hand()
    session = Session(hand)
    # (seconds, FLOPs) of steps of uneven length; the first one's length is unknown.
    for seconds, flops in [(100, 7.0), (1, 10.0), (4, 30.0), (2, 20.0)]:
        hand.time += seconds
        session.add_training({"float32": flops})
        session.end_step()
    session.add_training({"float32": 1000.0})  # a step that never ends
    report = session.report()
    assert (report.train_flops, report.train_seconds) == ({"float32": 60.0}, 7)
    assert report.steps == 3


def test_two_optimizers_make_one_step_of_one_forward_and_lose_no_time() -> None:
    hand = Hand()
    session = Session(hand)
    for _ in range(3):
        hand.time += 2
        session.add_training({"float32": 5.0})
        session.end_step()
        hand.time += 1
        session.end_step()
    report = session.report()
    # Known is the time from the first optimizer step on: 1 + 3 + 3.
    assert (report.train_flops, report.train_seconds, report.steps) == ({"float32": 10.0}, 7, 2)


def test_optimizer_step_inside_a_phase_is_no_training() -> None:
    hand = Hand()
    session = Session(hand)
    for inside in (False, True, False):
        hand.time += 2
        session.add_training({"float32": 5.0})
        if inside:
            with session.phase("probe"):
                session.end_step()
        else:
            session.end_step()
    report = session.report()
    assert (report.train_flops, report.train_seconds, report.steps) == ({"float32": 10.0}, 4, 1)


def test_exception_in_a_phase_ends_it() -> None:
    try:
        with flopwatch.phase("eval"):
            raise ValueError
    except ValueError:
        pass
    assert not flopwatch.hook.session.current().clock.in_phase


def test_a_phase_always_has_a_name() -> None:
    clock = Clock(Hand())
    clock.enter_phase("")
    clock.leave_phase()
    assert clock.phase_seconds == {"unnamed": 0.0}
