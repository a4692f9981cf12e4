"""Plots show the given numbers with units, in the requested file format."""

import math
import re

import numpy as np
import pytest

from hotloop.bandits import plots
from hotloop.bandits.agents import UCB, EpsilonGreedy
from hotloop.bandits.bounds import lai_robbins
from hotloop.bandits.environments import Bernoulli, GaussianRewards, RandomWalk
from hotloop.bandits.plots import pull_shares
from hotloop.bandits.results import BanditResult, MeanEstimate, RunSums
from hotloop.errors import ConfigError, MissingExtraError, OutputError, install_command
from tests.bandits.laws import color_counts

RUNS = 4


def make_result(
    agent=None, environment=None, *, reward=(1.0, 2.0, 3.0), regret=(1.0, 2.0, 4.0), shares=None
):
    """Return three points of two steps, of 4 runs: two lie 1 above the mean and two 1 below.

    The sum of squared deviations is 4, so that standard errors are √(4 / 3 / 4) = 0.57735.
    """
    optimal = np.array([0.25, 0.5, 0.75])
    reward, regret = np.array(reward), np.array(regret)
    spread = {"reward": 1.0, "optimal": 0.1, "regret": 1.0}
    rows = []
    for name, mean in (("reward", reward), ("optimal", optimal), ("regret", regret)):
        rows += [RUNS * mean, RUNS * (mean**2 + spread[name] ** 2)]
    pulls = None if shares is None else np.array(shares)
    return BanditResult(
        agent=agent or EpsilonGreedy(),
        environment=environment or GaussianRewards(num_arms=3),
        seed=7,
        num_runs=RUNS,
        num_steps=6,
        steps_per_point=2,
        late_steps=2,
        sums=RunSums(num_runs=RUNS, curve=np.array(rows), totals=np.ones((2, 5)), arm_pulls=pulls),
        final_regrets=np.arange(101.0),
    )


SHARES = [[4, 2, 2], [2, 2, 4], [0, 0, 8]]
ESTIMATES = [
    (0.25, MeanEstimate(1.0, 0.1)),
    (1.0, MeanEstimate(2.0, 0.2)),
    (0.5, MeanEstimate(1.5, 0.1)),
]
STUDY = {"UCB: c": ESTIMATES, "greedy": [(0.5, MeanEstimate(0.5, math.nan))]}
LABELS = {"title": "all of it", "x_label": "c, units of reward", "y_label": "reward per step"}
MAP = np.array([[1.0, 2.0, math.nan], [3.0, 5.0, 4.0]])


def draw_map(path, values=MAP, **options):
    labels = {**LABELS, "value_label": "regret, units of reward"}
    plots.heat_map([0.1, 0.2, 0.5], ["none", "0.1"], values, path, **labels, **options)


def two_results(**options):
    return [make_result(UCB(), **options), make_result(**options)]


PLOTS = {
    "learning_curves": lambda path: plots.learning_curves(two_results(), path),
    "regret_curves": lambda path: plots.regret_curves(two_results(), path),
    "regret_boxes": lambda path: plots.regret_boxes(two_results(), path),
    "arm_shares": lambda path: plots.arm_shares(two_results(shares=SHARES), path),
    "parameter_study": lambda path: plots.parameter_study(STUDY, path, **LABELS),
    "heat_map": draw_map,
    "reward_distributions": lambda path: plots.reward_distributions(
        [0.5, -1.0], 1.0, path, title="all of it"
    ),
}


@pytest.fixture
def figure_of(monkeypatch, tmp_path):
    """Return a function that calls a plot function and returns its figure unwritten."""
    from matplotlib.figure import Figure

    def draw(function, *args, **kwargs):
        figures = []
        with monkeypatch.context() as patch:
            patch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))
            function(*args, tmp_path / "picture.png", **kwargs)
        (figure,) = figures
        return figure

    return draw


@pytest.mark.parametrize("name", PLOTS)
def test_plots_are_written_and_not_blank(name, tmp_path):
    PLOTS[name](tmp_path / "new" / "picture.png")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["picture.png"]
    counts = color_counts(tmp_path / "new" / "picture.png")
    assert counts.sum() >= 300 * 300
    assert len(counts) > 20
    assert counts.max() < 0.97 * counts.sum()


