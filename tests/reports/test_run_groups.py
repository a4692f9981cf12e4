import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hotloop.errors import ConfigError
from hotloop.reports import learning_curves
from hotloop.reports.run_groups import SeedCurve, aggregate_seeds, comparison_grid, group_runs
from tests.runs.run_factory import make_run


def test_the_band_by_hand():
    """The middle three of five seeds count; two seeds form the band themselves."""
    middle, band = aggregate_seeds(np.array([[9.0], [1.0], [3.0], [2.0], [-50.0]]))
    assert middle == [2.0]
    assert -50.0 <= band[0][0] < 2.0 < band[1][0] <= 9.0
    middle, band = aggregate_seeds(np.array([[1.0, 4.0], [3.0, 4.0]]))
    np.testing.assert_array_equal(middle, [2.0, 4.0])
    np.testing.assert_array_equal(band, [[1.0, 4.0], [3.0, 4.0]])
    assert aggregate_seeds(np.array([[1.0, 5.0]]))[1] is None


def test_smoothing_by_hand():
    curve = SeedCurve(
        path=Path("run"),
        seed=1,
        positions=np.array([20, 20, 40, 70]),
        values=np.array([1.0, 3.0, 4.0, 7.0]),
        end=80,
    )
    points = np.arange(10.0, 110.0, 10.0)
    # No episode has ended at 10; (0, 20] and (10, 30] have two; (40, 60] has none.
    expected = [np.nan, 2.0, 2.0, 4.0, 4.0, 5.5, 7.0, 7.0, np.nan, np.nan]
    np.testing.assert_allclose(curve.smoothed(points, 20.0), expected)


def test_the_shortest_run_limits_the_mean_of_its_group(tmp_path):
    make_run(tmp_path / "a", seed=1, returns=[[1.0], [2.0], [3.0], [4.0]])
    make_run(tmp_path / "b", seed=2, returns=[[3.0], [4.0]], total_timesteps=4000)
    (group,) = group_runs([tmp_path / "a", tmp_path / "b"]).groups
    points, width = comparison_grid([group])
    np.testing.assert_array_equal(points, [1000, 2000, 3000, 4000])
    assert width == 1000
    assert group.end == 2000
    curves = np.stack([seed.smoothed(points, width) for seed in group.seeds])
    middle, band = aggregate_seeds(curves)
    np.testing.assert_array_equal(middle, [2.0, 3.0, np.nan, np.nan])
    np.testing.assert_array_equal(band, [[1, 2, np.nan, np.nan], [3, 4, np.nan, np.nan]])
    assert group.final_score() == (3.0, (2.0, 4.0))  # the last tenth of 2,000 steps


def test_episodes_of_an_iteration_are_spread_over_its_steps(tmp_path):
    make_run(tmp_path / "a", returns=[[1.0, 2.0, 3.0, 4.0], [], [5.0, 6.0]])
    (group,) = group_runs([tmp_path / "a"]).groups
    np.testing.assert_array_equal(group.seeds[0].positions, [250, 500, 750, 1000, 2500, 3000])
    np.testing.assert_array_equal(group.seeds[0].values, [1, 2, 3, 4, 5, 6])


def add(path, **metrics):
    """Add metrics to each line of a run."""
    lines = (path / "metrics.jsonl").read_text().splitlines()
    more = (json.loads(line) | metrics for line in lines)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in more))


@pytest.mark.parametrize(
    ("metric", "over", "at", "values"),
    [
        ("return", "time", [0.25, 0.5, 1.0], [10, 20, 30]),
        ("return", "updates", [20, 40, 80], [10, 20, 30]),
        ("length", "steps", [500, 1000, 2000], [10, 10, 10]),
        ("policy_loss", "steps", [1000, 2000], [0.25, 0.25]),
        ("evaluation", "time", [0.5], [7.0]),
    ],
)
def test_metrics_over_steps_time_and_updates(tmp_path, metric, over, at, values):
    add(make_run(tmp_path / "a", evaluations=[7.0]), num_updates=40.0)
    (group,) = group_runs([tmp_path / "a"], metric=metric, x_axis=over).groups
    np.testing.assert_allclose(group.seeds[0].positions, at)
    np.testing.assert_array_equal(group.seeds[0].values, values)


def test_off_policy_runs_log_all_updates_so_far(tmp_path):
    path = make_run(tmp_path / "a", returns=[[1.0], [2.0], [3.0]])
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for row, number in zip(rows, (0.0, 500.0, 1500.0), strict=True):
        row |= {"num_updates": number, "replay_size": 9.0}
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (group,) = group_runs([path], x_axis="updates").groups
    assert group.seeds[0].positions.tolist() == [0, 500, 1500]
    assert group.end == 1500


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 10**400])
def test_numbers_without_a_value_are_left_out(tmp_path, bad):
    path = make_run(tmp_path / "a", returns=[[1.0], [2.0], [3.0]])
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for row, loss in zip(rows, (0.5, bad, 0.25), strict=True):
        row["some_loss"] = loss
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    seed = group_runs([path], metric="some_loss").groups[0].seeds[0]
    assert (seed.positions.tolist(), seed.values.tolist()) == ([1000, 3000], [0.5, 0.25])
    np.testing.assert_array_equal(seed.smoothed(np.array([3000.0]), 1000.0), [0.25])


