import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hotloop.runs.comparison import SeedCurve, compare, confidence_band, grid
from tests.runs.made import make_run


def test_the_band_by_hand():
    """Of 1, 2, 3: s = 1, s/√3 = 0.57735, t₂ = 4.3027."""
    mean, half_width = confidence_band(np.array([[1.0], [2.0], [3.0]]))
    assert mean == [2.0]
    assert half_width[0] == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)
    assert confidence_band(np.array([[1.0, 5.0]]))[1] is None


def test_smoothing_by_hand():
    curve = SeedCurve(
        path=Path("run"),
        seed=1,
        steps=np.array([20, 20, 40, 70]),
        returns=np.array([1.0, 3.0, 4.0, 7.0]),
        timesteps=80,
    )
    points = np.arange(10.0, 110.0, 10.0)
    # Nothing has ended at 10; (0, 20] has two, (10, 30] the same; none in (40, 60].
    expected = [np.nan, 2.0, 2.0, 4.0, 4.0, 5.5, 7.0, 7.0, np.nan, np.nan]
    np.testing.assert_allclose(curve.smoothed(points, 20.0), expected)


def test_a_run_that_ended_early_ends_its_groups_mean(tmp_path):
    make_run(tmp_path / "a", seed=1, returns=[[1.0], [2.0], [3.0], [4.0]])
    make_run(tmp_path / "b", seed=2, returns=[[3.0], [4.0]], total_timesteps=4000)
    (group,) = compare([tmp_path / "a", tmp_path / "b"]).groups
    points, width = grid([group])
    np.testing.assert_array_equal(points, [1000, 2000, 3000, 4000])
    assert width == 1000
    assert group.timesteps == 2000
    curves = np.stack([seed.smoothed(points, width) for seed in group.seeds])
    mean, half_width = confidence_band(curves)
    np.testing.assert_array_equal(mean, [2.0, 3.0, np.nan, np.nan])
    # Two values 2 apart: s/√2 = 1, t₁ = 12.7062. The last tenth of 2,000 steps.
    np.testing.assert_allclose(half_width[:2], 12.7062, atol=1e-4)
    assert group.final_return() == (3.0, pytest.approx(12.7062, abs=1e-4))


@pytest.mark.parametrize("is_old", [False, True])
def test_groups_differ_by_what_is_learned(tmp_path, is_old):
    """Neither directories, nor trackers, checkpoints, threads or compilation tell runs apart."""
    make = partial(make_run, is_old=is_old)
    make(tmp_path / "a", seed=1, lr=0.1, track=["wandb"], compile="on", torch_threads=1)
    make(tmp_path / "b", seed=2, lr=0.1, track=[], compile="off", torch_threads=2)
    make(tmp_path / "c", seed=1, lr=0.2, network="my_nets:Net")
    make(tmp_path / "d", seed=1, lr=0.2, env_id="Pendulum-v1")
    make(tmp_path / "e", seed=1, lr=0.2, algorithm="sac")
    comparison = compare(sorted(tmp_path.iterdir()))
    assert not comparison.left_out
    found = [(g.env_id, g.label, [seed.path.name for seed in g.seeds]) for g in comparison.groups]
    assert found == [
        ("CartPole-v1", "ppo, lr=0.1", ["a", "b"]),
        ("CartPole-v1", "ppo, lr=0.2, network=my_nets:Net", ["c"]),
        ("CartPole-v1", "sac", ["e"]),
        ("Pendulum-v1", "ppo", ["d"]),
    ]


def test_one_seed_counts_once(tmp_path):
    """The same run twice would make the band narrower than it is."""
    make_run(tmp_path / "a", seed=1, returns=[[1.0]] * 3)
    make_run(tmp_path / "b", seed=1, returns=[[1.0]] * 2, total_timesteps=3000)
    make_run(tmp_path / "c", seed=1, returns=[[1.0]] * 3)
    comparison = compare(sorted(tmp_path.iterdir()))
    (group,) = comparison.groups
    assert [seed.path.name for seed in group.seeds] == ["c"]
    assert [path.name for path, _ in comparison.left_out] == ["b", "a"]
    assert "the configuration and the seed of" in comparison.left_out[0][1]


def test_what_cannot_be_compared_is_left_out(tmp_path):
    make_run(tmp_path / "good")
    make_run(tmp_path / "empty", returns=[[], []])
    (make_run(tmp_path / "broken") / "config.json").write_text("{")
    (make_run(tmp_path / "odd") / "metrics.jsonl").write_text("3\n")
    comparison = compare(sorted(tmp_path.iterdir()))
    assert len(comparison.groups) == 1
    reasons = {path.name: why for path, why in comparison.left_out}
    assert reasons.keys() == {"broken", "empty", "odd"}
    assert "no episode that ended" in reasons["empty"]
    assert "damaged" in reasons["broken"]
    assert "damaged" in reasons["odd"]
