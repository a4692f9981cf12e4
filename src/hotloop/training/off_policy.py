"""Off-policy algorithms: collect → store → update → publish, round by round, then report.

A round collects `train_frequency` steps of every environment, then runs the updates that are due,
`update_to_data` for each transition. An iteration consists of the rounds between two reports.
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
from hotloop.runs import REPLAY_FILE, RunResult
from hotloop.timing import span
from hotloop.training.acting_policy import make_acting_policy
from hotloop.training.algorithm import Algorithm, joined_arrays, make_normalizer, policy_network
from hotloop.training.checkpoint_state import CheckpointState, ReplayCounters
from hotloop.training.device_replay import Launches, ReplayOnDevice, is_on_device
from hotloop.training.replay import Replay
from hotloop.training.resume import ResumedRun
from hotloop.training.run import Training
from hotloop.training.update_requests import Run, UpdateRequest
from hotloop.types import Array, Fragment

# The maximum number of updates between two checks for NaN and infinity.
MAX_UNCHECKED = 1_000


@dataclass(frozen=True, kw_only=True)
class Update:
    """One of the updates of an off-policy algorithm.

    Attributes:
        function: `function(state, batch, noise, hyper, *, nets, config)` updates the state in place
            and returns metrics, 0-d tensors by name, or a pair of metrics and |TD error|, (B,).
        name: the name in messages.
        every: the name of an option: the update runs with every n-th batch. None: with each.
        times: the name of an option: the update runs n times in a row, with new noise. None: once.
        has_noise: whether the function receives standard normal noise, (B, A), instead of None.
    """

    function: Callable[..., Any]
    name: str = "update"
    every: str | None = None
    times: str | None = None
    has_noise: bool = False

    def rule(self, nets: Any, config: Any) -> UpdateRule:
        """Return the update rule for a run's networks and configuration."""
        action_shape = policy_network(nets).network.action_spec.shape
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
        updates: the updates in order of execution. The first returns |TD error|.
        exploration: `exploration(config)` returns how the policy explores; None: it does not.
        move_targets: `move_targets(state, count, hyper)` performs `count` updates of the target
            networks after a round, if transitions schedule them and not gradient steps; else None.
        target_interval: the name of the option for the transitions between two target updates.
    """

    updates: Sequence[Update] = ()
    exploration: Callable[[Any], Exploration | None] = lambda config: None
    move_targets: Callable[..., None] | None = None
    target_interval: str = "target_interval"

    def __post_init__(self) -> None:
        if not self.updates or not all(isinstance(update, Update) for update in self.updates):
            raise ConfigError(
                f"the algorithm '{self.name}' must have an update, got "
                f"{list(self.updates) or 'none'}: add an `Update(function=…)` to `updates`"
            )
        super().__post_init__()

    def _referenced_options(self) -> tuple[str, ...]:
        counts = [name for update in self.updates for name in (update.every, update.times)]
        counts += [] if self.move_targets is None else [self.target_interval]
        return tuple(name for name in counts if name is not None)

    def nonblocking_schedule(self, config: Any) -> Schedule:
        """See `Algorithm`."""
        return "async"

    def collection_options(self, config: Any) -> CollectionOptions:
        """See `Algorithm`."""
        num_steps = config.train_frequency
        if config.schedule == "async":
            # Fragments in both slots of all workers must not exceed the maximum age.
            num_steps = max(1, min(config.fragment_steps, config.max_steps_ahead // NUM_SLOTS))
        return CollectionOptions(
            num_steps=num_steps,
            seed=config.seed,
            schedule=config.schedule,
            min_transitions=config.train_frequency * config.total_envs,
            max_policy_age=config.max_policy_age,
        )

    def run(self, training: Training) -> Run[RunResult]:
        """See `Algorithm`."""
        # Make the learner, the replay buffer and the rollout.
        config, envs, resumed = training.config, training.envs, training.resumed
        if config.overlap:
            _require_gpu(training.device)
        with span("make_learner"):
            nets = self.networks(config, envs, training.device)
            normalizer = make_normalizer(config, nets, envs.num_envs, gamma=1.0)
            network = policy_network(nets).network
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
                is_scaled = normalizer.obs_scale is not None
                replay = ReplayOnDevice(config, envs, device, is_scaled=is_scaled)
                launches = Launches(learner, replay, config.updates_per_launch)
            else:
                replay = Replay(config, envs, device, training.env_spec, memory_size)
        policy = make_acting_policy(
            config,
            learner,
            policy_network(nets),
            getattr(learner.state, self.acting),
            obs_scale=normalizer.obs_scale,
            exploration=self.exploration(config),
        )
        rollout = training.make_rollout(policy)
        rounds = _Rounds(self, config, learner, policy, rollout, replay, normalizer, launches)
        # Restore the checkpoint of a resumed run.
        iteration, restarted_envs, notes = 0, [], []
        if resumed is not None:
            iteration = resumed.position.iteration
            old = resumed.position
            learner.load(resumed.arrays, old.random, old.num_updates, old.executed)
            rounds.load_normalizer(resumed.arrays)
            rollout.publish(rounds.snapshot(newest=True))
            restarted_envs = rollout.restore(resumed.arrays, resumed.position.rollout)
            notes = rounds.restore(resumed)
            for env in restarted_envs:
                replay.cut(env)

        # Run the iterations.
        should_stop = training.begin(learner, restarted_envs, notes)
        while not should_stop and rollout.num_transitions < config.total_timesteps:
            iteration += 1
            # Ctrl-C ends the iteration after a round, when all parts are in a consistent state.
            with training.pending_interrupt() as interrupt:
                metrics = yield from rounds.run_iteration(interrupt)
                with span("publish"):
                    state = rollout.state()
                    newest = rounds.snapshot(newest=True)
                    if config.overlap:  # as a resumed run does
                        rollout.publish(newest)
                    snapshot = learner.copy_snapshot(newest)
                    parts = (
                        learner.state_snapshot(),
                        rounds.normalizer_arrays().copy,
                        replay.to_arrays().copy,
                        state.to_arrays,
                    )
                    position = CheckpointState(
                        timesteps=state.num_transitions,
                        iteration=iteration,
                        num_updates=learner.num_updates,
                        num_moves=rounds.num_moves,
                        device=str(learner.device),
                        random=learner.random_state(),
                        executed=learner.modes_used(),
                        rollout=state.position(),
                        replay=rounds.position,
                    )
                should_stop = training.end_iteration(
                    position,
                    network=network,
                    snapshot=snapshot,
                    arrays=partial(joined_arrays, parts),
                    metrics=metrics,
                    rollout=rollout,
                    files={REPLAY_FILE: replay.buffer.save} if config.save_replay else {},
                )
        return training.result(policy, learner, is_stopped=should_stop)


def _require_gpu(device: torch.device) -> None:
    if device.type == "cpu":
        raise ConfigError(
            "`overlap` needs a GPU for the updates, and `device` 'auto' found none: leave out "
            "`overlap`"
        )


class _Rounds:
    """The rounds of collecting and updating. `num_moves` includes skipped target updates."""

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
        self._learning_start, self._num_done, self._buffer_start = -1, 0, 0  # see `ReplayCounters`
        # Indices of the transitions of each update since the last check for NaN.
        self._unchecked: list[Any] = []
        self._first_update = 0  # updates before this iteration

    @property
    def position(self) -> ReplayCounters:
        buffer = self._replay.buffer
        return ReplayCounters(
            began=self._learning_start,
            done=self._num_done,
            empty_at=self._buffer_start,
            added=buffer.num_added,
            sampled=buffer.num_samples,
        )

    def snapshot(self, *, newest: bool = False) -> PolicySnapshot:
        """Return the current policy, in arrays that the next call overwrites."""
        # With `overlap` it is the policy of the previous call, unless `newest` is True. If the
        # acting policy reads the learner's parameters, the snapshot repeats those of the last
        # report.
        scale, version = self._normalizer.obs_scale, self._learner.num_updates
        if not newest and not self._policy.needs_parameters:
            return replace(self._policy.snapshot, version=version, obs_scale=scale)
        return self._learner.publish(version, scale, must_be_current=newest)

    def normalizer_arrays(self) -> dict[str, Array]:
        return self._normalizer.to_arrays() if self._is_scaled else {}

    def load_normalizer(self, arrays: Mapping[str, Array]) -> None:
        if self._is_scaled:
            self._normalizer.load(arrays)

    def restore(self, resumed: ResumedRun) -> list[str]:
        """Restore counters and buffer from a checkpoint, and return notes for the user."""
        # Raises ConfigError if the run ends before learning could begin again, and CheckpointError
        # if the buffer's file is older.
        position, path = resumed.position, resumed.checkpoint.path
        self.num_moves = position.num_moves
        assert position.replay is not None
        assert path is not None
        buffer, config, path = self._replay.buffer, self._config, path / REPLAY_FILE
        if not path.is_file():
            # Learning waits for the same number of transitions as in a new run.
            self._buffer_start = position.timesteps
            buffer.num_samples = position.num_updates  # β continues
            num_needed = config.first_update_at
            if position.timesteps + num_needed >= config.total_timesteps:
                raise ConfigError(
                    "this checkpoint has no replay buffer, and without it learning waits for "
                    f"{num_needed:,} transitions, but only "
                    f"{config.total_timesteps - position.timesteps:,} are left: raise "
                    "`total_timesteps`"
                )
            return [
                "this checkpoint has no replay buffer, so it starts empty (`save_replay` saves it "
                "with the last checkpoint): learning waits for "
                f"{num_needed:,} transitions"
            ]
        with span("restore_replay"):
            buffer.restore(path)
        self._replay.load(resumed.arrays)
        stored = position.replay
        self._learning_start, self._num_done, self._buffer_start = (
            stored.began,
            stored.done,
            stored.empty_at,
        )
        ahead = buffer.num_added - position.replay.added
        if ahead < 0:
            raise CheckpointError(
                f"{path} has {-ahead} transitions fewer than its checkpoint: use another "
                "checkpoint, or remove the file to start with an empty buffer"
            )
        if ahead > 0 or buffer.num_samples != position.replay.sampled:
            # The next steps do not continue the last stored ones.
            self._replay.cut()
            return [f"the replay buffer holds {ahead} transitions from after the checkpoint"]
        return []

    def run_iteration(self, interrupt: Any) -> Run[dict[str, float]]:
        """Run rounds until a report, the end or a signal, and average the metrics."""
        # Raises NonFiniteUpdate.
        config, rollout, learner = self._config, self._rollout, self._learner
        end = min(rollout.num_transitions + config.report_interval, config.total_timesteps)
        learner.metrics.clear()
        self._first_update = learner.num_updates
        while rollout.num_transitions < end and not interrupt.has_arrived:
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
            if num_due := self._num_updates_due():
                launch = None if self._launches is None else partial(self._run_launches, num_due)
                yield UpdateRequest(
                    learner, self._update_batches(num_due), spans=("update",), launch=launch
                )
            if len(self._unchecked) >= MAX_UNCHECKED:
                self._check_finite()
            if self._learning_start >= 0 or self._is_scaled:
                with span("publish"):
                    if self._learning_start >= 0:
                        self._move_targets()
                    rollout.publish(self.snapshot())
        self._check_finite()
        return {
            **learner.metrics.means(),
            **learner.hyper.reported_values(),
            "num_updates": float(learner.num_updates),
            "replay_size": float(len(self._replay.buffer)),
        }

    def _num_updates_due(self) -> int:
        config, rollout = self._config, self._rollout
        collected = rollout.num_transitions
        if self._learning_start < 0:
            is_collecting = collected - self._buffer_start < config.first_update_at
            if is_collecting or len(self._replay.buffer) < config.batch_size:
                return 0
            # Count from the last transition that learning waited for.
            self._learning_start, self._num_done = collected - 1, 0
        num_due = int(config.update_to_data * (collected - self._learning_start)) - self._num_done
        limit = rollout.updates_allowed()
        if limit is not None and collected < config.total_timesteps:
            num_due = min(num_due, limit)
        return max(0, num_due)

    def _update_batches(self, num_updates: int) -> Generator[Any, Any, None]:
        """Yield the batches of updates, drawn in calls of up to `max_drawn`."""
        replay = self._replay
        # The buffer stores raw observations, scaled when they are drawn.
        scale = self._normalizer.obs_scale
        for first in range(0, num_updates, replay.max_drawn):
            count = min(num_updates - first, replay.max_drawn)
            batches, index = replay.draw(count, scale)
            # Indices on a device are already a copy.
            rows = (index.copy() if isinstance(index, np.ndarray) else index).reshape(count, -1)
            self._unchecked.extend(rows)
            for batch, row in zip(batches, rows, strict=True):
                td_error = yield batch
                if replay.by_priority:
                    self._update_priorities(row, td_error)
            self._num_done += count
            self._rollout.watch()

    def _run_launches(self, num_updates: int) -> None:
        """Run updates in launches of K."""
        assert self._launches is not None
        for count in self._launches.launch_sizes(num_updates):
            if self._launches.is_full:
                self._check_finite()
            index, td_error = self._launches.run(count, self._normalizer.obs_scale)
            if self._replay.by_priority:
                assert index is not None
                self._update_priorities(index, td_error)
            self._num_done += count
            self._rollout.watch()

    def _store(self, fragment: Fragment) -> None:
        try:
            self._replay.store(fragment)
        except ReplayError:
            self._check_finite()  # the priorities on a device are written a round later
            raise

    def _update_priorities(self, index: Array, td_error: Any) -> None:
        if td_error is None:
            raise ConfigError(
                f"`replay` '{self._config.replay}' draws by TD error, and the updates of "
                f"'{self._algorithm.name}' return none: return `metrics, td_error`, or choose "
                "another `replay`"
            )
        with span("update_priorities"):
            try:
                self._replay.update_priorities(index, td_error)
            except ReplayError:
                self._check_finite()  # report the update that caused a NaN error
                raise

    def _move_targets(self) -> None:
        algorithm = self._algorithm
        if algorithm.move_targets is None:
            return
        interval = getattr(self._config, algorithm.target_interval)
        moves = self._rollout.num_transitions // interval
        if moves > self.num_moves:
            # Several moves in one round become one call, since their source is the same.
            count, self.num_moves = moves - self.num_moves, moves
            algorithm.move_targets(self._learner.state, count, self._learner.hyper.tensors)

    def _check_finite(self) -> None:
        """Raise NonFiniteUpdate if an update since the last check was not finite."""
        learner = self._learner
        if self._launches is not None:
            self._unchecked.extend(self._launches.drain_log())
        bad = learner.metrics.first_non_finite()
        if bad is None and self._unchecked:
            bad_parts = learner.non_finite()
            bad = (learner.num_updates, bad_parts) if bad_parts else None
        if bad is not None:
            number, names = bad
            index = self._unchecked[number - 1 - (learner.num_updates - len(self._unchecked))]
            number -= self._first_update
            raise NonFiniteUpdate(names, number, self._replay.stored_rows(index))
        self._unchecked.clear()
        learner.metrics.accumulate()
