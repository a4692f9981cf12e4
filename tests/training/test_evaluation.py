"""Evaluations and videos during a run: what fails or never ends must not end the training."""

import dataclasses
import warnings

import numpy as np
import pytest

from hotloop.algorithms import ppo, sac
from hotloop.errors import ConfigError, EnvironmentFailure
from hotloop.rollouts import evaluation
from hotloop.runs import RunDirectory
from tests.rollouts.test_evaluation import Clock
from tests.rollouts.video_envs import Counter

SMALL = {
    "total_timesteps": 256,
    "num_steps": 32,
    "update_epochs": 2,
    "num_envs": 2,
    "eval_interval": 64,
    "eval_episodes": 3,
    "execution": "eager",
    "hidden_sizes": (8,),
}


def config(path, **options):
    return ppo.Config(run_dir=str(path), **{**SMALL, **options})


def train(config, env, **options):
    """Train without progress, and return the warnings and the activities of the reports."""
    activities = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ppo.train(
            config,
            env=env,
            progress=False,
            on_report=lambda report: bool(activities.append(report.activity)),
            **options,
        )
    return [str(x.message) for x in caught], [text for text in activities if text]


def evaluations(path):
    return [
        line["evaluation"] for line in RunDirectory.open(path).metrics() if "evaluation" in line
    ]


class Endless(Counter):
    """Episodes without an end."""

    def step(self, action):
        self.count = 0
        return super().step(action)


def test_episodes_without_an_end_are_cut_and_the_training_goes_on(tmp_path):
    messages, _ = train(config(tmp_path / "run", eval_max_steps=50), Endless)
    (message,) = messages  # once
    assert message.startswith("3 of 3 evaluation episodes did not end within 50 steps, and count ")
    assert "`eval_max_steps` or `eval_timeout_s`, or leave out `eval_interval`" in message
    results = evaluations(tmp_path / "run")
    assert [x["lengths"] for x in results] == [[50] * 3] * 4
    assert [(x["returns"], x["num_cut"]) for x in results] == [([100.0] * 3, 3)] * 4
    # A resumed run may leave evaluations out.
    longer = config(tmp_path / "run", total_timesteps=320, eval_interval=None, eval_episodes=10)
    assert train(longer, Endless, resume_from=tmp_path / "run") == ([], [])
    assert len(evaluations(tmp_path / "run")) == 4


def test_a_slow_evaluation_says_so_and_ends_after_a_time(tmp_path, monkeypatch):
    """Later evaluations cut at the same length, so that their returns can be compared."""
    monkeypatch.setattr(evaluation, "time", Clock())
    options = config(tmp_path / "run", eval_timeout_s=20.0, total_timesteps=128)
    messages, activities = train(options, Endless)
    assert len(messages) == 1
    assert "2 of 2 evaluation episodes did not end within 21 steps" in messages[0]
    assert activities[0] == (
        "evaluating: 0 of 3 episodes, and 6 steps in the longest of the others; an episode is cut "
        "after 27,000 steps (eval_max_steps) or 20 s without an end (eval_timeout_s)"
    )
    assert [x["lengths"] for x in evaluations(tmp_path / "run")] == [[21, 21], [21, 21]]


def test_episodes_as_long_as_in_training_are_not_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "time", Clock())
    options = config(tmp_path / "run", eval_timeout_s=3.0, env_kwargs={"length": 20})
    messages, _ = train(options, Counter)
    assert messages == []
    assert [x["lengths"] for x in evaluations(tmp_path / "run")] == [[20] * 3] * 4


class FailsLater(Counter):
    """Rendering fails in the second video, after an image at the start and 6 in the first one."""

    def __init__(self, render_mode=None, num_images=8):
        super().__init__(render_mode)
        self.num_images = num_images

    def render(self):
        self.num_images -= 1
        if self.num_images < 0:
            raise RuntimeError("the GPU is lost")
        return super().render()


def test_a_video_that_fails_warns_once_and_the_training_goes_on(tmp_path):
    path = tmp_path / "run"
    messages, _ = train(config(path, eval_videos=True), FailsLater)
    (message,) = messages
    assert message.startswith("the run continues without videos: ")
    assert "the GPU is lost" in message
    assert [x.name for x in (path / "videos").iterdir()] == ["step-000000000064.mp4"]
    assert len(evaluations(path)) == 4


def test_a_resume_goes_on_where_nothing_can_be_drawn(tmp_path):
    """A new run is refused there."""
    options = config(tmp_path / "run", eval_videos=True)
    fails = {"num_images": 0}
    with pytest.raises(EnvironmentFailure, match="the GPU is lost"):
        train(dataclasses.replace(options, env_kwargs=fails), FailsLater)
    assert not (tmp_path / "run").exists()
    drawable = [True]

    def factory(render_mode=None):
        return FailsLater(render_mode, num_images=1000 * drawable[0])

    train(options, factory)
    drawable[0] = False
    longer = dataclasses.replace(options, total_timesteps=320)
    messages, _ = train(longer, factory, resume_from=tmp_path / "run")
    assert [x.split(":")[0] for x in messages] == ["the run continues without videos"]
    assert len(evaluations(tmp_path / "run")) == 5
    assert len(list((tmp_path / "run" / "videos").iterdir())) == 4


class SharedDisplay(Counter):
    """Like pygame's environments: `close` ends the display of all environments in the process."""

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 10}  # noqa: RUF012
    is_open = False

    def reset(self, **options):
        SharedDisplay.is_open = True
        return super().reset(**options)

    def step(self, action):
        if self.render_mode == "human" and not SharedDisplay.is_open:
            raise RuntimeError("display Surface quit")
        return super().step(action)

    def close(self):
        SharedDisplay.is_open = False


def test_videos_leave_the_display_of_the_training_environments_open(tmp_path):
    options = config(tmp_path / "run", eval_videos=True, env_kwargs={"render_mode": "human"})
    assert train(options, SharedDisplay) == ([], [])
    assert len(list((tmp_path / "run" / "videos").iterdir())) == 4
    assert not SharedDisplay.is_open  # all environments are closed at the end


def test_a_video_that_is_shorter_than_its_episode_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("hotloop.training.evaluation.MAX_STEPS", 3)
    options = config(tmp_path / "run", eval_videos=True, total_timesteps=64)
    messages, _ = train(options, Counter)
    assert messages == [
        "the video step-000000000064.mp4 shows the first 3 of 5 steps of its episode"
    ]


def test_limits_are_checked():
    for name, value in (("eval_max_steps", 0), ("eval_timeout_s", 0.0)):
        with pytest.raises(ConfigError, match=f"`{name}` must be"):
            sac.Config(**{name: value})
    assert np.isfinite(sac.Config().eval_timeout_s)
