"""Two sessions side by side: rates worked out by hand, intervals against known laws, verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hotloop.cli import main
from hotloop.errors import ProfileError
from hotloop.profiler.diagnose.comparison import Comparison, Row, compare
from hotloop.profiler.diagnose.estimates import (
    estimate,
    ratio_interval,
)
from hotloop.profiler.render.comparison import render
from hotloop.profiler.session import Session
from hotloop.profiler.session.saving import save
from tests.profiler.sessions import correlated, period, process, seen, session, span


def program(
    steps: Sequence[int],
    step_s: float = 0.002,
    update_s: float | Sequence[float] = 0.3,
    **fields: Any,
) -> Session:
    """A program of as many seconds as `steps` has numbers, which are environment steps in each."""
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
    # A tree for the steps to be found in; the numbers come from the periods.
    spans = [
        span("collect", 0.0, 0.2), span("collect > env_step", 0.0, 0.1), span("update", 0.3, 0.4),
    ]  # fmt: skip
    return session(process(end_s=float(len(steps)), periods=periods, spans=spans, **fields))


def row(comparison: Comparison, name: str) -> Row:
    (found,) = [one for one in [*comparison.spans, *comparison.stages] if one.name == name]
    return found


NOISE = [
    101, 99, 104, 98, 97, 103, 100, 96, 105, 101, 99, 98, 100, 97, 102, 103, 98, 102, 99, 98,
]  # fmt: skip


def test_time_per_step_by_hand() -> None:
    a = program(NOISE, step_s=0.004, update_s=0.5)
    b = program([2 * n for n in NOISE], step_s=0.004, update_s=0.1)
    found = compare(a, b)
    assert found.unit == "environment step"
    assert (found.a.steps, found.b.steps) == (2000, 4000)
    assert (found.a.seconds, found.b.seconds) == (20, 20)
    assert found.overall is not None
    # 20 s for 2,000 and for 4,000 steps.
    assert found.overall.a.value == pytest.approx(10e6)
    assert found.overall.b.value == pytest.approx(5e6)
    assert found.overall.ratio == pytest.approx(0.5)
    assert found.overall.verdict == "faster"
    assert found.overall.low < 0.5 < found.overall.high < 0.55
    step = row(found, "env_step")
    assert (step.a.value, step.b.value) == pytest.approx((4e6, 4e6))
    assert (step.mean_a, step.mean_b) == pytest.approx((4e6, 4e6))
    assert step.ratio == pytest.approx(1.0)
    assert step.verdict == "not told from noise"
    assert step.path == ("collect", "env_step")
    update = row(found, "update")
    # 0.5 s for 100 steps; 0.1 s for 200.
    assert (update.a.value, update.b.value) == pytest.approx((5e6, 0.5e6))
    assert update.ratio == pytest.approx(0.1)
    assert (update.share_a, update.share_b) == pytest.approx((0.5, 0.1))
    assert update.verdict == "faster"
    back = compare(b, a)
    assert row(back, "update").verdict == "slower"
    assert row(back, "update").ratio == pytest.approx(10.0)


def test_starting_and_saving_are_left_out() -> None:
    found = compare(program([0, 0, 0, *NOISE, 0, 0]), program(NOISE))
    assert (found.a.seconds, found.a.steps) == (20, 2000)
    assert found.overall is not None
    assert found.overall.ratio == pytest.approx(1.0)


def test_an_estimate_by_hand() -> None:
    # Residuals −1 −1 1 1 0 0: ρ₁ = 1/4, ρ₂ = −1/2: τ ends at 1; sums of two: −2, 2, 0, whose
    # variance is 4; three of them have 12, of a total of 12.
    found = estimate(np.array([1.0, 1, 3, 3, 2, 2]), np.ones(6))
    assert found.value == 2.0
    assert found.standard_error == pytest.approx(math.sqrt(12) / 12)
    assert (found.degrees_of_freedom, found.effective, found.stretches) == (2, 6, 6)


def test_what_tells_nothing() -> None:
    assert math.isnan(estimate(np.ones(5), np.zeros(5)).value)
    assert estimate(np.ones(2), np.ones(2)).standard_error == math.inf
    assert math.isnan(estimate(np.ones(0), np.ones(0)).value)
    short, long = estimate(np.ones(2), np.ones(2)), estimate(np.ones(20), np.ones(20))
    assert ratio_interval(short, long) == (1.0, 0.0, math.inf)
    assert ratio_interval(long, long) == (1.0, 1.0, 1.0)
    nothing = estimate(np.zeros(20), np.ones(20))
    assert ratio_interval(long, nothing) == (0.0, 0.0, 0.0)
    assert ratio_interval(nothing, long) == (math.inf, math.inf, math.inf)
    assert all(map(math.isnan, ratio_interval(nothing, nothing)))


def test_an_interval_by_hand() -> None:
    one = estimate(np.ones(20), np.ones(20))._replace(standard_error=0.01, degrees_of_freedom=10.0)
    # 20 degrees of freedom together: t = 2.0860, and 2.8453 where five are to hold.
    for num_rows, t in ((1, 2.0860), (5, 2.8453)):
        ratio, low, high = ratio_interval(one, one, num_rows)
        assert ratio == 1.0
        assert math.log(high) == pytest.approx(t * math.sqrt(2e-4), rel=1e-4)
        assert low == pytest.approx(1 / high)


@pytest.mark.parametrize(("phi", "count"), [(0.0, 30), (0.0, 120), (0.6, 60), (0.8, 240)])
def test_intervals_hold_as_often_as_they_say(phi: float, count: int) -> None:
    rng = np.random.default_rng(2)
    num_held = 0
    for _ in range(400):
        a, b = (
            estimate(10.0 + correlated(rng, count, phi), rng.uniform(0.9, 1.1, count))
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
        update_s=[float(s) for s in update_s * (1 + 0.05 * correlated(rng, count, 0.5))],
    )


def test_equal_programs_are_seldom_told_apart() -> None:
    rng = np.random.default_rng(3)
    verdicts = [
        one.verdict
        for _ in range(40)
        for one in compare(noisy(rng, 60, update_s=0.3), noisy(rng, 60, update_s=0.3)).spans
    ]
    assert len(verdicts) == 120
    # A table of three is to hold in 95 % of cases: 2 of 40 do not.
    assert sum(verdict != "not told from noise" for verdict in verdicts) <= 6


def test_a_small_difference_needs_a_long_run() -> None:
    rng = np.random.default_rng(4)
    short = row(compare(noisy(rng, 40, update_s=0.3), noisy(rng, 40, update_s=0.306)), "update")
    assert short.verdict == "not told from noise"
    # By definition: half-width over size, squared.
    width = math.log(short.high) - math.log(short.ratio)
    assert short.longer == pytest.approx((width / math.log(short.ratio)) ** 2)
    long = row(compare(noisy(rng, 4000, update_s=0.3), noisy(rng, 4000, update_s=0.306)), "update")
    assert long.verdict == "slower"
    assert long.low < 1.02 < long.high


SLEEP = "rest (/home/user/train.py:5)"
NET = "forward (/x/lib/python3.11/site-packages/torch/nn/modules/linear.py:9)"


def sampled(shares: Sequence[float], **fields: Any) -> Session:
    """A program of which so much of each second went into `env_step`; the rest is its own code."""
    env, rest = sum(shares), len(shares) - sum(shares)
    periods = [
        period(
            float(t + 1),
            by_stack={0: round(100 * share), 1: round(100 * (1 - share))},
            by_path={"env_step": round(100 * share), "": round(100 * (1 - share))},
        )
        for t, share in enumerate(shares)
    ]
    samples = [
        seen("main (/home/user/train.py:3)", path="env_step", elapsed_s=env),
        seen("main (/home/user/train.py:3)", SLEEP, elapsed_s=rest),
    ]
    return session(process(end_s=float(len(shares)), periods=periods, samples=samples, **fields))


def test_stages_without_steps_are_compared_by_share() -> None:
    found = compare(sampled([0.2, 0.24] * 10), sampled([0.5, 0.54] * 10))
    assert found.unit == "call"
    assert found.overall is None
    env = row(found, "env")
    assert (env.a.value, env.b.value) == pytest.approx((0.22, 0.52), abs=1e-9)
    assert env.verdict == "larger"
    assert row(found, "other").verdict == "smaller"
    (note,) = found.notes
    assert note == (
        "neither has environment steps: times are compared per call, and stages by their share of "
        "the time; as a whole B took 1.00 times as long as A"
    )
    text = render(found)
    assert "share of the time" in text
    assert "22.0%" in text
    assert "larger" in text


def test_stages_per_step() -> None:
    def stepped(shares: Sequence[float], each: int) -> Session:
        one = sampled(shares)
        one.main.periods = [
            was._replace(spans={("env_step",): (each * (t + 1), 1)})
            for t, was in enumerate(one.main.periods)
        ]
        one.main.tree.child("env_step").count = each * len(shares)
        # What the spans say would outweigh the samples.
        one.main.samples = [sample._replace(path=()) for sample in one.main.samples]
        one.main.samples[0] = one.main.samples[0]._replace(path=("env_reset",))
        return one

    found = compare(stepped([0.2, 0.3] * 10, 50), stepped([0.2, 0.3] * 10, 100))
    # A quarter of 20 s for 1,000 and for 2,000 steps.
    env = row(found, "env")
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

    found = compare(with_workers(2), with_workers(4))
    assert (found.a.steps, found.b.steps) == (4000, 8000)
    step = row(found, "env_step")
    assert step.component == "workers"
    assert (step.a.value, step.b.value) == pytest.approx((5e6, 5e6))
    assert step.share_a == pytest.approx(0.5)
    assert found.overall is not None
    assert found.overall.ratio == pytest.approx(0.5)


def test_runs_without_samples_are_compared_by_their_latest_spans() -> None:
    def recorded(each_s: float) -> Session:
        count = int(10 / each_s)
        rng = np.random.default_rng(5)
        length = each_s * rng.uniform(0.45, 0.55, count)
        spans = [span("env_step", i * each_s, i * each_s + float(length[i])) for i in range(count)]
        return session(process(end_s=10.0, spans=spans))

    found = compare(recorded(0.01), recorded(0.02))
    assert found.overall is not None
    assert found.overall.ratio == pytest.approx(2.0, rel=0.02)
    assert found.overall.verdict == "slower"
    step = row(found, "env_step")
    assert step.a.value == pytest.approx(5e6, rel=0.02)
    assert step.b.value == pytest.approx(10e6, rel=0.02)
    assert sum("has no samples" in note for note in found.notes) == 2


def test_the_latest_spans_say_nothing_of_the_whole() -> None:
    spans = [span("update", i * 0.01, i * 0.01 + 0.005) for i in range(1000)]
    one = session(process(end_s=10.0, spans=spans))
    first, *_ = compare(one, one).notes
    assert first.startswith("neither has environment steps")
    assert "as a whole" not in first


def test_a_second_recording_counts_from_zero_again() -> None:
    one = program(NOISE)
    whole = compare(one, one)
    again = program(NOISE)
    before = again.main.periods[9].spans
    again.main.periods[10:] = [
        late._replace(
            spans={
                path: (count - before[path][0], ns - before[path][1])
                for path, (count, ns) in late.spans.items()
            }
        )
        for late in again.main.periods[10:]
    ]
    found = compare(one, again)
    assert found.b.steps == whole.b.steps == 2000
    assert row(found, "update").ratio == pytest.approx(1.0)


def test_what_differs_is_noted() -> None:
    a, b = program(NOISE, cores=2), program(NOISE, cores=8, facts={"num_envs": 4.0})
    for one in b.main.periods:
        one.spans[("logging",)] = (1, 3_000_000_000)
    found = compare(a, b)
    assert found.only_a == []
    assert found.only_b == [("main", ("logging",))]
    text = render(found)
    assert "A was allowed to run on 2 cores, B on 8" in text
    assert "A stepped 0 environments at once, B 4" in text
    assert "only in B: logging (main)" in text


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
    assert "environment steps a second: 100 → 200, 2.00× (" in out
    assert "20 stretches of it say as much as 20 independent ones" in out
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert lines["update"].split()[1:5] == ["5.00", "ms", "500", "µs"]
    assert lines["update"].endswith("faster")
    assert "no difference that can be told from noise" in lines["env_step"]
    assert main(["compare", paths[0], str(tmp_path / "none")]) == 1
    assert "which does not exist" in capsys.readouterr().err
