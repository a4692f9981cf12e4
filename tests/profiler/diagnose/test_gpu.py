"""Rules about a GPU, on machines that run programs of several shapes.

The first ones were at hand while the rules were written; those after `LATER` were not.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hotloop.profiler.diagnose import banners, diagnose
from hotloop.profiler.diagnose.diagnosis import UNNAMED, Diagnosis
from tests.profiler.gpu_windows import Machine, profiled, program

PAGEABLE = "Memcpy HtoD (Pageable -> Device)"
PINNED = "Memcpy HtoD (Pinned -> Device)"
BACK = "Memcpy DtoH (Device -> Pageable)"


def eager(machine: Machine) -> None:
    for _ in range(100):
        machine.launch(3, at="train.py:40")
    machine.span("update", 2000)


def graph(machine: Machine) -> None:
    machine.replay([3.0] * 100, at="train.py:50")
    machine.synchronise(at="train.py:52")


def waits_often(machine: Machine) -> None:
    for _ in range(20):
        for _ in range(5):
            machine.launch(4, at="train.py:40", us=12)
        machine.synchronise(at="train.py:60")
        machine.host(60, at="train.py:61", stage="update")


def large_kernels(machine: Machine) -> None:
    for _ in range(20):
        machine.launch(900, at="train.py:40", name="gemm")
    machine.synchronise(at="train.py:61")


def slow_environment(machine: Machine) -> None:
    machine.host(700, at="train.py:20", stage="env")
    for _ in range(10):
        machine.launch(4, at="train.py:40")


def pageable(machine: Machine) -> None:
    machine.copy(PAGEABLE, 4_000_000, 350, at="train.py:30", host_us=400)
    for _ in range(10):
        machine.launch(20, at="train.py:40")


# LATER ------------------------------------------------------------------------------------------


def waits_for_long_kernels(machine: Machine) -> None:
    """A synchronisation after each, and then Python that could have run beside it."""
    machine.launch(800, at="train.py:70")
    machine.synchronise(at="train.py:71")
    machine.host(700, at="train.py:72", stage="update")


def fetches_actions(machine: Machine) -> None:
    """What waits is the action, without which no step can be made."""
    machine.launch(50, at="train.py:21", stage="env")
    machine.copy(BACK, 8, 2, at="train.py:22", stage="env")
    machine.synchronise(at="train.py:22", stage="env")
    machine.host(100, at="train.py:23", stage="env")


def pinned(machine: Machine) -> None:
    """As pageable copies, but that the host goes on."""
    machine.copy(PINNED, 4_000_000, 90, at="train.py:30")
    for _ in range(10):
        machine.launch(20, at="train.py:40")


def compiled(machine: Machine) -> None:
    """Few kernels, which the host launches as fast as they run."""
    for _ in range(8):
        machine.launch(15, at="train.py:40", us=14)


def tiny_copies(machine: Machine) -> None:
    """Observations of some bytes, one by one, from pageable memory."""
    for _ in range(8):
        machine.copy(PAGEABLE, 68, 1.5, at="train.py:33", host_us=14)
    machine.host(60, at="train.py:34", stage="update")
    machine.launch(5, at="train.py:40")


def mixed(machine: Machine) -> None:
    """An environment of a sixth, an eager update of the rest."""
    machine.synchronise(at="train.py:19", stage="env")
    machine.host(400, at="train.py:20", stage="env")
    for _ in range(100):
        machine.launch(3, at="train.py:44")


def python_between_graphs(machine: Machine) -> None:
    """The host draws from a replay buffer; the GPU is idle, and no rule about it is right."""
    machine.host(900, at="train.py:15")
    machine.replay([5.0] * 20, at="train.py:50")


def said(once: Callable[[Machine], None]) -> dict[str, Diagnosis]:
    """What is said of the GPU, by rule."""
    session = profiled(program(once, ms=120))
    found = [*banners(session), *diagnose(session)]
    return {one.rule: one for one in found if one.rule.startswith(("gpu-", "pageable-"))}


@pytest.mark.parametrize(
    ("once", "rules", "line"),
    [
        (eager, ["gpu-waits-for-launches"], 40),
        (graph, ["gpu-bound"], None),
        (waits_often, ["gpu-waits-for-launches"], 61),
        (large_kernels, ["gpu-bound"], None),
        (slow_environment, ["gpu-idle-in-environments"], 20),
        (pageable, ["pageable-copies"], 30),
        (waits_for_long_kernels, ["gpu-synchronisations"], 71),
        (fetches_actions, ["gpu-idle-in-environments"], 23),
        (pinned, [], None),
        (compiled, ["gpu-bound"], None),
        (tiny_copies, ["pageable-copies"], 33),
        (mixed, ["gpu-waits-for-launches"], 44),
        (python_between_graphs, [], None),
    ],
)
def test_programs_of_several_shapes(once, rules, line):
    found = said(once)
    assert list(found) == rules
    for one in found.values():
        if line is not None:
            assert one.places[0].line == line
        assert not one.gain or one.gain >= 1.1
        if one.rule != "gpu-bound":
            assert "1 window of 12" in one.evidence[-1]
        if one.rule in ("gpu-synchronisations", "pageable-copies"):
            assert f"at train.py:{line} in <module>" in one.evidence[0]


def us_an_iteration(once: Callable[[Machine], None]) -> float:
    """How long a loop's body takes on the machine, the device included."""
    machine, count = Machine(), 0
    while machine.now_us < 20_000:
        once(machine)
        count += 1
    return max(machine.now_us, machine.free_us) / count


