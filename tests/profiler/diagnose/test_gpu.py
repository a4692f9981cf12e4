"""GPU rules, applied to simulated machines that run several kinds of programs.

The programs below `LATER` were written after the rules.
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
    machine.synchronize(at="train.py:52")


def waits_often(machine: Machine) -> None:
    for _ in range(20):
        for _ in range(5):
            machine.launch(4, at="train.py:40", us=12)
        machine.synchronize(at="train.py:60")
        machine.host(60, at="train.py:61", stage="update")


def large_kernels(machine: Machine) -> None:
    for _ in range(20):
        machine.launch(900, at="train.py:40", name="gemm")
    machine.synchronize(at="train.py:61")


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
    """Synchronize after each kernel, and then run Python that could have overlapped."""
    machine.launch(800, at="train.py:70")
    machine.synchronize(at="train.py:71")
    machine.host(700, at="train.py:72", stage="update")


def fetches_actions(machine: Machine) -> None:
    """Wait for actions, which every environment step needs."""
    machine.launch(50, at="train.py:21", stage="env")
    machine.copy(BACK, 8, 2, at="train.py:22", stage="env")
    machine.synchronize(at="train.py:22", stage="env")
    machine.host(100, at="train.py:23", stage="env")


def pinned(machine: Machine) -> None:
    """Copy like `pageable`, but without blocking the host."""
    machine.copy(PINNED, 4_000_000, 90, at="train.py:30")
    for _ in range(10):
        machine.launch(20, at="train.py:40")


def compiled(machine: Machine) -> None:
    """Launch few kernels, as fast as they run."""
    for _ in range(8):
        machine.launch(15, at="train.py:40", us=14)


def tiny_copies(machine: Machine) -> None:
    """Copy small observations one by one from pageable memory."""
    for _ in range(8):
        machine.copy(PAGEABLE, 68, 1.5, at="train.py:33", host_us=14)
    machine.host(60, at="train.py:34", stage="update")
    machine.launch(5, at="train.py:40")


def mixed(machine: Machine) -> None:
    """Run an environment for a sixth of the time, and eager updates otherwise."""
    machine.synchronize(at="train.py:19", stage="env")
    machine.host(400, at="train.py:20", stage="env")
    for _ in range(100):
        machine.launch(3, at="train.py:44")


def python_between_graphs(machine: Machine) -> None:
    """Sample a replay buffer on the host while the GPU is idle. No GPU rule applies."""
    machine.host(900, at="train.py:15")
    machine.replay([5.0] * 20, at="train.py:50")


def gpu_diagnoses(body: Callable[[Machine], None]) -> dict[str, Diagnosis]:
    """Return the diagnoses about the GPU by rule."""
    session = profiled(program(body, ms=120))
    diagnoses = [*banners(session), *diagnose(session)]
    return {
        diagnosis.rule: diagnosis
        for diagnosis in diagnoses
        if diagnosis.rule.startswith(("gpu-", "pageable-"))
    }


@pytest.mark.parametrize(
    ("body", "rules", "line"),
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
def test_programs_of_several_shapes(body, rules, line):
    diagnoses = gpu_diagnoses(body)
    assert list(diagnoses) == rules
    for diagnosis in diagnoses.values():
        if line is not None:
            assert diagnosis.places[0].line == line
        assert not diagnosis.gain or diagnosis.gain >= 1.1
        if diagnosis.rule != "gpu-bound":
            assert "1 window of 12" in diagnosis.evidence[-1]
        if diagnosis.rule in ("gpu-synchronisations", "pageable-copies"):
            assert f"at train.py:{line} in <module>" in diagnosis.evidence[0]


def iteration_us(body: Callable[[Machine], None]) -> float:
    """Return the duration of a loop iteration on the machine, including the device."""
    machine, count = Machine(), 0
    while machine.now_us < 20_000:
        body(machine)
        count += 1
    return max(machine.now_us, machine.free_us) / count


def eager_as_a_graph(machine: Machine) -> None:
    machine.replay([3.0] * 100, at="train.py:40")


def waits_for_no_long_kernels(machine: Machine) -> None:
    machine.launch(800, at="train.py:70")
    machine.host(700, at="train.py:72", stage="update")


def pageable_once_pinned(machine: Machine) -> None:
    machine.host(200, at="train.py:30")  # the host fills the pinned buffer
    pinned(machine)


def mixed_as_a_graph(machine: Machine) -> None:
    machine.synchronize(at="train.py:19", stage="env")
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
def test_estimated_gains_match_the_changed_program(before, after, rule):
    """The estimate is within a quarter of the speed-up that the same machine shows."""
    gain = gpu_diagnoses(before)[rule].gain
    assert gain is not None
    assert gain == pytest.approx(iteration_us(before) / iteration_us(after), rel=0.25)


def test_a_busy_gpu_limits_gains_of_the_host():
    def decodes(machine: Machine) -> None:
        # The host also works while the GPU executes queued kernels.
        for _ in range(10):
            machine.launch(95, at="train.py:40", us=10)
        machine.host(800, at="train.py:80")

    session = profiled(program(decodes, ms=120))
    for diagnosis in diagnose(session):
        if diagnosis.rule != UNNAMED and diagnosis.gain is not None:
            assert diagnosis.gain <= 1.3
            assert "bounds" in diagnosis.evidence[-1]


def test_windows_of_one_phase_are_weighted_by_all_samples():
    """All windows of PPO may fall into updates, which take a fifth of the time."""
    from hotloop.profiler.diagnose.evidence import Evidence
    from hotloop.profiler.diagnose.gpu import waits_for_launches
    from tests.profiler.sessions import process, sample, session

    def phases(machine: Machine) -> None:
        machine.host(500, at="train.py:20", stage="env")
        for _ in range(75):
            machine.launch(3, at="train.py:40")

    recorded = profiled(program(phases, ms=120))
    step = ("<module> (train.py:20)", "Walker.step (/site-packages/gymnasium/envs/walker.py:8)")
    learn = ("<module> (train.py:40)", "backward (/site-packages/torch/autograd/__init__.py:91)")
    main = process(
        samples=[
            sample(*step, elapsed_s=8.0, on_core_s=8.0),
            sample(*learn, elapsed_s=2.0, on_core_s=2.0),
        ],
        cores=8,
    )
    for evidence, share in (
        (Evidence(session(main, gpu=recorded.gpu)), 0.2),
        (Evidence(recorded), 0.75),
    ):
        explanation = waits_for_launches(evidence)
        assert explanation is not None
        assert explanation.saved_ns is not None
        gain = evidence.gain(explanation.saved_ns)
        assert gain == pytest.approx(1 / (1 - 0.9 * share * 17 / 20), rel=0.1)


def test_windows_of_updates_do_not_limit_environment_gains():
    """The GPU is busy only while the program learns, for a fifth of the time."""
    from hotloop.profiler.diagnose.evidence import Evidence
    from hotloop.profiler.diagnose.gpu import limit_gains, work_share
    from tests.profiler.sessions import process, sample, session

    recorded = profiled(program(large_kernels, ms=120))
    assert [banner.rule for banner in banners(recorded)] == ["gpu-bound"]
    step = ("<module> (train.py:9)", "Walker.step (/site-packages/gymnasium/envs/walker.py:8)")
    learn = ("<module> (train.py:40)", "backward (/site-packages/torch/autograd/__init__.py:91)")
    samples = [sample(*step, elapsed_s=8.0, sleep=8.0)]
    samples += [sample(*learn, elapsed_s=2.0, on_core_s=2.0)]
    main = process(samples=samples, cores=8)
    example = session(main, gpu=recorded.gpu)
    assert banners(example) == []
    evidence = Evidence(example)
    assert evidence.gpu is not None
    assert work_share(evidence, evidence.gpu) == pytest.approx(0.2, abs=0.02)
    cost = Diagnosis("sleep", "a sleep", 0.9, 5.0, (), "", "")
    assert limit_gains(evidence, [cost]) == [cost]
    (limited,) = limit_gains(Evidence(profiled(program(waits_for_long_kernels, ms=120))), [cost])
    assert limited.gain == pytest.approx(1507 / 800, rel=0.05)
    assert limit_gains(Evidence(recorded), [cost]) == []


def test_general_rules_are_superseded():
    instead_of = {"gpu-waits-for-launches": "launch-bound", "gpu-synchronisations": "host-sync"}
    diagnoses = gpu_diagnoses(eager)
    assert "gpu-waits-for-launches" in diagnoses
    session = profiled(program(eager, ms=60))
    assert not {diagnosis.rule for diagnosis in diagnose(session)} & {
        instead_of.get(rule) for rule in diagnoses
    }


def test_an_idle_gpu_has_no_diagnosis():
    def waits(machine: Machine) -> None:
        machine.host(1000, at="train.py:20", stage="env")

    assert gpu_diagnoses(waits) == {}
