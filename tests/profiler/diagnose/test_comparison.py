"""Comparisons of two sessions: rates by hand, intervals under known laws, and verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotloop.cli import main
from hotloop.errors import ProfileError
from hotloop.profiler.diagnose.comparison import ComparisonRow, ProfileComparison, compare
from hotloop.profiler.diagnose.rate_estimates import (
    estimate,
    ratio_interval,
)
from hotloop.profiler.render.comparison import render, verdict
from hotloop.profiler.session import Session
from hotloop.profiler.session.reading import read
from hotloop.profiler.session.saving import save
from tests.profiler.sessions import correlated_noise, period, process, sample, session, span


def program(
    steps: Sequence[int],
    step_s: float = 0.002,
    update_s: float | Sequence[float] = 0.3,
    **fields: Any,
) -> Session:
    """Return a session with one second per element of `steps`, its environment steps."""
    updates = [update_s] * len(steps) if isinstance(update_s, float) else update_s
    periods = [
        period(
            float(t + 1),
            spans={
                "collect": (t + 1, step_s * sum(steps[: t + 1])),
                "collect > env_step": (sum(steps[: t + 1]), step_s * sum(steps[: t + 1])),
                "update": (t + 1, sum(updates[: t + 1])),
            },
        )
        for t in range(len(steps))
    ]
    # The tree only lists the paths. The numbers come from the periods.
    spans = [
        span("collect", 0.0, 0.2), span("collect > env_step", 0.0, 0.1), span("update", 0.3, 0.4),
    ]  # fmt: skip
    return session(process(end_s=float(len(steps)), periods=periods, spans=spans, **fields))


def row(comparison: ProfileComparison, name: str) -> ComparisonRow:
    (match,) = [entry for entry in [*comparison.spans, *comparison.stages] if entry.name == name]
    return match


NOISE = [
    101, 99, 104, 98, 97, 103, 100, 96, 105, 101, 99, 98, 100, 97, 102, 103, 98, 102, 99, 98,
]  # fmt: skip


def test_time_per_step_by_hand() -> None:
    a = program(NOISE, step_s=0.004, update_s=0.5)
    b = program([2 * n for n in NOISE], step_s=0.004, update_s=0.1)
    comparison = compare(a, b)
    assert comparison.unit == "environment step"
    assert (comparison.a.steps, comparison.b.steps) == (2000, 4000)
    assert (comparison.a.seconds, comparison.b.seconds) == (20, 20)
    assert comparison.overall is not None
    # 20 s for 2,000 and for 4,000 steps.
    assert comparison.overall.a.value == pytest.approx(10e6)
    assert comparison.overall.b.value == pytest.approx(5e6)
    assert comparison.overall.ratio == pytest.approx(0.5)
    assert comparison.overall.verdict == "faster"
    assert comparison.overall.low < 0.5 < comparison.overall.high < 0.55
    step = row(comparison, "env_step")
    assert (step.a.value, step.b.value) == pytest.approx((4e6, 4e6))
    assert (step.mean_a, step.mean_b) == pytest.approx((4e6, 4e6))
    assert step.ratio == pytest.approx(1.0)
    assert step.verdict == "within noise"
    assert step.path == ("collect", "env_step")
    update = row(comparison, "update")
    # 0.5 s for 100 steps; 0.1 s for 200.
    assert (update.a.value, update.b.value) == pytest.approx((5e6, 0.5e6))
    assert update.ratio == pytest.approx(0.1)
    assert (update.share_a, update.share_b) == pytest.approx((0.5, 0.1))
    assert update.verdict == "faster"
    reverse = compare(b, a)
    assert row(reverse, "update").verdict == "slower"
    assert row(reverse, "update").ratio == pytest.approx(10.0)


def test_start_up_and_saving_are_left_out() -> None:
    comparison = compare(program([0, 0, 0, *NOISE, 0, 0]), program(NOISE))
    assert (comparison.a.seconds, comparison.a.steps) == (20, 2000)
    assert comparison.overall is not None
    assert comparison.overall.ratio == pytest.approx(1.0)


def test_an_estimate_by_hand() -> None:
    # Residuals −1 −1 1 1 0 0: ρ₁ = 1/4, ρ₂ = −1/2: τ ends at 1; sums of two: −2, 2, 0, whose
    # variance is 4; three of them have 12, of a total of 12.
    rate = estimate(np.array([1.0, 1, 3, 3, 2, 2]), np.ones(6))
    assert rate.value == 2.0
    assert rate.standard_error == pytest.approx(math.sqrt(12) / 12)
    assert (rate.degrees_of_freedom, rate.effective, rate.stretches) == (2, 6, 6)


def test_estimates_without_information() -> None:
    assert math.isnan(estimate(np.ones(5), np.zeros(5)).value)
    assert estimate(np.ones(2), np.ones(2)).standard_error == math.inf
    assert math.isnan(estimate(np.ones(0), np.ones(0)).value)
    short, long = estimate(np.ones(2), np.ones(2)), estimate(np.ones(20), np.ones(20))
    assert ratio_interval(short, long) == (1.0, 0.0, math.inf)
    assert ratio_interval(long, long) == (1.0, 1.0, 1.0)
    zero = estimate(np.zeros(20), np.ones(20))
    assert ratio_interval(long, zero) == (0.0, 0.0, 0.0)
    assert ratio_interval(zero, long) == (math.inf, math.inf, math.inf)
    assert all(map(math.isnan, ratio_interval(zero, zero)))


def test_an_interval_by_hand() -> None:
    rate = estimate(np.ones(20), np.ones(20))._replace(standard_error=0.01, degrees_of_freedom=10.0)
    # 20 degrees of freedom together: t = 2.0860, and 2.8453 if five intervals must hold.
    for num_rows, t in ((1, 2.0860), (5, 2.8453)):
        ratio, low, high = ratio_interval(rate, rate, num_rows)
        assert ratio == 1.0
        assert math.log(high) == pytest.approx(t * math.sqrt(2e-4), rel=1e-4)
        assert low == pytest.approx(1 / high)


@pytest.mark.slow
@pytest.mark.parametrize(("phi", "count"), [(0.0, 30), (0.0, 120), (0.6, 60), (0.8, 240)])
def test_intervals_have_their_stated_coverage(phi: float, count: int) -> None:
    rng = np.random.default_rng(2)
    num_held = 0
    for _ in range(400):
        a, b = (
            estimate(10.0 + correlated_noise(rng, count, phi), rng.uniform(0.9, 1.1, count))
            for _ in range(2)
        )
        _, low, high = ratio_interval(a, b)
        num_held += low <= 1.0 <= high
    # 95 % of 400 are 380 ± 4.4.
    assert 366 <= num_held <= 394


def noisy(rng: np.random.Generator, count: int, *, update_s: float) -> Session:
    return program(
        [int(n) for n in rng.normal(1000, 20, count)],
        step_s=0.0002,
        update_s=[float(s) for s in update_s * (1 + 0.05 * correlated_noise(rng, count, 0.5))],
    )


def test_equal_programs_rarely_differ() -> None:
    rng = np.random.default_rng(3)
    verdicts = [
        entry.verdict
        for _ in range(40)
        for entry in compare(noisy(rng, 60, update_s=0.3), noisy(rng, 60, update_s=0.3)).spans
    ]
    assert len(verdicts) == 120
    # A table of three holds in 95 % of cases: 2 of 40 do not.
    assert sum(verdict != "within noise" for verdict in verdicts) <= 6


def test_a_small_difference_needs_a_long_run() -> None:
    rng = np.random.default_rng(4)
    short = row(compare(noisy(rng, 40, update_s=0.3), noisy(rng, 40, update_s=0.306)), "update")
    assert short.verdict == "within noise"
    # By definition: half-width over size, squared.
    width = math.log(short.high) - math.log(short.ratio)
    assert short.longer == pytest.approx((width / math.log(short.ratio)) ** 2)
    long = row(compare(noisy(rng, 4000, update_s=0.3), noisy(rng, 4000, update_s=0.306)), "update")
    assert long.verdict == "slower"
    assert long.low < 1.02 < long.high


SLEEP = "rest (/home/user/train.py:5)"


def sampled_program(shares: Sequence[float], **fields: Any) -> Session:
    """Return a session with the share of `env_step` in each second. The rest is user code."""
    env_s, other_s = sum(shares), len(shares) - sum(shares)
    periods = [
        period(
            float(t + 1),
            by_stack={0: round(100 * share), 1: round(100 * (1 - share))},
            by_path={"env_step": round(100 * share), "": round(100 * (1 - share))},
        )
        for t, share in enumerate(shares)
    ]
    samples = [
        sample("main (/home/user/train.py:3)", path="env_step", elapsed_s=env_s),
        sample("main (/home/user/train.py:3)", SLEEP, elapsed_s=other_s),
    ]
    return session(process(end_s=float(len(shares)), periods=periods, samples=samples, **fields))


def test_stages_without_steps_are_compared_by_share() -> None:
    comparison = compare(sampled_program([0.2, 0.24] * 10), sampled_program([0.5, 0.54] * 10))
    assert comparison.unit == "call"
    assert comparison.overall is None
    env = row(comparison, "env")
    assert (env.a.value, env.b.value) == pytest.approx((0.22, 0.52), abs=1e-9)
    assert env.verdict == "larger"
    assert row(comparison, "other").verdict == "smaller"
    (note,) = comparison.notes
    assert note == (
        "neither has environment steps: times are compared per call, and stages by their share of "
        "the time. B took 1.00 times as long as A in total"
    )
    text = render(comparison)
    assert "share of the time" in text
    assert "22.0%" in text
    assert "larger" in text


def test_stages_per_step() -> None:
    def stepped(shares: Sequence[float], steps_per_s: int) -> Session:
        example = sampled_program(shares)
        example.main.periods = [
            old._replace(spans={("env_step",): (steps_per_s * (t + 1), 1)})
            for t, old in enumerate(example.main.periods)
        ]
        example.main.tree.child("env_step").count = steps_per_s * len(shares)
        # Spans would take precedence over samples.
        example.main.samples = [sample._replace(path=()) for sample in example.main.samples]
        example.main.samples[0] = example.main.samples[0]._replace(path=("env_reset",))
        return example

    comparison = compare(stepped([0.2, 0.3] * 10, 50), stepped([0.2, 0.3] * 10, 100))
    # A quarter of 20 s for 1,000 and for 2,000 steps.
    env = row(comparison, "env")
    assert (env.a.value, env.b.value) == pytest.approx((5e6, 2.5e6), rel=1e-6)
    assert env.verdict == "faster"


def test_workers_count_together() -> None:
    def with_workers(count: int) -> Session:
        workers = [
            process(
                f"worker-{i}",
                role="worker",
                pid=200 + i,
                end_s=20.0,
                spans=[span("env_step", 0.0, 0.1)],
                periods=[
                    period(float(t + 1), spans={"env_step": (100 * (t + 1), 0.5 * (t + 1))})
                    for t in range(20)
                ],
            )
            for i in range(count)
        ]
        learner = process(
            end_s=20.0,
            periods=[period(float(t + 1), spans={"update": (t + 1, 0.1)}) for t in range(20)],
        )
        return session(learner, *workers)

    comparison = compare(with_workers(2), with_workers(4))
    assert (comparison.a.steps, comparison.b.steps) == (4000, 8000)
    step = row(comparison, "env_step")
    assert step.component == "workers"
    assert (step.a.value, step.b.value) == pytest.approx((5e6, 5e6))
    assert step.share_a == pytest.approx(0.5)
    assert comparison.overall is not None
    assert comparison.overall.ratio == pytest.approx(0.5)


def test_runs_without_samples_are_compared_by_their_latest_spans() -> None:
    def recorded(each_s: float) -> Session:
        count = int(10 / each_s)
        rng = np.random.default_rng(5)
        length = each_s * rng.uniform(0.45, 0.55, count)
        spans = [span("env_step", i * each_s, i * each_s + float(length[i])) for i in range(count)]
        return session(process(end_s=10.0, spans=spans))

    comparison = compare(recorded(0.01), recorded(0.02))
    assert comparison.overall is not None
    assert comparison.overall.ratio == pytest.approx(2.0, rel=0.02)
    assert comparison.overall.verdict == "slower"
    step = row(comparison, "env_step")
    assert step.a.value == pytest.approx(5e6, rel=0.02)
    assert step.b.value == pytest.approx(10e6, rel=0.02)
    assert sum("has no samples" in note for note in comparison.notes) == 2


def test_the_latest_spans_give_no_overall_rate() -> None:
    spans = [span("update", i * 0.01, i * 0.01 + 0.005) for i in range(1000)]
    example = session(process(end_s=10.0, spans=spans))
    first, *_ = compare(example, example).notes
    assert first.startswith("neither has environment steps")
    assert "as a whole" not in first


def test_differences_are_noted() -> None:
    a, b = program(NOISE, cores=2), program(NOISE, cores=8, facts={"num_envs": 4.0})
    for written in b.main.periods:
        written.spans[("logging",)] = (1, 3_000_000_000)
    comparison = compare(a, b)
    assert comparison.only_a == []
    assert comparison.only_b == [("main", ("logging",))]
    text = render(comparison)
    assert "A was allowed to run on 2 cores, B on 8" in text
    assert "environments stepped in parallel: 1 in A, 4 in B" in text
    assert "only in B: logging (main)" in text


def test_environment_variables_that_differ_are_noted() -> None:
    a, b = (
        program(NOISE, facts={"torch_threads": 8.0}),
        program(NOISE, facts={"torch_threads": 1.0}),
    )
    a.metadata["environment"] = {"OMP_WAIT_POLICY": "active", "MKL_NUM_THREADS": "4"}
    b.metadata["environment"] = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "4"}
    notes = compare(a, b).notes
    assert "environment variable OMP_NUM_THREADS: not set in A, 1 in B" in notes
    assert "environment variable OMP_WAIT_POLICY: active in A, not set in B" in notes
    assert "torch used 8 threads per operation in A, 1 in B" in notes
    assert not any("MKL" in note for note in notes)
    assert not any("environment variable" in note for note in compare(b, b).notes)


def test_nothing_in_common() -> None:
    a = session(process(spans=[span("update", 0.0, 1.0)]))
    b = session(process(spans=[span("forward", 0.0, 1.0)]))
    with pytest.raises(ProfileError, match=r"no samples and the spans update, .* forward"):
        compare(a, b)
    with pytest.raises(ProfileError, match="no samples and no spans"):
        compare(session(process()), b)


def test_the_command(tmp_path, capsys) -> None:
    paths = [str(tmp_path / name) for name in ("a.npz", "b.npz")]
    save(program(NOISE, update_s=0.5), paths[0])
    save(program([2 * n for n in NOISE], update_s=0.1), paths[1])
    assert main(["compare", *paths]) == 0
    out = capsys.readouterr().out
    assert "environment steps per second: 100 → 200, 2.00× (" in out
    assert "20 stretches equivalent to 20 independent ones" in out
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert lines["update"].split()[1:5] == ["5.00", "ms", "500", "µs"]
    assert lines["update"].endswith("faster")
    assert "within noise" in lines["env_step"]
    assert main(["compare", paths[0], str(tmp_path / "none")]) == 1
    assert "which does not exist" in capsys.readouterr().err


def test_the_noise_of_a_recording_without_times_is_unknown() -> None:
    recording = Path(__file__).parents[1] / "session" / "recordings" / "py-spy.txt"
    comparison = compare(read(recording), read(recording))
    assert {verdict(row) for row in comparison.stages} == {"noise unknown"}
