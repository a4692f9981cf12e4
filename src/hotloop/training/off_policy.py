"""Off-policy algorithms: the declaration, and its stages, which learn from a replay source.

A round collects `train_frequency` steps of every environment, then runs the updates that are due,
`update_to_data` for each transition. An iteration consists of the rounds between two reports.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from hotloop.base.signals import Interrupts, PendingInterrupt, pending_interrupt
from hotloop.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFailure,
    NonFiniteError,
    NonFiniteUpdate,
    ReplayError,
    shortened,
)
from hotloop.learner import Learner, Normalizer
from hotloop.ops.schedules import as_schedule
from hotloop.policies import ActingPolicy, Exploration, PolicySnapshot
from hotloop.rollouts import NUM_SLOTS, CollectionOptions, Rollout, Schedule
from hotloop.rollouts.offline import OfflineRollout
from hotloop.runs import REPLAY_FILE
from hotloop.timing import span
from hotloop.training.acting_policy import make_acting_policy
from hotloop.training.algorithm import Algorithm
from hotloop.training.checkpoint_state import (
    CheckpointState,
    CompletedIteration,
    ReplayCounters,
    checkpoint_state,
)
from hotloop.training.device_replay import Launches, ReplayOnDevice
from hotloop.training.learners import make_learner, make_normalizer, policy_network
from hotloop.training.options import ReplayOptions
from hotloop.training.recorded import RecordedReplay
from hotloop.training.replay import ReplaySource
from hotloop.training.replay_sources import make_source
from hotloop.training.resume import ResumedRun
from hotloop.training.run_updates import UpdateRequest
from hotloop.training.sources import Sources
from hotloop.training.update_declaration import Update
from hotloop.types import Array, Fragment

# The maximum number of updates between two checks for NaN and infinity.
MAX_UNCHECKED = 1_000


AnyReplayConfig = TypeVar("AnyReplayConfig", bound=ReplayOptions)


@dataclass(frozen=True, kw_only=True)
class OffPolicy(Algorithm[AnyReplayConfig]):
    """An algorithm that learns from a replay buffer.

    Attributes:
        updates: the updates in order of execution. The first returns |TD error|.
        exploration: `exploration(config)` returns how the policy explores; None: it does not.
        move_targets: `move_targets(state, count, hyper)` performs `count` updates of the target
            networks after a round, if transitions schedule them and not gradient steps; else None.
        target_interval: the name of the option for the transitions between two target updates.
        source: `source(config, envs, device, env_spec, memory_size)` returns the `ReplaySource` of
            the batches, such as a subclass of `Replay`. None: hotloop's replay buffer.
        is_offline: whether it learns from the data set of `replay_from` alone, without steps.
    """

    batch_options: ClassVar[tuple[str, ...]] = ("gamma",)
    updates: Sequence[Update] = ()
    exploration: Callable[[AnyReplayConfig], Exploration | None] = lambda config: None
    move_targets: Callable[..., None] | None = None
    target_interval: str = "target_interval"
    source: Callable[..., ReplaySource] | None = None
    is_offline: bool = False

    def __post_init__(self) -> None:
        if not self.updates or not all(isinstance(update, Update) for update in self.updates):
            raise ConfigError(
                f"the algorithm '{self.name}' must have an update, got "
                f"{list(self.updates) or 'none'}: add an `Update(function=…)` to `updates`"
            )
        for name in ("exploration", "source"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise ConfigError(
                    f"`{name}` of '{self.name}' must be a function that returns the {name}, got "
                    f"{shortened(repr(getattr(self, name)))}: put `lambda` before it"
                )
        super().__post_init__()

    def _referenced_options(self) -> tuple[str, ...]:
        counts = [name for update in self.updates for name in (update.every, update.times)]
        counts += [] if self.move_targets is None else [self.target_interval]
        return tuple(name for name in counts if name is not None)

    def nonblocking_schedule(self, config: AnyReplayConfig) -> Schedule:
        return "async"

    def collection_options(self, config: AnyReplayConfig) -> CollectionOptions:
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

    def make_stages(self, sources: Sources[AnyReplayConfig]) -> ReplayStages:
        config, envs, device = sources.config, sources.envs, sources.device
        if config.overlap:
            _require_gpu(device)
        with span("make_learner"):
            nets = self.networks(config, envs, device)
            normalizer = make_normalizer(config, nets, envs.num_envs, gamma=1.0)
            learner = make_learner(
                self,
                config,
                nets,
                [update.rule(nets, config) for update in self.updates],
                device=device,
                stream=2,
                num_batches=config.planned_updates,
                batch_size=config.batch_size * config.sequence_steps,
                overlap=config.overlap,
            )
            if sources.initial is not None:
                sources.initial.load(policy_network(nets).network, learner, normalizer)
            if "gamma" in learner.hyper.tensors._fields:
                raise ConfigError(
                    f"`gamma` is in the Hyper of '{self.name}', and `batch.discount` already holds "
                    "it: leave `gamma` out, and compute targets as `reward + discount * value`"
                )
        with span("make_replay"):
            replay = make_source(
                sources,
                policy_network(nets).network.memory_size,
                is_scaled=normalizer.obs_scale is not None,
                is_offline=self.is_offline,
                custom=self.source,
                name=self.name,
            )
            sources.envs_to_close.append(replay)
            is_normalizing = config.normalize_obs and sources.initial is None
            if isinstance(replay, RecordedReplay) and is_normalizing:
                normalizer.add_obs(replay.obs())
            launches: Launches | None = None
            if isinstance(replay, ReplayOnDevice):
                launches = Launches(learner, replay, config.updates_per_launch)
        policy = make_acting_policy(
            config,
            learner,
            policy_network(nets),
            getattr(learner.state, self.acting),
            obs_scale=normalizer.obs_scale,
            exploration=self._make_exploration(config),
        )
        if self.is_offline:
            rollout: Rollout = OfflineRollout(policy, config.train_frequency)
        else:
            rollout = envs.rollout(policy, self.collection_options(config))
        return ReplayStages(self, config, learner, policy, rollout, replay, normalizer, launches)

    def _make_exploration(self, config: AnyReplayConfig) -> Exploration | None:
        exploration = self.exploration(config)
        if exploration is None or isinstance(exploration, Exploration):
            return exploration
        raise ConfigError(
            f"`exploration` of '{self.name}' must return an Exploration such as "
            f"GaussianNoise(std=0.1), or None, got {shortened(repr(exploration))}"
        )


def _require_gpu(device: torch.device) -> None:
    if device.type == "cpu":
        raise ConfigError(
            "`overlap` needs a GPU for the updates, and `device` 'auto' found none: leave out "
            "`overlap`"
        )


class ReplayStages:
    """The stages of a run that stores transitions, and learns from batches of all of them.

    Args:
        replay: the source of the batches.
        launches: updates that draw their batches on the device, or None.
    """

    store_span = "store"

    def __init__(
        self,
        algorithm: OffPolicy,
        config: ReplayOptions,
        learner: Learner,
        policy: ActingPolicy,
        rollout: Rollout,
        replay: ReplaySource,
        normalizer: Normalizer,
        launches: Launches | None,
    ) -> None:
        self.learner, self.policy, self.rollout = learner, policy, rollout
        # The iteration ends after the current round.
        self.interrupts: Interrupts = pending_interrupt
        self._algorithm, self._config = algorithm, config
        self._replay, self._normalizer, self._launches = replay, normalizer, launches
        self._is_scaled = normalizer.obs_scale is not None
        self._gamma = as_schedule(config.gamma)
        self._counters = ReplayCounters()
        self._num_moves = 0  # moves of the target networks, including skipped ones
        self._iteration = 0
        self._metrics: dict[str, float] = {}
        # Indices of the transitions of each update since the last check for NaN.
        self._unchecked: list[Any] = []
        self._first_update = 0  # number of updates before this iteration

    def restore(self, resumed: ResumedRun) -> tuple[list[int], list[str]]:
        """See `Stages`.

        Raises:
            ConfigError: the run ends before learning could begin again.
            CheckpointError: the buffer's file is older than the checkpoint.
        """
        position, arrays = resumed.position, resumed.arrays
        self._iteration, self._num_moves = position.iteration, position.num_moves
        self.learner.load(arrays, position.random, position.num_updates, position.executed)
        if self._is_scaled:
            self._normalizer.load(arrays)
        self.rollout.publish(self._snapshot(newest=True))
        restarted_envs = self.rollout.restore(arrays, position.rollout)
        assert resumed.checkpoint.path is not None
        path = resumed.checkpoint.path / REPLAY_FILE
        note = self._restore_replay(resumed, path) if path.is_file() else self._refill(position)
        for env in restarted_envs:
            self._replay.cut(env)
        return restarted_envs, [note] if note else []

    def _restore_replay(self, resumed: ResumedRun, path: Path) -> str:
        """Restore the replay source from a file, and return a note for the user, or ''."""
        stored = resumed.position.replay
        assert stored is not None
        with span("restore_replay"):
            self._replay.restore(path)
        self._replay.load(resumed.arrays)
        self._counters = replace(stored)
        num_added, num_samples = self._replay.counters()
        ahead = num_added - stored.added
        if ahead < 0:
            raise CheckpointError(
                f"{path} has {-ahead} transitions fewer than its checkpoint: use another "
                "checkpoint, or remove the file to start with an empty buffer"
            )
        if ahead == 0 and num_samples == stored.sampled:
            return ""
        self._replay.cut()  # the next steps do not continue the last stored ones
        return f"the replay buffer holds {ahead} transitions from after the checkpoint"

    def _refill(self, position: CheckpointState) -> str:
        """Wait for as many transitions as a new run, and return a note for the user."""
        config, timesteps = self._config, position.timesteps
        self._replay.start_empty(position.num_updates)
        if len(self._replay) >= config.batch_size and position.replay is not None:
            self._counters = replace(position.replay)  # the source already has its data
            return ""
        self._counters.empty_at = timesteps
        num_needed = config.first_update_at
        if timesteps + num_needed >= config.total_timesteps:
            raise ConfigError(
                "this checkpoint has no replay buffer, and without it learning waits for "
                f"{num_needed:,} transitions, but only {config.total_timesteps - timesteps:,} are "
                "left: raise `total_timesteps`"
            )
        return (
            "this checkpoint has no replay buffer, so it starts empty (`save_replay` saves it "
            f"with the last checkpoint): learning waits for {num_needed:,} transitions"
        )

    def rounds(self, interrupt: PendingInterrupt) -> Iterator[None]:
        """See `Stages`. An iteration ends with a report, the run or a signal."""
        config, rollout, learner = self._config, self.rollout, self.learner
        self._iteration += 1
        end = min(rollout.num_transitions + config.report_interval, config.total_timesteps)
        learner.metrics.clear()
        self._first_update = learner.num_updates
        while rollout.num_transitions < end and not interrupt.has_arrived:
            yield
        self._check_finite()
        self._metrics = {
            **learner.metrics.means(),
            **learner.hyper.reported_values(),
            **({} if self._gamma.is_constant else {"gamma": self._replay.gamma}),
            "num_updates": float(learner.num_updates),
            "replay_size": float(len(self._replay)),
        }

    def collect(self) -> Sequence[Fragment]:
        """See `Stages`."""
        try:
            return self.rollout.collect()
        except (EnvironmentFailure, NonFiniteError):
            self._check_finite()  # an update may have caused the error
            raise

    def store(self, fragments: Sequence[Fragment]) -> None:
        """See `Stages`."""
        for fragment in fragments:
            try:
                self._replay.store(fragment)
            except ReplayError:
                self._check_finite()  # the priorities on a device are written a round later
                raise
            self._normalizer.update(fragment)

    def update_requests(self) -> Iterator[UpdateRequest]:
        """See `Stages`."""
        learner = self.learner
        progress = min(1.0, self.rollout.num_transitions / self._config.total_timesteps)
        learner.hyper.set(progress)
        self._replay.gamma = self._gamma(progress)
        if num_due := self._num_updates_due():
            launch = None if self._launches is None else partial(self._run_launches, num_due)
            yield UpdateRequest(learner, self._batches(num_due), spans=("update",), launch=launch)
        if len(self._unchecked) >= MAX_UNCHECKED:
            self._check_finite()

    def publish(self) -> None:
        """See `Stages`. Update the target networks, and act with the newest policy."""
        has_begun = self._counters.began >= 0
        if has_begun:
            self._move_targets()
        if has_begun or self._is_scaled:
            self.rollout.publish(self._snapshot())

    def complete(self) -> CompletedIteration:
        """See `Stages`."""
        learner, replay, state = self.learner, self._replay, self.rollout.state()
        newest = self._snapshot(newest=True)
        if self._config.overlap:  # a resumed run does the same
            self.rollout.publish(newest)
        snapshot = learner.copy_snapshot(newest)
        normalizer = (self._normalizer.array_snapshot(),) if self._is_scaled else ()
        parts = (
            learner.state_snapshot(),
            *normalizer,
            replay.to_arrays().copy,
            state.to_arrays,
        )
        added, sampled = replay.counters()
        counters = replace(self._counters, added=added, sampled=sampled)
        return CompletedIteration(
            position=checkpoint_state(
                learner, state, self._iteration, num_moves=self._num_moves, replay=counters
            ),
            snapshot=snapshot,
            parts=parts,
            metrics=self._metrics,
            files={REPLAY_FILE: replay.save} if self._config.save_replay else {},
        )

    def _snapshot(self, *, newest: bool = False) -> PolicySnapshot:
        """Return the current policy, in arrays that the next call overwrites."""
        # With `overlap` it is the policy of the previous call, unless `newest` is True. If the
        # acting policy reads the learner's parameters, the snapshot repeats those of the last
        # report.
        scale, version = self._normalizer.obs_scale, self.learner.num_updates
        if not newest and not self.policy.needs_parameters:
            return replace(self.policy.snapshot, version=version, obs_scale=scale)
        return self.learner.publish(version, scale, must_be_current=newest)

    def _num_updates_due(self) -> int:
        config, counters, collected = self._config, self._counters, self.rollout.num_transitions
        if counters.began < 0:
            is_collecting = collected - counters.empty_at < config.first_update_at
            if is_collecting or len(self._replay) < config.batch_size:
                return 0
            # Count from the last transition for which learning waited.
            counters.began, counters.done = collected - 1, 0
        num_due = int(config.update_to_data * (collected - counters.began)) - counters.done
        limit = self.rollout.updates_allowed()
        if limit is not None and collected < config.total_timesteps:
            num_due = min(num_due, limit)
        return max(0, num_due)

    def _batches(self, num_updates: int) -> Generator[Any, Any, None]:
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
            self._counters.done += count
            self.rollout.watch()

    def _run_launches(self, num_updates: int) -> None:
        """Run updates in launches of K."""
        assert self._launches is not None
        for count in self._launches.launch_sizes(num_updates):
            if self._launches.is_log_full:
                self._check_finite()
            index, td_error = self._launches.run(count, self._normalizer.obs_scale)
            if self._replay.by_priority:
                assert index is not None
                self._update_priorities(index, td_error)
            self._counters.done += count
            self.rollout.watch()

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
        interval = self._config.value_of(algorithm.target_interval)
        moves = self.rollout.num_transitions // interval
        if moves > self._num_moves:
            # Several moves in one round become one call, since their source is the same.
            count, self._num_moves = moves - self._num_moves, moves
            algorithm.move_targets(self.learner.state, count, self.learner.hyper.tensors)

    def _check_finite(self) -> None:
        """Raise NonFiniteUpdate if an update since the last check was not finite."""
        learner = self.learner
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
            rows, stored = self._replay.stored_rows(index), {}
            if not rows:
                added = self._replay.counters()[0]
                newest = np.arange(max(0, added - self._config.batch_size), added)
                stored = self._replay.stored_rows(newest)
            raise NonFiniteUpdate(names, number, rows, stored)
        self._unchecked.clear()
        learner.metrics.accumulate()
