"""Self-play: a run learns in games against frozen snapshots of its own policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from hotloop.envs import EnvSpec, VectorEnv, seed_global_generators
from hotloop.envs.game_factory import make_turn_games
from hotloop.errors import ConfigError
from hotloop.rollouts import Environments, InlineEnvironments
from hotloop.runs import RunDirectory, RunResult
from hotloop.runs.policies import POOL, SELF_PLAY_FILE
from hotloop.training.callbacks import Callback
from hotloop.training.checkpoint_state import CompletedIteration
from hotloop.training.loop import Stages
from hotloop.training.opponent_pool import OpponentPool
from hotloop.training.options import RunOptions
from hotloop.training.resume import OpenedRun
from hotloop.training.sources import ONE_POLICY, Makers
from hotloop.training.trained_policy import make_opposed


class SelfPlay(Callback):
    """The opponents of a run, whose state is part of its checkpoints."""

    def __init__(self, config: RunOptions) -> None:
        self._config = config
        self._pool: OpponentPool | None = None
        self._envs: Any = None
        self._directory: RunDirectory | None = None
        self._metrics: dict[str, float] = {}

    def makers(self) -> Makers:
        """Return the functions that make the run's environments and adapt its stages."""
        return Makers(
            training=self._make_environments,
            evaluation=self._make_evaluation,
            film=lambda spec: self._make_evaluation(spec, 1),
            adapt=self._add_snapshots,
            callbacks=(self,),
        )

    def state(self) -> Mapping[str, Any]:
        assert self._pool is not None
        episodes = [episode for episode, _ in self._envs.running_episodes()]
        return {**self._pool.state(episodes, self._envs.moves), "metrics": self._metrics}

    def on_end(self, result: RunResult | None) -> None:
        """Write the results up to the end, with those of the policy since its last snapshot."""
        self._write_table()

    def _make_environments(self, config: RunOptions, spec: EnvSpec, run: OpenedRun) -> Environments:
        """Make the games, whose opponents are this run's pool."""
        if config.is_recurrent:
            raise ConfigError("self-play does not support recurrent networks: leave `memory` out")
        seed_global_generators(config.seed, "learner")
        self._directory = run.directory
        path, checkpoints = run.directory.path / POOL, run.directory.checkpoints
        self._pool = OpponentPool(config, config.seed, path, checkpoints)
        if run.checkpoint is not None:
            state = run.checkpoint.position.callbacks.get(type(self).__name__)
            self._metrics = self._pool.load(state)
        self._envs = make_turn_games(spec, config.total_envs, self._pool)
        return InlineEnvironments([self._envs])

    def _make_evaluation(self, spec: EnvSpec, num_envs: int) -> VectorEnv:
        return make_opposed(spec, num_envs, self._config.eval_opponent)

    def _add_snapshots(self, stages: Stages) -> Stages:
        """Let the stages add snapshots of the policy to the pool when they are due."""
        pool, complete = self._pool, stages.complete
        assert pool is not None
        pool.network = stages.policy.network
        if not pool.num_snapshots:
            snapshot = stages.learner.copy_snapshot(stages.policy.snapshot)
            pool.add(snapshot, 0)

        def complete_and_add() -> CompletedIteration:
            iteration = complete()
            timesteps = iteration.position.timesteps
            score = pool.score()
            if score is not None:
                self._metrics["score"] = score
            if pool.is_due(timesteps):
                pool.add(iteration.snapshot, timesteps)
                self._rate()
            return dataclasses.replace(iteration, metrics={**iteration.metrics, **self._metrics})

        stages.complete = complete_and_add
        return stages

    def _write_table(self) -> dict[str, Any]:
        assert self._pool is not None
        assert self._directory is not None
        table = self._pool.table()
        self._directory.write_json(SELF_PLAY_FILE, table)
        return table

    def _rate(self) -> None:
        """Write the table of results, and rate the newest snapshot."""
        table = self._write_table()
        newest = len([name for name in table["players"] if name.startswith("step-")]) - 1
        rating, width = table["ratings"][newest], table["intervals"][newest]
        self._metrics |= {"rating": rating, "rating_interval": width}


def makers_of(config: RunOptions) -> Makers:
    """Return the functions that make the environments of a run with one policy."""
    return ONE_POLICY if config.self_play is None else SelfPlay(config).makers()
