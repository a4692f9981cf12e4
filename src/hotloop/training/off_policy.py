"""Off-policy algorithms: collect → store → update → publish, round by round, then report.

A round collects `train_frequency` steps of every environment and then makes the updates that are
due, `update_to_data` for each transition; an iteration is the rounds between two reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from hotloop.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFailure,
    NonFiniteError,
    NonFiniteUpdate,
    ReplayError,
)
from hotloop.learner import Learner, Normalizer, UpdateRule
from hotloop.policies import ActingPolicy, Exploration, PolicySnapshot
from hotloop.rollouts import NUM_SLOTS, CollectionOptions, Rollout, Schedule
from hotloop.runs import REPLAY_FILE, Result
from hotloop.timing import span
from hotloop.training.acting_policy import make_acting_policy
from hotloop.training.algorithm import Algorithm, acting, joined_arrays, make_normalizer
from hotloop.training.device_replay import Launches, ReplayOnDevice, is_on_device
from hotloop.training.learning import Learning, Run
from hotloop.training.position import Position, ReplayPosition
from hotloop.training.replay import Replay
from hotloop.training.resume import Resumed
from hotloop.training.running import Training
from hotloop.types import Array, Fragment

# Updates whose numbers are kept until they are looked through, at the latest.
MAX_KEPT = 1_000


@dataclass(frozen=True, kw_only=True)
class Update:
    """One of the updates of an off-policy algorithm.

    Attributes:
        function: `function(state, batch, noise, hyper, *, nets, config)` makes a step in place, and
            gives metrics, 0-d tensors by name, or those and |TD error|, (B,).
        name: what messages call it.
        every: an option: made with every so many-th batch; None: with each.
        times: an option: so often then, each time with new noise; None: once.
        has_noise: whether it is given standard normal numbers, (B, A); else None.
    """

    function: Callable[..., Any]
    name: str = "update"
    every: str | None = None
    times: str | None = None
    has_noise: bool = False

    def rule(self, nets: Any, config: Any) -> UpdateRule:
        """The same, with a run's numbers."""
        action_shape = acting(nets).network.action_spec.shape
        return UpdateRule(
            function=partial(self.function, nets=nets, config=config),
            name=self.name,
            every=1 if self.every is None else getattr(config, self.every),
            times=1 if self.times is None else getattr(config, self.times),
            noise_shape=(config.batch_size, math.prod(action_shape)) if self.has_noise else None,
        )