def test_an_unknown_metric_is_rejected(tmp_path):
    add(make_run(tmp_path / "a"), entropy=0.5)
    with pytest.raises(
        ConfigError, match=r"\(entropy, evaluation, .*, return\), got 'entrpy'; did"
    ):
        group_runs([tmp_path / "a"], metric="entrpy")
    make_run(tmp_path / "b", seed=2)
    comparison = group_runs([tmp_path / "a", tmp_path / "b"], metric="entropy")
    assert [seed.seed for seed in comparison.groups[0].seeds] == [1]
    assert [reason for _, reason in comparison.skipped] == [f"{tmp_path / 'b'} has no `entropy`"]
    assert not group_runs([tmp_path / "a"], metric="evaluation").groups


def test_an_episode_info_metric(tmp_path):
    add(make_run(tmp_path / "a"), entropy=0.5, episode_info={"x": [None, 4.0], "entropy": [7.0]})
    seed = group_runs([tmp_path / "a"], metric="x").groups[0].seeds[0]
    # The two lines have two episodes of 1,000 steps each; the first lacks the metric.
    assert (seed.positions.tolist(), seed.values.tolist()) == ([1000.0, 2000.0], [4.0, 4.0])
    metric_seed = group_runs([tmp_path / "a"], metric="entropy").groups[0].seeds[0]
    assert metric_seed.values.tolist() == [0.5, 0.5]
    info_seed = group_runs([tmp_path / "a"], metric="info/entropy").groups[0].seeds[0]
    assert info_seed.values.tolist() == [7.0, 7.0]
    with pytest.raises(ConfigError, match=r"entropy, evaluation, info/entropy, .*, x"):
        group_runs([tmp_path / "a"], metric="nothing")


@pytest.mark.parametrize("info", [{"x": [1.0, "2"]}, {"x": 1.0}, [1.0], {"x": [True]}])
def test_damaged_numbers(tmp_path, info):
    add(make_run(tmp_path / "a"), episode_info=info)
    assert "is damaged in line 1" in group_runs([tmp_path / "a"], metric="x").skipped[0][1]


@pytest.mark.parametrize("lengths", [["x", None], [10**400]])
def test_damaged_lengths(tmp_path, lengths):
    add(make_run(tmp_path / "a"), episode_lengths=lengths)
    comparison = group_runs([tmp_path / "a"], metric="length")
    assert "`episode_lengths` in metrics.jsonl must be lists of numbers" in comparison.skipped[0][1]
    assert not len(learning_curves.read(tmp_path / "a").lengths)


def test_an_integer_beyond_floats_is_no_metric(tmp_path):
    add(make_run(tmp_path / "a"), entropy=10**400)
    with pytest.raises(ConfigError, match="got 'entropy'"):
        group_runs([tmp_path / "a"], metric="entropy")
    assert len(group_runs([tmp_path / "a"]).groups) == 1


@pytest.mark.parametrize("is_old", [False, True])
def test_groups_differ_by_options_that_affect_learning(tmp_path, is_old):
    """Directories, trackers, checkpoints, threads and compilation do not split groups."""
    make = partial(make_run, is_old=is_old)
    make(tmp_path / "a", seed=1, lr=0.1, track=["wandb"], execution="compile", torch_threads=1)
    make(tmp_path / "b", seed=2, lr=0.1, track=[], execution="eager", torch_threads=2)
    make(tmp_path / "c", seed=1, lr=0.2, network="my_nets:Net")
    make(tmp_path / "d", seed=1, lr=0.2, env_id="Pendulum-v1")
    make(tmp_path / "e", seed=1, lr=0.2, algorithm="sac")
    comparison = group_runs(sorted(tmp_path.iterdir()))
    assert not comparison.skipped
    found = [(g.env_id, g.label, [seed.path.name for seed in g.seeds]) for g in comparison.groups]
    assert found == [
        ("CartPole-v1", "ppo, lr=0.1", ["a", "b"]),
        ("CartPole-v1", "ppo, lr=0.2, network=my_nets:Net", ["c"]),
        ("CartPole-v1", "sac", ["e"]),
        ("Pendulum-v1", "ppo", ["d"]),
    ]


def test_one_seed_counts_once(tmp_path):
    """A duplicate run would make the band too narrow."""
    make_run(tmp_path / "a", seed=1, returns=[[1.0]] * 3)
    make_run(tmp_path / "b", seed=1, returns=[[1.0]] * 2, total_timesteps=3000)
    make_run(tmp_path / "c", seed=1, returns=[[1.0]] * 3)
    comparison = group_runs(sorted(tmp_path.iterdir()))
    (group,) = comparison.groups
    assert [seed.path.name for seed in group.seeds] == ["c"]
    assert [path.name for path, _ in comparison.skipped] == ["b", "a"]
    assert "the configuration and the seed of" in comparison.skipped[0][1]


def test_incomparable_runs_are_skipped(tmp_path):
    make_run(tmp_path / "good")
    make_run(tmp_path / "empty", returns=[[], []])
    (make_run(tmp_path / "broken") / "config.json").write_text("{")
    (make_run(tmp_path / "odd") / "metrics.jsonl").write_text("3\n")
    comparison = group_runs(sorted(tmp_path.iterdir()))
    assert len(comparison.groups) == 1
    reasons = {path.name: reason for path, reason in comparison.skipped}
    assert reasons.keys() == {"broken", "empty", "odd"}
    assert "no finished episode" in reasons["empty"]
    assert "damaged" in reasons["broken"]
    assert "damaged" in reasons["odd"]
