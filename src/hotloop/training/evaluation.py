"""Evaluations during a run, in separate environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hotloop.envs import make_vec
from hotloop.policies import ActingPolicy, Network, PolicySnapshot
from hotloop.rollouts.evaluation import evaluate
from hotloop.rollouts.video import check_filmable, record_video
from hotloop.runs import Evaluation, RunDirectory
from hotloop.runs.report import episode_info
from hotloop.timing import span
from hotloop.training.checkpoint_state import BestEvaluation


class Evaluator:
    """Evaluations of the current policy, and the best one so far.

    Args:
        environment: an id or a factory.
        run: the run directory, for videos.
        best: the best evaluation of a resumed run.
        envs_to_close: a list that receives the evaluation environments.

    Attributes:
        best: the best evaluation, None before the first.
    """

    def __init__(
        self,
        config: Any,
        environment: str | Callable[..., Any],
        run: RunDirectory,
        best: BestEvaluation | None,
        envs_to_close: list[Any],
    ) -> None:
        self.best = best
        self._config = config
        self._environment = environment
        self._run = run
        self._envs = None
        if config.eval_interval is not None:
            self._envs = make_vec(
                environment,
                config.total_envs,
                seed=config.seed,
                env_kwargs=config.env_kwargs,
                stream="evaluation",
                action_masks=getattr(config, "action_masks", False),
                log_info=config.log_info,
            )
            envs_to_close.append(self._envs)
        if config.eval_videos:
            check_filmable(environment, env_kwargs=config.env_kwargs)

    def is_due(self, old_timesteps: int, timesteps: int) -> bool:
        """Return whether an evaluation is due between two step counts, or at the run's end."""
        interval = self._config.eval_interval
        if self._envs is None:
            return False
        return (
            timesteps // interval > old_timesteps // interval
            or timesteps >= self._config.total_timesteps
        )

    def evaluate(self, network: Network, snapshot: PolicySnapshot, timesteps: int) -> Evaluation:
        """Evaluate a policy, and record a video if the configuration requests it.

        Raises:
            EnvironmentFailure: an episode does not end, or an environment failed.
            OutputError: a video can't be written.
        """
        assert self._envs is not None
        config = self._config
        with span("evaluation"):
            policy = ActingPolicy(network, snapshot)
            episodes = evaluate(self._envs, policy, num_episodes=config.eval_episodes)
            returns = [episode.undiscounted_return for episode in episodes]
            mean_return = float(np.mean(returns))
            is_best = self.best is None or mean_return > self.best.mean_return
            if is_best:
                self.best = BestEvaluation(timesteps=timesteps, mean_return=mean_return)
            if config.eval_videos:
                self._run.check_present()
                record_video(
                    self._environment,
                    policy,
                    self._run.path / "videos" / f"step-{timesteps:012}.mp4",
                    env_kwargs=config.env_kwargs,
                    seed=config.seed,
                )
        return Evaluation(
            timesteps=timesteps,
            returns=returns,
            lengths=[episode.length for episode in episodes],
            is_best=is_best,
            info=episode_info(episodes),
        )
