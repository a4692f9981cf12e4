"""Evaluations during a run, in separate environments."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from hotloop.base.signals import PendingInterrupt
from hotloop.envs import EnvSpec, VectorEnv, kept_global_generators
from hotloop.errors import HotloopError
from hotloop.policies import ActingPolicy, Network, PolicySnapshot
from hotloop.rollouts.evaluation import evaluate
from hotloop.rollouts.video import MAX_STEPS, Camera
from hotloop.runs import Evaluation
from hotloop.timing import span
from hotloop.training.checkpoint_state import BestEvaluation
from hotloop.training.options import RunOptions
from hotloop.training.reporting import Reporter
from hotloop.training.resume import OpenedRun
from hotloop.training.trained_policy import EvaluationResult
from hotloop.types import Episode


class _EvaluationEnded(Exception):
    """A signal has ended the evaluation."""


class Evaluator:
    """Evaluations of the current policy, and the best one so far.

    Args:
        run: the run. A resumed one may be where videos can't be recorded.
        config: its configuration.
        spec: the training environments' specification.
        envs_to_close: a list that receives the evaluation environments.
        reporter: the run's reporter, for the lengths of training episodes and lengthy evaluations.
        make: makes environments.
        make_game: makes the game of a video, see `Camera`.

    Attributes:
        best: the best evaluation, None before the first.
    """

    def __init__(
        self,
        run: OpenedRun,
        config: RunOptions,
        spec: EnvSpec,
        envs_to_close: list[Any],
        reporter: Reporter,
        make: Callable[[EnvSpec, int], VectorEnv],
        make_game: Callable[[EnvSpec], VectorEnv] | None,
    ) -> None:
        self.best = run.best
        self._reporter = reporter
        # Length at which an evaluation cut episodes. For comparison, later ones cut there too.
        self._cut_steps: int | None = None
        self._config = config
        self._run = run.directory
        self._envs = None
        if config.eval_interval is not None:
            # Restore the global generators, so that evaluations do not change the training.
            with kept_global_generators(config.seed, "evaluation"):
                self._envs = make(replace(spec, stream="evaluation"), config.total_envs)
            envs_to_close.append(self._envs)
        self._camera: Camera | None = None
        if config.eval_videos:
            self._camera = Camera(spec, make_game)
            envs_to_close.append(self._camera)
            with self._warnings_instead_of_errors() if run.is_resumed else nullcontext():
                self._camera.check()

    def is_due(self, old_timesteps: int, timesteps: int) -> bool:
        """Return whether an evaluation is due between two step counts, or at the run's end."""
        interval = self._config.eval_interval
        if interval is None:
            return False
        return (
            timesteps // interval > old_timesteps // interval
            or timesteps >= self._config.total_timesteps
        )

    def evaluate(
        self,
        network: Network,
        snapshot: PolicySnapshot,
        timesteps: int,
        interrupt: PendingInterrupt,
    ) -> Evaluation | None:
        """Evaluate a policy, and record a video if the configuration requests it.

        Args:
            timesteps: transitions that the policy has learned from.
            interrupt: the signals that have arrived. Return None after one, since a cluster leaves
                little time to save.

        Raises:
            EnvironmentFailure: an environment failed.
        """
        assert self._envs is not None
        config = self._config
        with span("evaluation"), kept_global_generators(config.seed, "evaluation"):
            # Play the episodes.
            policy = ActingPolicy(network, snapshot)
            usual_steps = self._reporter.longest_episode
            limit = config.eval_max_steps
            if self._cut_steps is not None:
                limit = min(limit, max(self._cut_steps, usual_steps))

            def end_if_interrupted() -> None:
                if interrupt.has_arrived:
                    raise _EvaluationEnded

            try:
                episodes = evaluate(
                    self._envs,
                    policy,
                    num_episodes=config.eval_episodes,
                    max_steps=limit,
                    timeout_s=config.eval_timeout_s,
                    usual_steps=usual_steps,
                    on_step=end_if_interrupted,
                    on_note=self._note,
                )
            except _EvaluationEnded:
                return None
            self._warn_about_cuts(episodes)

            # Compare with the best evaluation so far, and record a video.
            result = EvaluationResult(tuple(episodes))
            is_best = self.best is None or result.mean_return > self.best.mean_return
            if is_best:
                self.best = BestEvaluation(timesteps=timesteps, mean_return=result.mean_return)
            self._run.check_present()
            with self._warnings_instead_of_errors():
                self._record_video(policy, timesteps, episodes[0])
        return Evaluation(
            timesteps=timesteps,
            returns=result.returns,
            lengths=result.lengths,
            is_best=is_best,
            num_cut=result.num_cut,
            info=result.info,
        )

    def _record_video(self, policy: ActingPolicy, timesteps: int, episode: Episode) -> None:
        """Record a video of an evaluation's first episode, if the run has videos."""
        if self._camera is None:
            return
        path = self._run.path / "videos" / f"step-{timesteps:012}.mp4"
        max_steps = min(MAX_STEPS, episode.length)
        self._camera.record(policy, path, max_steps=max_steps)
        if max_steps < episode.length:
            warnings.warn(
                f"the video {path.name} shows the first {max_steps:,} of {episode.length:,} steps "
                "of its episode",
                stacklevel=2,
            )

    def _note(self, text: str) -> None:
        limits = f"{self._config.eval_max_steps:,} steps (eval_max_steps)"
        if self._config.eval_timeout_s is not None:
            limits += f" or {self._config.eval_timeout_s:g} s without an end (eval_timeout_s)"
        self._reporter.show_activity(f"{text}; an episode is cut after {limits}")

    def _warn_about_cuts(self, episodes: Sequence[Episode]) -> None:
        """Warn once about episodes that an evaluation had to cut."""
        lengths = [episode.length for episode in episodes if episode.is_cut]
        if not lengths or self._cut_steps is not None:
            return
        self._cut_steps = max(lengths)
        warnings.warn(
            f"{len(lengths):,} of {len(episodes):,} evaluation episodes did not end within "
            f"{self._cut_steps:,} steps, and count with the return up to there, also in later "
            "evaluations: give the environment a time limit, change `eval_max_steps` or "
            "`eval_timeout_s`, or leave out `eval_interval` (`hotloop resume` takes all three)",
            stacklevel=2,
        )

    @contextmanager
    def _warnings_instead_of_errors(self) -> Iterator[None]:
        """Turn an error of the camera into a warning, and record no more videos after it."""
        try:
            yield
        except Exception as error:
            self._camera = None
            text = str(error) if isinstance(error, HotloopError) else repr(error)
            warnings.warn(f"the run continues without videos: {text}", stacklevel=1)