def eager_as_a_graph(machine: Machine) -> None:
    machine.replay([3.0] * 100, at="train.py:40")


def waits_for_no_long_kernels(machine: Machine) -> None:
    machine.launch(800, at="train.py:70")
    machine.host(700, at="train.py:72", stage="update")


def pageable_once_pinned(machine: Machine) -> None:
    machine.host(200, at="train.py:30")  # is filled by the host
    pinned(machine)


def mixed_as_a_graph(machine: Machine) -> None:
    machine.synchronise(at="train.py:19", stage="env")
    machine.host(400, at="train.py:20", stage="env")
    machine.replay([3.0] * 100, at="train.py:44")


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        (eager, eager_as_a_graph, "gpu-waits-for-launches"),
        (mixed, mixed_as_a_graph, "gpu-waits-for-launches"),
        (waits_for_long_kernels, waits_for_no_long_kernels, "gpu-synchronisations"),
        (pageable, pageable_once_pinned, "pageable-copies"),
    ],
)
def test_estimates_are_of_what_the_change_brings(before, after, rule):
    """The same machine runs both; the estimate is within a quarter of their ratio."""
    gain = said(before)[rule].gain
    assert gain is not None
    assert gain == pytest.approx(us_an_iteration(before) / us_an_iteration(after), rel=0.25)


def test_a_busy_gpu_bounds_what_the_host_can_bring():
    def decodes(machine: Machine) -> None:
        # A quarter of a second each of a sleep that the GPU does not notice.
        for _ in range(10):
            machine.launch(95, at="train.py:40", us=10)
        machine.host(800, at="train.py:80")

    session = profiled(program(decodes, ms=120))
    for one in diagnose(session):
        if one.rule != UNNAMED and one.gain is not None:
            assert one.gain <= 1.3
            assert "bounds" in one.evidence[-1]


def test_a_window_of_one_phase_is_weighed_by_the_samples_of_all():
    """PPO's windows may all have fallen into updates, which are a fifth of the time."""
    from hotloop.profiler.diagnose.evidence import Evidence
    from hotloop.profiler.diagnose.gpu import waits_for_launches
    from tests.profiler.sessions import process, seen, session

    def phases(machine: Machine) -> None:
        machine.host(500, at="train.py:20", stage="env")
        for _ in range(75):
            machine.launch(3, at="train.py:40")

    whole = profiled(program(phases, ms=120))
    step = ("<module> (train.py:20)", "Walker.step (/site-packages/gymnasium/envs/walker.py:8)")
    learn = ("<module> (train.py:40)", "backward (/site-packages/torch/autograd/__init__.py:91)")
    main = process(
        samples=[
            seen(*step, elapsed_s=8.0, on_core_s=8.0),
            seen(*learn, elapsed_s=2.0, on_core_s=2.0),
        ],
        cores=8,
    )
    weighed = waits_for_launches(Evidence(session(main, gpu=whole.gpu)))
    believed = waits_for_launches(Evidence(whole))
    assert weighed is not None
    assert believed is not None
    assert believed.gain == pytest.approx(1 / (1 - 0.9 * 0.75 * 17 / 20), rel=0.1)
    assert weighed.gain == pytest.approx(1 / (1 - 0.9 * 0.2 * 17 / 20), rel=0.1)


def test_rules_that_know_less_give_way():
    from hotloop.profiler.diagnose.gpu import INSTEAD_OF

    found = said(eager)
    assert "gpu-waits-for-launches" in found
    session = profiled(program(eager, ms=60))
    assert not {one.rule for one in diagnose(session)} & {INSTEAD_OF[rule] for rule in found}


def test_nothing_is_said_of_a_gpu_that_did_nothing():
    def waits(machine: Machine) -> None:
        machine.host(1000, at="train.py:20", stage="env")

    assert said(waits) == {}
