"""Videos of games: each change has a frame, below the names of the players."""

from __future__ import annotations

import numpy as np
import pytest

from hotloop.algorithms import ppo
from hotloop.cli import main
from hotloop.errors import ConfigError
from hotloop.rollouts.frame_labels import FrameLabel
from hotloop.training import train_policies
from tests.rollouts.test_video import read_video
from tests.toy_games import Matching, Nim, Teams

BLANK = np.zeros((16, 200, 3), np.uint8)
HERE = "tests.training.test_game_videos"


class PaintedNim(Nim):
    """Nim whose picture has the brightness 20 for each counter."""

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def render(self):
        return BLANK + np.uint8(20 * self.counters)


class PaintedTeams(Teams):
    """Teams whose picture has the brightness 20 for each step."""

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def render(self):
        return BLANK + np.uint8(20 * self.steps)


class PaintedMatching(Matching):
    """Matching whose picture has the brightness 20 for each step."""

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def render(self):
        return BLANK + np.uint8(20 * self.steps)


def config(path, env_id, **options):
    return ppo.Config(
        env_id=env_id,
        num_envs=6,
        num_steps=8,
        hidden_sizes=(8,),
        execution="eager",
        run_dir=str(path),
        eval_interval=96,
        total_timesteps=96,
        eval_episodes=6,
        eval_videos=True,
        **options,
    )


def read_levels(path, players):
    """Return the brightness below the label of each frame as a number of steps or counters."""
    frames, _ = read_video(path)
    assert frames[0].shape == FrameLabel(players).add(BLANK).shape
    assert frames[0, : -len(BLANK)].max() > 200  # the white text
    return (frames[:, -len(BLANK) // 2 :].mean(axis=(1, 2, 3)) / 20).round().astype(int)


def test_the_video_of_a_game_shows_each_move(tmp_path):
    path, video = tmp_path / "run", tmp_path / "game.mp4"
    options = {"self_play": "latest", "action_masks": True}
    ppo.algorithm.train(config(path, f"{HERE}:PaintedNim", **options), progress=False)
    assert main(["eval", str(path), "--video", str(video)]) == 0
    players = {"first": "policy", "second": "random"}
    counters = read_levels(video, players)
    assert counters[0] in (6, 7)
    assert counters[-1] == 0
    assert set(np.diff(counters)) <= {-1, -2}
    during = read_levels(path / "videos" / "step-000000000096.mp4", players)
    assert during.tolist() == counters.tolist()
    assert main(["eval", str(path), "--opponent", str(path), "--video", str(video)]) == 0
    read_levels(video, {"first": "policy", "second": str(path)})
    with pytest.raises(ConfigError, match="can't be filmed"):
        ppo.algorithm.train(config(tmp_path / "other", "tests.toy_games:Nim", **options))


def test_the_video_of_several_policies_shows_each_step(tmp_path):
    path, video = tmp_path / "run", tmp_path / "game.mp4"
    train_policies(ppo.algorithm, config(path, f"{HERE}:PaintedTeams", policies="red,blue"))
    players = {"red_0": "red", "red_1": "red", "blue_0": "blue"}
    for name in ("red", "blue"):
        assert main(["eval", str(path / "policies" / name), "--video", str(video)]) == 0
        assert read_levels(video, players).tolist() == list(range(7))
        (during,) = (path / "policies" / name / "videos").iterdir()
        assert read_levels(during, players).tolist() == list(range(7))


def test_the_video_of_agents_with_one_policy_shows_each_step(tmp_path):
    path, video = tmp_path / "run", tmp_path / "game.gif"
    ppo.algorithm.train(config(path, f"{HERE}:PaintedMatching"), progress=False)
    assert main(["eval", str(path), "--video", str(video)]) == 0
    players = {"left": "policy", "right": "policy"}
    assert read_levels(video, players).tolist() == list(range(9))
    (during,) = (path / "videos").iterdir()
    assert read_levels(during, players).tolist() == list(range(9))


def test_labels_are_cut_at_the_width_of_the_frame():
    label = FrameLabel({"a": "policy" * 50, "b": "random"})
    frame = label.add(np.zeros((30, 64, 3), np.uint8))
    assert frame.shape[1:] == (64, 3)
    assert frame.shape[0] % 2 == 0
    assert not frame[-30:].any()
    narrow = label.add(np.zeros((30, 32, 3), np.uint8))
    assert narrow.shape[1:] == (32, 3)
