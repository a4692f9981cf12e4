"""The book's figures: settings, tables compared with independent values, and pictures."""

import json

import numpy as np
import pytest

from hotloop.bandits.figure_plans import FIGURES, get_figure_plan
from hotloop.bandits.figures import book_figure
from hotloop.errors import ConfigError, UnknownNameError
from tests.bandits.laws import color_counts
from tests.reference.philox import philox_4x32

CURVES = ("2.2", "2.3", "2.4", "2.5")


def test_figure_plans():
    assert list(FIGURES) == ["2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.11"]
    assert [len(plan.settings) for plan in FIGURES.values()] == [0, 3, 2, 3, 4, 26, 30]
    exercise = FIGURES["2.11"]
    assert (exercise.num_runs, exercise.num_steps) == (2000, 200_000)
    assert exercise.late_steps(200_000) == 100_000
    rows = [setting.agent.describe() for setting in exercise.settings]
    constant = [row for row in rows if row["name"] == "epsilon-greedy" and row["step_size"]]
    assert {row["step_size"] for row in constant} == {0.1}
    assert {2.0**-9, 2.0**-7, 2.0**-5, 2.0**-3} < {row["epsilon"] for row in constant}
    assert sum(setting.regret is not None for setting in exercise.settings) == 8
    assert FIGURES["2.6"].late_steps(1000) == 1000
    assert FIGURES["2.2"].late_steps(1000) == 100
    assert FIGURES["2.2"].late_steps(4) == 1


@pytest.mark.parametrize("number", CURVES)
def test_curves_match_independent_values(number):
    figure = book_figure(number, num_runs=2000)
    for row in figure.rows:
        # The tolerance is 4.5 standard errors plus half of the last known digit.
        assert row.reward.mean == pytest.approx(
            row.reference.reward, abs=4.5 * row.reward.se + 0.0005
        )
        assert row.optimal.mean == pytest.approx(
            row.reference.optimal, abs=4.5 * row.optimal.se + 0.0005
        )
        assert 0.009 < row.reward.se < 0.02
    assert figure.window_text == "the last 100 steps"


def test_parameter_study_matches_independent_values():
    figure = book_figure("2.6", num_runs=2000)
    for row in figure.rows:
        assert row.reward.mean == pytest.approx(
            row.reference.reward, abs=4.5 * row.reward.se + 0.0005
        )
    assert figure.window_text == "all 1,000 steps"
    assert figure.best_arm_reward == pytest.approx(1.53875, abs=0.06)
    assert figure.rows[0].label == "ε-greedy: ε = 1/128"
    assert figure.rows[-1].label == "greedy with optimistic start, α = 0.1: Q₁ = 4"


def test_regret_and_reward_add_up_to_the_best_arm():
    """All settings have the same true values. Only the noise of rewards differs."""
    figure = book_figure("2.11", num_runs=64, num_steps=2000)
    assert (figure.num_runs, figure.num_steps, figure.late_steps) == (64, 2000, 1000)
    totals = [row.reward.mean + row.regret for row in figure.rows]
    assert np.ptp(totals) < 8 / np.sqrt(64 * 1000)
    assert figure.best_arm_reward == totals[0]
    assert all(row.reference is None for row in figure.rows)  # known for other steps only
    assert all(result.late_steps == 1000 for result in figure.results)


def test_regret_of_the_window_comes_from_the_curve():
    figure = book_figure("2.2", num_runs=300, num_steps=200)
    for row, result in zip(figure.rows, figure.results, strict=True):
        assert result.late_steps == 20
        assert row.regret == pytest.approx((result.regret[199] - result.regret[179]) / 20)
        assert row.reward == result.late_reward


def normals(seed, run, stream, group):
    """Yield four normals in float64, from the reference Philox."""
    words = philox_4x32((run, 0, stream, group), (seed & 0xFFFFFFFF, seed >> 32))
    for a, b in (words[:2], words[2:]):
        signed = b - 2**32 if b >= 2**31 else b
        radius = np.sqrt(-2 * np.log(((a >> 1) + 0.5) * 2.0**-31))
        angle = signed * 2.0**-31 * np.pi / 4
        x, y = radius * np.sin(angle), radius * np.cos(angle)
        p, q = (x, y) if b & 1 else (y, x)
        yield -p if b & 2 else p
        yield -q if b & 4 else q


@pytest.mark.parametrize("seed", [0, 5 + 2**40])
def test_figure_2_1_shows_the_first_task_of_its_seed(seed):
    figure = book_figure("2.1", seed=seed)
    expected = [value for group in range(3) for value in normals(seed, 0, 3, group)][:10]
    np.testing.assert_allclose([row.reward.mean for row in figure.rows], expected, atol=2e-6)
    assert figure.results == ()
    assert [row.label for row in figure.rows] == [f"arm {arm}" for arm in range(10)]


@pytest.mark.parametrize("number", ["2.1", "2.2", "2.6", "2.11"])  # the others are drawn like 2.2
def test_every_kind_of_figure_is_drawn(number, tmp_path):
    figure = book_figure(number, num_runs=32, num_steps=60)
    figure.draw(tmp_path / "figure.png")
    assert len(color_counts(tmp_path / "figure.png")) > 50
    json.dumps(figure.to_dict(), allow_nan=False)


def test_parameter_study_has_a_line_per_family(monkeypatch, tmp_path):
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))
    figure = book_figure("2.6", num_runs=32, num_steps=60)
    figure.draw(tmp_path / "figure.png")
    (axes,) = figures[0].axes
    lines = [line for line in axes.get_lines() if line.get_linestyle() == "-"]
    assert [len(line.get_xdata()) for line in lines] == [6, 8, 7, 5]
    assert lines[0].get_xdata().tolist() == [2.0**power for power in range(-7, -1)]
    assert lines[2].get_ydata()[0] == figure.rows[14].reward.mean
    assert figures[0].get_suptitle() == (
        "Figure 2.6: a parameter study on the 10-armed testbed\n32 runs of 60 steps, seed 0"
    )
    assert axes.get_ylabel() == "average reward per step, all 60 steps"


def test_progress_and_threads_change_nothing():
    calls = []
    watched = book_figure(
        "2.3", num_runs=600, num_steps=50, threads=2, on_progress=lambda *args: calls.append(args)
    )
    plain = book_figure("2.3", num_runs=600, num_steps=50, threads=1)
    for row, plain_row in zip(watched.rows, plain.rows, strict=True):
        assert row == plain_row
    assert calls[-1] == (2 * 600 * 50, 2 * 600 * 50)


def test_to_dict():
    content = book_figure(2.4, num_runs=64, num_steps=1000, seed=3).to_dict()
    assert content["figure"] == "2.4"
    assert (content["num_runs"], content["num_steps"], content["seed"]) == (64, 1000, 3)
    assert content["environment"]["name"] == "gaussian"
    first = content["rows"][0]
    assert first["label"] == "UCB, c = 2"
    assert first["reference"] == {"reward": 1.488, "optimal": 0.854}
    assert first["reward"] == content["results"][0]["late_reward"]


def test_bad_figures():
    with pytest.raises(UnknownNameError, match=r"expected a figure \(2.1, .*\), got '2.7'"):
        get_figure_plan("2.7")
    with pytest.raises(UnknownNameError, match=r"did you mean '2\.2'"):
        book_figure("22")
    with pytest.raises(ConfigError):
        book_figure("2.2", num_runs=0)
    with pytest.raises(ConfigError):
        book_figure("2.11", num_runs=4, num_steps=0)