@pytest.mark.parametrize(
    "name", ["learning_curves", "heat_map"]
)  # all plots are written in the same way
@pytest.mark.parametrize(("suffix", "magic"), [(".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_plots_can_be_vector_graphics(name, suffix, magic, tmp_path):
    PLOTS[name](tmp_path / f"picture{suffix}")
    content = (tmp_path / f"picture{suffix}").read_bytes()
    assert content.startswith(magic)
    assert len(content) > 4000


@pytest.mark.parametrize("name", PLOTS)
def test_plots_have_titles_labels_and_units(name, figure_of):
    figure = figure_of(PLOTS[name])
    for axes in figure.axes:
        if axes.get_label() == "<colorbar>":
            assert axes.get_ylabel() == "regret, units of reward"
            continue
        assert axes.get_ylabel()
        assert axes.get_xlabel()
    units = (
        *("reward per step", "%", "steps", "units of reward", "units of its standard deviation"),
        *("agent", "arm, number"),
    )
    for axes in figure.axes:
        for label in (axes.get_xlabel(), axes.get_ylabel()):
            assert not label or any(unit in label for unit in units), label
    assert len(figure.get_suptitle()) > 5
    (legend,) = figure.legends
    assert all(text.get_text() for text in legend.get_texts())


def test_learning_curves(figure_of):
    results = [make_result(UCB()), make_result(EpsilonGreedy(epsilon=0.5), reward=(0.0, 1.0, 1.0))]
    figure = figure_of(plots.learning_curves, results)
    reward, optimal = figure.axes
    assert [line.get_ydata().tolist() for line in reward.get_lines()] == [[1, 2, 3], [0, 1, 1]]
    assert reward.get_lines()[0].get_xdata().tolist() == [2, 4, 6]
    assert optimal.get_lines()[0].get_ydata().tolist() == [25, 50, 75]
    # The band is ±1.96 × 0.57735. Student's t would be wider, but most results have more runs.
    heights = reward.collections[0].get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(1 - 1.131586, abs=1e-5)
    assert heights.max() == pytest.approx(3 + 1.131586, abs=1e-5)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["UCB, c = 2", "ε-greedy, ε = 0.5"]
    assert figure.get_suptitle() == "gaussian, num arms 3\n4 runs of 6 steps, seed 7"
    assert reward.get_title() == "average reward (mean of 2 steps a point)"
    assert optimal.get_ylim() == (0, 101)


def test_legend_distinguishes_environments(figure_of):
    results = [make_result(), make_result(environment=RandomWalk(num_arms=3))]
    figure = figure_of(plots.learning_curves, results)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == [
        "ε-greedy, ε = 0.1; gaussian, num arms 3",
        "ε-greedy, ε = 0.1; random-walk, num arms 3",
    ]


def test_environment_without_true_values(figure_of):
    unknown = make_result(regret=(math.nan,) * 3)
    unknown.sums.curve[2:4] = math.nan
    assert len(figure_of(plots.learning_curves, [unknown]).axes) == 1
    for function in (plots.regret_curves, plots.regret_boxes):
        with pytest.raises(
            ConfigError, match=r"'gaussian, num arms 3' does not provide .*define its `mean`"
        ):
            figure_of(function, [unknown])


def test_single_run_has_no_band(figure_of):
    single = make_result()
    object.__setattr__(single, "num_runs", 1)
    figure = figure_of(plots.learning_curves, [single])
    assert np.isfinite(figure.axes[0].collections[0].get_paths()[0].vertices).all()


def test_regret_on_linear_and_logarithmic_axes(figure_of):
    figure = figure_of(plots.regret_curves, two_results(environment=Bernoulli(means=(0.9, 0.8))))
    constant = 0.1 / (0.8 * math.log(0.8 / 0.9) + 0.2 * math.log(0.2 / 0.1))
    scales = [(axes.get_xscale(), axes.get_yscale()) for axes in figure.axes]
    assert scales == [("linear", "linear"), ("log", "linear"), ("log", "log")]
    for axes in figure.axes:
        first, second, bound = axes.get_lines()
        assert first.get_ydata().tolist() == second.get_ydata().tolist() == [1, 2, 4]
        assert bound.get_label() == "Lai–Robbins' 2.25 ln t (asymptotic)"
        assert bound.get_linestyle() == "--"
        np.testing.assert_allclose(bound.get_ydata(), constant * np.log(bound.get_xdata()))
        assert bound.get_xdata()[-1] == 6
    assert figure.axes[2].get_ylim()[0] == pytest.approx(1 / 1.5)


def test_negative_regret_is_visible(figure_of):
    """Regret against the best arm in hindsight may be negative. Otherwise axes start at 0."""
    for figure, bottom in (
        (figure_of(plots.regret_curves, two_results(regret=(-1.0, -3.0, 2.0))), -3.0),
        (figure_of(plots.regret_curves, two_results()), 0.0),
    ):
        for axes in figure.axes[:2]:
            assert axes.get_ylim()[0] <= bottom
            assert (axes.get_ylim()[0] == 0) == (bottom == 0)


@pytest.mark.parametrize("kind", [GaussianRewards, Bernoulli])
def test_many_means_leave_room_for_the_axes(figure_of, kind):
    environment = kind(means=tuple(np.linspace(0.01, 0.99, 500)))
    assert len(environment.label) < 60
    assert kind(means=(0.5,) * 8).label.count("0.5") == 8
    figure = figure_of(plots.learning_curves, [make_result(environment=environment)])
    assert "500" in figure.get_suptitle()


def test_long_title_leaves_room_for_the_axes(figure_of):
    results = [make_result(shares=SHARES)]
    for function in (plots.learning_curves, plots.arm_shares):
        figure = figure_of(function, results, title="word " * 1000)
        assert figure.get_suptitle().count("\n") == 2
        assert figure.get_suptitle().endswith("…")


def test_regret_that_is_never_positive(figure_of):
    """A logarithmic axis cannot show it."""
    figure = figure_of(plots.regret_curves, two_results(regret=(0.0, 0.0, 0.0)))
    assert np.isfinite(figure.axes[2].get_ylim()).all()


def test_no_bound_for_random_means(figure_of):
    for axes in figure_of(plots.regret_curves, two_results()).axes:
        assert len(axes.get_lines()) == 2


@pytest.mark.parametrize(
    ("environment", "constant"),
    [
        # The bounds are 20.7, 172.8 and 69.2 at horizons 10⁴, 2·10⁴ and 10⁴.
        (Bernoulli(means=(0.9, 0.8)), 20.73 / math.log(1e4)),
        (Bernoulli(means=(0.1, *3 * (0.05,), *3 * (0.02,), *3 * (0.01,))), 172.8 / math.log(2e4)),
        (Bernoulli(means=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)), 69.2 / math.log(1e4)),
        # kl(0.5, 1) is infinite: one failure proves that an arm is not the best.
        (Bernoulli(means=(1.0, 0.5)), None),
        (Bernoulli(means=(0.5, 0.0)), 0.5 / math.log(2)),
        (Bernoulli(means=(0.3, 0.3)), None),
        (GaussianRewards(means=(1.0, 0.0, 1.0, -1.0), noise=2.0), 2 * 4 / 1 + 2 * 4 / 2),
        (GaussianRewards(means=(1.0, 0.0), noise=0.0), None),
        (GaussianRewards(), None),
        (RandomWalk(), None),
    ],
)
def test_lai_robbins_constant(environment, constant):
    expected = constant if constant is None else pytest.approx(constant, rel=1e-3)
    assert lai_robbins(environment) == expected


def test_boxes_show_quantiles(figure_of):
    figure = figure_of(plots.regret_boxes, two_results())
    (axes,) = figure.axes
    box = axes.patches[0]
    assert (box.get_x(), box.get_width()) == (25, 50)  # regrets are 0 … 100
    whiskers, caps, median, mean = axes.get_lines()[:4]
    assert whiskers.get_xdata().tolist() == [5, 95]
    assert np.nanmin(caps.get_xdata()) == 5
    assert median.get_xdata().tolist() == [50, 50]
    assert mean.get_xdata().tolist() == [50]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "UCB, c = 2",
        "ε-greedy, ε = 0.1",
    ]
    top, bottom = axes.transData.transform([[0, 0], [0, 1]])[:, 1]
    assert top > bottom  # the first agent is on top
    assert axes.get_title().startswith("after 6 steps; box: middle half of 101 runs")


def test_shares_are_stacked_with_the_best_arm_below(figure_of):
    environment = GaussianRewards(means=(0.0, 2.0, 1.0))
    figure = figure_of(plots.arm_shares, [make_result(environment=environment, shares=SHARES)])
    (axes,) = figure.axes
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["0 (0)", "2 (1)", "1 (2)"]  # from top to bottom
    best, second, worst = (layer.get_paths()[0].vertices[:, 1] for layer in axes.collections)
    assert best.max() == 25
    assert second.max() == 100  # arm 2's 100 % at the end
    assert worst.max() == 100
    assert axes.get_title() == "ε-greedy, ε = 0.1"


def test_many_arms_are_grouped_as_others(figure_of):
    shares = np.ones((3, 30), int)
    result = make_result(environment=GaussianRewards(num_arms=30), shares=shares)
    figure = figure_of(plots.arm_shares, [result])
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[0] == "19 others"
    assert len(names) == 12
    top = figure.axes[0].collections[-1].get_paths()[0].vertices[:, 1]
    assert top.max() == pytest.approx(100)


def test_points_are_thinned_without_losing_pulls():
    result = make_result(shares=np.repeat(SHARES, 201, axis=0))
    result.sums.curve.resize((6, 603), refcheck=False)
    object.__setattr__(result, "num_steps", 1205)  # the last point has one step
    edges, share = pull_shares._thin_shares(result)
    assert len(edges) == len(share) + 1 == 202
    assert edges[:3].tolist() == [0, 6, 12]
    assert edges[-2:].tolist() == [1200, 1205]
    assert share[0].tolist() == [0.5, 0.25, 0.25]
    assert share[-1].tolist() == [0, 0, 1]


def test_parameter_study(figure_of):
    level = ("the best arm", 2.5)
    figure = figure_of(plots.parameter_study, STUDY, level=level, **LABELS)
    (axes,) = figure.axes
    line, *_ = axes.get_lines()
    assert line.get_xdata().tolist() == [0.25, 0.5, 1.0]
    assert line.get_ydata().tolist() == [1.0, 1.5, 2.0]
    bars = np.array([segment[:, 1] for segment in axes.collections[0].get_segments()])
    np.testing.assert_allclose(bars[0], [1 - 0.1959964, 1 + 0.1959964])
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1/4", "1/2", "1"]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["UCB: c", "greedy", "the best arm"]
    assert figure.get_suptitle() == "all of it"


def test_parameter_of_zero_needs_a_linear_axis(figure_of):
    study = {"greedy": [(0.0, MeanEstimate(1.0, 0.1)), (0.1, MeanEstimate(2.0, 0.1))]}
    figure = figure_of(plots.parameter_study, study, **LABELS)
    assert figure.axes[0].get_xscale() == "linear"


def test_heat_map(figure_of):
    figure = figure_of(draw_map)
    axes = figure.axes[0]
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    assert texts == {(0, 0): "1", (1, 0): "2", (0, 1): "3", (1, 1): "5", (2, 1): "4"}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.1", "0.2", "0.5"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["none", "0.1"]
    assert figure.legends[0].get_texts()[0].get_text() == "best: 5 at 0.2, 0.1"
    least = figure_of(draw_map, best=np.nanargmin)
    assert least.legends[0].get_texts()[0].get_text() == "best: 1 at 0.1, none"
    assert not figure_of(draw_map, best=None).legends


def test_violins_show_the_densities(figure_of):
    figure = figure_of(plots.reward_distributions, [0.5, -1.0], 2.0, title="task")
    (axes,) = figure.axes
    first, second = (violin.get_paths()[0].vertices for violin in axes.collections)
    assert first[:, 1].max() == pytest.approx(0.5 + 2 * 3.0902)
    assert second[:, 1].min() == pytest.approx(-1.0 - 2 * 3.0902)
    # One standard deviation away, a density is e^(-1/2) of its maximum.
    index = np.abs(first[:, 1] - 2.5).argmin()
    assert abs(first[index, 0]) == pytest.approx(0.42 * math.exp(-0.5), rel=0.03)


@pytest.mark.parametrize("suffix", ["", ".jpg", ".PNG"])
@pytest.mark.parametrize("name", PLOTS)
def test_other_suffixes_are_refused(name, suffix, tmp_path):
    with pytest.raises(ConfigError, match=r"must end in .png, .svg or .pdf, got"):
        PLOTS[name](tmp_path / f"picture{suffix}")
    assert not list(tmp_path.iterdir())


def test_unsuitable_results_are_refused(tmp_path):
    path = tmp_path / "picture.png"
    with pytest.raises(ConfigError, match="one result or more, got none"):
        plots.learning_curves([], path)
    with pytest.raises(ConfigError, match="one setting or more"):
        plots.parameter_study({}, path, **LABELS)
    with pytest.raises(ConfigError, match="run it with `arm_shares=True`"):
        plots.arm_shares([make_result()], path)
    bare = make_result()
    object.__setattr__(bare, "final_regrets", np.empty(0))
    with pytest.raises(ConfigError, match="run the agents again"):
        plots.regret_boxes([bare], path)
    with pytest.raises(ConfigError, match=r"must have shape \(2, 3\), .* got \(3, 2\)"):
        draw_map(path, MAP.T)
    with pytest.raises(ConfigError, match="one value or more"):
        draw_map(path, np.full((2, 3), math.nan))
    assert not list(tmp_path.iterdir())


def test_unwritable_target(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="can't be written"):
        plots.learning_curves(two_results(), tmp_path / "file" / "picture.png")


def test_missing_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=re.escape(install_command("bandit"))):
        plots.learning_curves(two_results(), tmp_path / "picture.png")