@dataclass(frozen=True, kw_only=True)
class OffPolicy(Algorithm):
    """An algorithm that learns from a replay buffer.

    Attributes:
        updates: in the order in which they are made with a batch; the first gives |TD error|.
        exploration: `exploration(config)` says how it departs from what it thinks best.
        move_targets: `move_targets(state, count, hyper)` moves target networks after a round, where
            they follow transitions and not updates; `count` moves are due. None: they don't.
        target_interval: the option that says how many transitions lie between two moves.
    """

    updates: Sequence[Update] = ()
    exploration: Callable[[Any], Exploration] = lambda config: Exploration()
    move_targets: Callable[..., None] | None = None
    target_interval: str = "target_interval"

    def __post_init__(self) -> None:
        if not self.updates or not all(isinstance(one, Update) for one in self.updates):
            raise ConfigError(
                f"the algorithm '{self.name}' must have an update, got "
                f"{list(self.updates) or 'none'}: give `updates` at least one `Update(function=…)`"
            )
        super().__post_init__()

    def _options(self) -> tuple[str, ...]:
        counts = [name for update in self.updates for name in (update.every, update.times)]
        counts += [] if self.move_targets is None else [self.target_interval]
        return tuple(name for name in counts if name is not None)

    def uneven(self, config: Any) -> Schedule:
        """See `Algorithm`."""
        return "async"

    def collection_options(self, config: Any) -> CollectionOptions:
        """See `Algorithm`."""
        num_steps = config.train_frequency
        if config.schedule == "async":
            # What both slots of all workers hold when learning begins must not become too old.
            num_steps = max(1, min(config.fragment_steps, config.most_ahead // NUM_SLOTS))
        return CollectionOptions(
            num_steps=num_steps,
            seed=config.seed,
            schedule=config.schedule,
            minimum=config.train_frequency * config.total_envs,
            max_policy_age=config.max_policy_age,
        )

    def run(self, training: Training) -> Run[Result]:
        """See `Algorithm`."""
        config, envs, resumed = training.config, training.envs, training.resumed
        if config.overlap:
            _need_gpu(training.device)
        normalizer = make_normalizer(config, envs, envs.num_envs, gamma=1.0)
        with span("make_learner"):
            nets = self.networks(config, envs, training.device)
            network = acting(nets).network
            learner = self.make_learner(
                config,
                nets,
                [update.rule(nets, config) for update in self.updates],
                device=training.device,
                stream=2,
                num_batches=config.planned_updates,
                batch_size=config.batch_size * getattr(config, "sequence_steps", 1),
                overlap=config.overlap,
            )
        with span("make_replay"):
            memory_size, device = network.memory_size, training.device
            launches: Launches | None = None
            if is_on_device(config, envs, device):
                replay = ReplayOnDevice(config, envs, device)
                launches = Launches(learner, replay, config.updates_per_launch)
            else:
                replay = Replay(config, envs, device, training.environment, memory_size)
        policy = make_acting_policy(
            config,
            learner,
            acting(nets),
            getattr(learner.state, self.acting),
            obs_scale=normalizer.obs_scale,
            exploration=self.exploration(config),
        )
        rollout = training.rollout(policy)
        rounds = _Rounds(self, config, learner, policy, rollout, replay, normalizer, launches)
        iteration, restarted_envs, notes = 0, [], []
        if resumed is not None:
            iteration = resumed.position.iteration
            was = resumed.position
            learner.load(resumed.arrays, was.random, was.num_updates, was.executed)
            rounds.load_normalizer(resumed.arrays)
            rollout.publish(rounds.published(newest=True))
            restarted_envs = rollout.restore(resumed.arrays, resumed.position.rollout)
            notes = rounds.restore(resumed)
            for env in restarted_envs:
                replay.cut(env)

        wants_to_stop = training.begin(learner, restarted_envs, notes)
        while not wants_to_stop and rollout.num_transitions < config.total_timesteps:
            iteration += 1
            # Ctrl-C ends the iteration after a round, where all parts agree on how far they are.
            with training.pending_interrupt() as interrupt:
                metrics = yield from rounds.run_iteration(interrupt)
                with span("publish"):
                    state = rollout.state()
                    newest = rounds.published(newest=True)
                    if config.overlap:  # as a resumed run does
                        rollout.publish(newest)
                    snapshot = learner.kept(newest)
                    parts = (
                        learner.kept_state(),
                        rounds.normalizer_arrays().copy,
                        replay.to_arrays().copy,
                        state.to_arrays,
                    )
                    position = Position(
                        timesteps=state.num_transitions,
                        iteration=iteration,
                        num_updates=learner.num_updates,
                        num_moves=rounds.num_moves,
                        device=str(learner.device),
                        random=learner.random_state(),
                        executed=learner.executed(),
                        rollout=state.position(),
                        replay=rounds.position,
                    )
                wants_to_stop = training.end_iteration(
                    position,
                    network=network,
                    snapshot=snapshot,
                    arrays=partial(joined_arrays, parts),
                    metrics=metrics,
                    rollout=rollout,
                    files={REPLAY_FILE: replay.buffer.save} if config.save_replay else {},
                )
        return training.result(policy, learner, is_stopped=wants_to_stop)


def _need_gpu(device: torch.device) -> None:
    """Refuse what is for a GPU alone, where `device` was left to 'auto'."""
    if device.type == "cpu":
        raise ConfigError(
            "`overlap` acts while a GPU learns, and `device` 'auto' found none: leave it out"
        )


class _Rounds:
    """The rounds, and the count of what is due.

    Attributes:
        num_moves: of the target networks, had they moved from the first transition on.
    """

    def __init__(
        self,
        algorithm: OffPolicy,
        config: Any,
        learner: Learner,
        policy: ActingPolicy,
        rollout: Rollout,
        replay: Replay | ReplayOnDevice,
        normalizer: Normalizer,
        launches: Launches | None,
    ) -> None:
        self.num_moves = 0
        self._algorithm = algorithm
        self._config = config
        self._learner = learner
        self._policy = policy
        self._rollout = rollout
        self._replay = replay
        self._normalizer = normalizer
        self._launches = launches
        self._is_scaled = normalizer.obs_scale is not None
        self._began, self._done, self._empty_at = -1, 0, 0  # see `ReplayPosition`
        # The numbers of what the updates learned from that were not looked through yet.
        self._indices: list[Any] = []
        self._iteration_began = 0  # updates by then

    @property
    def position(self) -> ReplayPosition:
        """For a checkpoint."""
        buffer = self._replay.buffer
        return ReplayPosition(
            began=self._began,
            done=self._done,
            empty_at=self._empty_at,
            added=buffer.num_added,
            sampled=buffer.num_samples,
        )

    def published(self, *, newest: bool = False) -> PolicySnapshot:
        """Return the policy as it is now, in arrays that the next call overwrites.

        With `overlap` it is the one of the call before, unless it must be the `newest`. A policy
        that reads the learner's parameters gets those of the last report, without a copy.
        """
        scale, version = self._normalizer.obs_scale, self._learner.num_updates
        if not newest and not self._policy.needs_parameters:
            return replace(self._policy.snapshot, version=version, obs_scale=scale)
        return self._learner.publish(version, scale, newest=newest)

    def normalizer_arrays(self) -> dict[str, Array]:
        """Statistics of observations for a checkpoint; nothing where there are none."""
        return self._normalizer.to_arrays() if self._is_scaled else {}

    def load_normalizer(self, arrays: Mapping[str, Array]) -> None:
        """The inverse of `normalizer_arrays`."""
        if self._is_scaled:
            self._normalizer.load(arrays)

    def restore(self, resumed: Resumed) -> list[str]:
        """Go on from a checkpoint; return what the user should know of it, in sentences.

        Raises:
            ConfigError: too few transitions are to come for learning to begin again.
            CheckpointError: the buffer's file is older than the checkpoint.
        """
        position, path = resumed.position, resumed.checkpoint.path
        self.num_moves = position.num_moves
        assert position.replay is not None
        assert path is not None
        buffer, config, path = self._replay.buffer, self._config, path / REPLAY_FILE
        if not path.is_file():
            # Learning waits until as much was collected as it waited for at first.
            self._empty_at = position.timesteps
            buffer.num_samples = position.num_updates  # β goes on
            wait = config.first_learned
            if position.timesteps + wait >= config.total_timesteps:
                raise ConfigError(
                    "the replay buffer was not kept with this checkpoint, and without it learning "
                    f"waits for {wait:,} transitions, but only "
                    f"{config.total_timesteps - position.timesteps:,} are to come: raise "
                    "`total_timesteps`"
                )
            return [
                "the replay buffer was not kept with this checkpoint and begins empty "
                "(`save_replay` keeps it with the last one): learning waits for "
                f"{wait:,} transitions"
            ]
        with span("restore_replay"):
            buffer.restore(path)
        self._replay.load(resumed.arrays)
        stored = position.replay
        self._began, self._done, self._empty_at = stored.began, stored.done, stored.empty_at
        ahead = buffer.num_added - position.replay.added
        if ahead < 0:
            raise CheckpointError(
                f"{path} holds {-ahead} transitions fewer than its checkpoint was made with: take "
                "another checkpoint, or remove the file to begin with an empty buffer"
            )
        if ahead > 0 or buffer.num_samples != position.replay.sampled:
            # The steps that come now follow others than the last ones that it holds.
            self._replay.cut()
            return [f"the replay buffer holds {ahead} transitions from after the checkpoint"]
        return []

    def run_iteration(self, interrupt: Any) -> Run[dict[str, float]]:
        """Make rounds until a report is due, the run is done, or a signal has come.

        Returns:
            The means of what the updates said.

        Raises:
            NonFiniteUpdate: one of them was not finite.
        """
        config, rollout, learner = self._config, self._rollout, self._learner
        end = min(rollout.num_transitions + config.report_interval, config.total_timesteps)
        learner.metrics.clear()
        self._iteration_began = learner.num_updates
        while rollout.num_transitions < end and not interrupt.has_come:
            try:
                with span("collect"):
                    fragments = rollout.collect()
            except (EnvironmentFailure, NonFiniteError):
                self._check_finite()  # an update may have been the cause
                raise
            with span("store"):
                for fragment in fragments:
                    self._store(fragment)
                    self._normalizer.update(fragment)
            learner.hyper.set(min(1.0, rollout.num_transitions / config.total_timesteps))
            if due := self._num_due():
                launch = None if self._launches is None else partial(self._launch, due)
                yield Learning(learner, self._learn(due), spans=("update",), launch=launch)
            if len(self._indices) >= MAX_KEPT:
                self._check_finite()
            if self._began >= 0 or self._is_scaled:
                with span("publish"):
                    if self._began >= 0:
                        self._move_targets()
                    rollout.publish(self.published())
        self._check_finite()
        return {
            **learner.metrics.means(),
            **learner.hyper.reported(),
            "num_updates": float(learner.num_updates),
            "replay_size": float(len(self._replay.buffer)),
        }

    def _num_due(self) -> int:
        """Updates to make now."""
        config, rollout = self._config, self._rollout
        collected = rollout.num_transitions
        if self._began < 0:
            is_collecting = collected - self._empty_at < config.first_learned
            if is_collecting or len(self._replay.buffer) < config.batch_size:
                return 0
            # The transition that learning waited for is the first.
            self._began, self._done = collected - 1, 0
        due = int(config.update_to_data * (collected - self._began)) - self._done
        allowed = rollout.updates_allowed()
        if allowed is not None and collected < config.total_timesteps:
            due = min(due, allowed)
        return max(0, due)

    def _learn(self, due: int) -> Generator[Any, Any, None]:
        """Make so many updates: yield batches, which are drawn as many at a time as may be."""
        replay = self._replay
        # What is drawn was stored raw, and is seen as the policy sees it from now on.
        scale = self._normalizer.obs_scale
        for first in range(0, due, replay.max_drawn):
            count = min(due - first, replay.max_drawn)
            batches, index = replay.draw(count, scale)
            # Those of a device are in tensors of their own.
            rows = (index.copy() if isinstance(index, np.ndarray) else index).reshape(count, -1)
            self._indices.extend(rows)
            for batch, row in zip(batches, rows, strict=True):
                td_error = yield batch
                if replay.by_priority:
                    self._update_priorities(row, td_error)
            self._done += count
            self._rollout.watch()

    def _launch(self, due: int) -> None:
        """Make so many updates, K of them in one function."""
        assert self._launches is not None
        for count in self._launches.counts(due):
            if self._launches.is_full:
                self._check_finite()
            index, td_error = self._launches.make(count, self._normalizer.obs_scale)
            if self._replay.by_priority:
                assert index is not None
                self._update_priorities(index, td_error)
            self._done += count
            self._rollout.watch()

    def _store(self, fragment: Fragment) -> None:
        try:
            self._replay.store(fragment)
        except ReplayError:
            self._check_finite()  # of a device's priorities, which are written a round later
            raise

    def _update_priorities(self, index: Array, td_error: Any) -> None:
        if td_error is None:
            raise ConfigError(
                f"`replay` '{self._config.replay}' draws by TD error, and the updates of "
                f"'{self._algorithm.name}' give none: return `metrics, td_error`, or choose another"
            )
        with span("update_priorities"):
            try:
                self._replay.update_priorities(index, td_error)
            except ReplayError:
                self._check_finite()  # an error that is NaN has a cause
                raise

    def _move_targets(self) -> None:
        algorithm = self._algorithm
        if algorithm.move_targets is None:
            return
        interval = getattr(self._config, algorithm.target_interval)
        moves = self._rollout.num_transitions // interval
        if moves > self.num_moves:
            # Several that fall into one round are one: what they move towards is the same.
            count, self.num_moves = moves - self.num_moves, moves
            algorithm.move_targets(self._learner.state, count, self._learner.hyper.tensors)

    def _check_finite(self) -> None:
        """Look through the updates since the last look.

        Raises:
            NonFiniteUpdate: one was not finite.
        """
        learner = self._learner
        if self._launches is not None:
            self._indices.extend(self._launches.read())
        bad = learner.metrics.first_bad()
        if bad is None and self._indices:
            broken = learner.non_finite()
            bad = (learner.num_updates, broken) if broken else None
        if bad is not None:
            number, names = bad
            index = self._indices[number - 1 - (learner.num_updates - len(self._indices))]
            number -= self._iteration_began
            raise NonFiniteUpdate(names, number, self._replay.kept(index))
        self._indices.clear()
        learner.metrics.fold()
