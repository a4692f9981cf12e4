"""What SAC, TD3 and DQN share: collecting into a replay buffer, and learning from batches of it.

An algorithm's file has its losses, its update and its learner; here is the loop around them. A
round collects `train_frequency` steps of every environment and then makes the updates that are due,
`update_to_data` for each transition; an iteration is the rounds between two reports.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from torch import Tensor

from hotloop.algorithms.batches import Batch, Batches
from hotloop.algorithms.session import Collecting, Session, Specs
from hotloop.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFailure,
    NonFiniteError,
    NonFiniteUpdate,
    ReplayError,
)
from hotloop.learner import Compile, Execution, Metrics
from hotloop.ops.products import HAS_FAST_BFLOAT16
from hotloop.policies import ActingPolicy, Actor, Exploration, PolicySnapshot
from hotloop.replay import Prioritized, Proportional, RankBased, ReplayBuffer, Sampler, Uniform
from hotloop.rollouts import NUM_SLOTS, CollectionOptions, Environments, Rollout, RolloutState
from hotloop.runs import (
    REPLAY_FILE,
    Checkpoint,
    Result,
    RunConfig,
    check_fields,
    pending_interrupt,
)
from hotloop.timing import span
from hotloop.training.worker_weights import WorkerWeights
from hotloop.types import Array, Fragment

# Updates whose batches are drawn in one call: it saves a few µs each, and more would leave the
# cache before they are used.
MAX_DRAWN = 8
# Updates whose numbers are kept until they are looked through, at the latest.
MAX_KEPT = 1_000

_BY_PRIORITY = ("prioritized", "rank")
_RETURNS = ("episode_return", "return_so_far", "return_to_go")


def available_threads() -> int:
    """Cores for products of 256×256, which two cores do in half the time, eight hardly sooner."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(count or 1, 4)


def check_precision(precision: str) -> None:
    """Refuse what is no precision.

    Raises:
        ConfigError: it is neither float32 nor bfloat16.
    """
    if precision not in ("float32", "bfloat16"):
        raise ConfigError(f"`precision` must be 'float32' or 'bfloat16', got {precision!r}")


def warn_of_slow(precision: str) -> None:
    """Say that a precision is slow on this CPU."""
    if precision == "bfloat16" and not HAS_FAST_BFLOAT16:
        warnings.warn(
            "this CPU has no instructions for bfloat16 (AVX512-BF16 or AMX): rounded numbers are "
            "multiplied in float32 instead, which gives the same but for the order of sums, and is "
            "slower than `precision` 'float32'",
            RuntimeWarning,
            stacklevel=2,
        )


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(RunConfig):
    """The options that all algorithms with a replay buffer have."""

    num_envs: int = 1
    """N, environments side by side."""
    batch_size: int = 256
    """B, transitions in one update."""
    buffer_size: int = 1_000_000
    """Transitions that are kept; then each new one replaces the oldest."""
    learning_starts: int = 5_000
    """Transitions to collect before the first update; never fewer than a batch."""
    train_frequency: int = 1
    """Steps of each environment between two rounds of updates."""
    update_to_data: float = 1.0
    """Updates for each transition collected since learning began."""
    gamma: float = 0.99
    """Discount γ."""
    n_step: int = 1
    """n: rewards of so many steps before the value of what follows."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of all networks."""
    activation: Literal["tanh", "relu"] = "relu"
    """After each hidden layer of the policy; critics have relu."""
    replay: Literal["uniform", "prioritized", "proportional", "rank"] = "uniform"
    """How batches are drawn: uniformly; by TD error (Schaul et al. 2016), its value or its rank; or
    in proportion to the return that a transition's episode earned."""
    replay_alpha: float | None = None
    """prioritized, rank: how much priorities count; None: 0.6, 0.7."""
    replay_beta: float | None = None
    """prioritized, rank: β of the importance weights at first, 1 in the end; None: 0.4, 0.5."""
    replay_weight_from: Literal["episode_return", "return_so_far", "return_to_go"] | None = None
    """proportional: which return; None: the episode's whole one."""
    replay_shift: float | None = None
    """proportional: added to all returns; None: as much as makes the least one 0."""
    replay_replacement: bool | None = None
    """uniform, proportional: may one batch hold a transition twice; None: yes, no."""
    save_replay: bool = False
    """Keep the buffer with the last checkpoint: a resumed run then ends with the same weights."""
    schedule: Literal["barrier", "async"] = "barrier"
    """barrier: every environment steps, then the updates that are due. async, with workers: updates
    as transitions come in, first ready first."""
    fragment_steps: int = 64
    """async: steps that a worker may be ahead of what was learned from, two times over."""
    max_policy_age: int = 1_000
    """async: updates between the policy that acted and the newest; learning waits rather than let a
    transition become older."""
    report_interval: int = 1_000
    """Transitions between two lines of metrics, in whole rounds."""
    compile: Compile = "auto"
    """Run the updates as compiled graphs: some 20 s at first, 5 s when cached."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(
            self,
            counts=(
                *("batch_size", "buffer_size", "train_frequency", "n_step", "report_interval"),
                *("fragment_steps", "max_policy_age"),
            ),
            positive=("update_to_data",),
            not_negative=("learning_starts", "replay_alpha", "replay_beta"),
            fractions=("gamma",),
        )
        if not isinstance(self.learning_starts, int) or isinstance(self.learning_starts, bool):
            raise ConfigError(f"`learning_starts` must be an integer, got {self.learning_starts}")
        if not self.hidden_sizes:
            raise ConfigError("`hidden_sizes` must name at least one hidden layer, got none")
        if self.learning_starts >= self.total_timesteps:
            raise ConfigError(
                "`learning_starts` must be less than `total_timesteps`, or nothing is learned, "
                f"got {self.learning_starts:,} of {self.total_timesteps:,}: lower the one or raise "
                "the other"
            )
        if self.buffer_size < self.batch_size:
            raise ConfigError(
                f"`buffer_size` must hold a batch, `batch_size` = {self.batch_size}, got "
                f"{self.buffer_size}: raise it"
            )
        if self.update_to_data > 10_000:
            raise ConfigError(
                f"`update_to_data` must be at most 10,000, got {self.update_to_data}: 1 is usual, "
                "20 is much"
            )
        if self.schedule not in ("barrier", "async"):
            raise ConfigError(
                f"`schedule` must be 'barrier' or 'async', got {self.schedule!r}: 'variable' is "
                "for algorithms that learn from what the policy does now"
            )
        if self.schedule == "async" and not self.has_workers:
            raise ConfigError("`schedule` 'async' needs workers of their own: set `workers` too")
        if self.schedule == "async" and self._most_ahead < NUM_SLOTS:
            raise ConfigError(
                f"`max_policy_age` = {self.max_policy_age} is too few for {self.num_envs} "
                f"environments and {self.update_to_data:g} updates for each step: learning "
                f"from {NUM_SLOTS} steps of each takes more; raise it, or use fewer environments"
            )
        kinds_of_replay = ("uniform", "proportional", *_BY_PRIORITY)
        for setting, known in (("replay", kinds_of_replay), ("replay_weight_from", _RETURNS)):
            if getattr(self, setting) not in (*known, None):
                raise ConfigError(
                    f"`{setting}` must be one of {', '.join(known)}, got {getattr(self, setting)!r}"
                )
        for setting, kinds in (
            ("replay_alpha", _BY_PRIORITY),
            ("replay_beta", _BY_PRIORITY),
            ("replay_weight_from", ("proportional",)),
            ("replay_shift", ("proportional",)),
            ("replay_replacement", ("uniform", "proportional")),
        ):
            if getattr(self, setting) is not None and self.replay not in kinds:
                raise ConfigError(
                    f"`{setting}` belongs to `replay` {' or '.join(kinds)}, got {self.replay}: "
                    "leave one of them out"
                )
        self.sampler()

    @property
    def first_learned(self) -> int:
        """The transition that learning waits for: there must be a batch, too."""
        return max(self.learning_starts, self.batch_size)

    @property
    def planned_updates(self) -> int:
        """Updates in the whole run, about: what β and the choice to compile go by."""
        return max(1, int(self.update_to_data * (self.total_timesteps - self.first_learned)))

    def sampler(self) -> Sampler:
        """How batches are drawn."""
        given = {
            name: getattr(self, f"replay_{name}")
            for name in ("alpha", "beta", "shift", "replacement")
            if getattr(self, f"replay_{name}") is not None
        }
        if self.replay == "uniform":
            return Uniform(**given)
        if self.replay == "proportional":
            return Proportional(**{"replacement": False, **given})
        kind = Prioritized if self.replay == "prioritized" else RankBased
        return kind(beta_samples=self.planned_updates, **given)

    def make_replay(self, envs: Environments) -> ReplayBuffer:
        """An empty buffer for an environment's transitions."""
        weight_from = None
        if self.replay == "proportional":
            weight_from = self.replay_weight_from or "episode_return"
        return ReplayBuffer.for_env(
            envs,
            self.buffer_size,
            sampler=self.sampler(),
            weight_from=weight_from,
            n_step=self.n_step,
            gamma=self.gamma,
            seed=self.seed,
        )

    def plan(self) -> CollectionOptions:
        """How fragments are collected."""
        num_steps = self.train_frequency
        if self.schedule == "async":
            # What both slots of all workers hold when learning begins must not become too old.
            num_steps = max(1, min(self.fragment_steps, self._most_ahead // NUM_SLOTS))
        return CollectionOptions(
            num_steps=num_steps,
            seed=self.seed,
            schedule=self.schedule,
            minimum=self.train_frequency * self.num_envs,
            max_policy_age=self.max_policy_age,
        )

    @property
    def _most_ahead(self) -> int:
        """async: steps that all environments may be ahead, lest learning from them take so many
        updates that the last ones are too old."""
        return int(self.max_policy_age / (self.num_envs * self.update_to_data))

    def random_steps(self) -> int:
        """Steps of each environment before learning begins."""
        return -(-self.first_learned // self.num_envs)


AnyOffPolicyConfig = TypeVar("AnyOffPolicyConfig", bound=OffPolicyConfig)


class Learner(Protocol):
    """The owner of all that learning changes.

    Attributes:
        acting: the actor's parameters as acting reads them: memory that changes in place.
        executions: how its updates run.
        metrics: what they said.
        num_updates: how many there were.
    """

    acting: dict[str, Array]
    executions: list[Execution]
    metrics: Metrics
    num_updates: int

    def update(self, batch: Batch) -> Tensor:
        """Learn from a batch; gives |TD error|, float32, (B,)."""
        ...

    def end_round(self, timesteps: int) -> None:
        """After a round's updates: bring `acting` up to date, and what follows transitions."""
        ...

    def is_finite(self) -> bool:
        """Whether all parameters are."""
        ...

    def to_arrays(self) -> dict[str, Array]:
        """Copies of everything but `acting`, for a checkpoint."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Counters and random states, for a checkpoint."""
        ...

    def load(self, checkpoint: Checkpoint, arrays: Mapping[str, Array]) -> None:
        """Go on from a checkpoint and its arrays."""
        ...


def collecting(
    config: AnyOffPolicyConfig, make_actor: Callable[[AnyOffPolicyConfig, Specs], Actor]
) -> Collecting:
    """How these algorithms collect."""
    return Collecting(
        plan=config.plan(),
        make_network=lambda envs: make_actor(config, envs),
        uneven="async",
    )


def run(
    config: OffPolicyConfig,
    session: Session,
    *,
    actor: Actor,
    learner: Learner,
    exploration: Exploration,
) -> Result:
    """Train until the steps are done or the run is told to stop.

    Args:
        config: the run's.
        session: the run's surroundings.
        actor: what acts.
        learner: of its parameters.
        exploration: how it departs from what it thinks best while it collects.

    Raises:
        EnvironmentFailure, NonFiniteUpdate, NonFiniteError, CheckpointError: see `train`.
    """
    with span("make_replay"):
        buffer = config.make_replay(session.envs)
        shares = None
        if config.schedule == "async":
            shares = WorkerWeights(config.buffer_size, config.num_groups)
        batches = Batches(buffer, config.batch_size, config.gamma, shares)
    policy = ActingPolicy(actor, PolicySnapshot(0, learner.acting), exploration=exploration)
    rollout = session.rollout(policy, config.plan())
    session.check_network(actor)
    described = actor.to_json()
    loop = _Loop(config, learner, rollout, buffer, batches, shares)
    iteration, restarted_envs, notes = 0, [], []
    if session.resumed_from is not None:
        resumed, arrays = session.resumed_from, session.resumed_from.arrays()
        iteration = resumed.state["iteration"]
        learner.load(resumed, arrays)
        loop.publish()
        restarted_envs = rollout.restore(arrays, resumed.state["rollout"])
        notes = loop.restore_replay(resumed, arrays)
        for env in restarted_envs:
            buffer.cut(env)

    execution = learner.executions[0].choice.reason
    wants_to_stop = session.begin(execution=execution, restarted_envs=restarted_envs, notes=notes)
    while not wants_to_stop and rollout.num_transitions < config.total_timesteps:
        iteration += 1
        # Ctrl-C ends the iteration after a round, where all parts agree on how far they have come.
        with pending_interrupt() as interrupt:
            loop.run_iteration(interrupt)
            metrics = loop.metrics()
            with span("publish"):
                state = rollout.state()
                params = {name: array.copy() for name, array in learner.acting.items()}
                checkpoint = Checkpoint(
                    network=described,
                    snapshot=PolicySnapshot(learner.num_updates, params),
                    arrays=partial(_arrays, learner.to_arrays(), loop.to_arrays(), state),
                    state={
                        "timesteps": state.num_transitions,
                        "iteration": iteration,
                        "learner": learner.to_json(),
                        "replay": loop.to_json(),
                        "rollout": state.to_json(),
                    },
                    files={REPLAY_FILE: buffer.save} if config.save_replay else {},
                )
            wants_to_stop = session.end_iteration(checkpoint, rollout.pop_episodes(), metrics)
    return session.result(policy, learner.executions, is_stopped=wants_to_stop)


class _Loop:
    """The rounds, and the count of what is due."""

    def __init__(
        self,
        config: OffPolicyConfig,
        learner: Learner,
        rollout: Rollout,
        buffer: ReplayBuffer,
        batches: Batches,
        shares: WorkerWeights | None,
    ) -> None:
        self._config = config
        self._learner = learner
        self._rollout = rollout
        self._buffer = buffer
        self._batches = batches
        self._shares = shares
        self._num_envs = buffer.settings["num_envs"]
        self._by_priority = config.replay in _BY_PRIORITY
        # Priorities change with each update, and what is drawn without replacement must differ
        # within one batch only.
        sampler = config.sampler()
        is_free = isinstance(sampler, (Uniform, Proportional)) and sampler.replacement
        self._max_drawn = MAX_DRAWN if is_free else 1
        self._empty_at = 0  # transitions when the buffer was empty
        # Transitions when learning began; −1: it has not yet.
        self._began = -1
        self._done = 0  # updates since then
        # The numbers of what the updates learned from that were not looked through yet.
        self._indices: list[Array] = []
        self._iteration_began = 0  # updates by then

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "began": self._began,
            "done": self._done,
            "empty_at": self._empty_at,
            "added": self._buffer.num_added,
            "sampled": self._buffer.num_samples,
        }

    def to_arrays(self) -> dict[str, Array]:
        """For a checkpoint that the buffer is kept with."""
        if self._shares is None or not self._config.save_replay:
            return {}
        return self._shares.to_arrays()

    def restore_replay(self, checkpoint: Checkpoint, arrays: Mapping[str, Array]) -> list[str]:
        """Go on from a checkpoint; gives what the user should know of it, in sentences."""
        state, buffer = checkpoint.state["replay"], self._buffer
        path = checkpoint.path / REPLAY_FILE if checkpoint.path is not None else None
        if path is None or not path.is_file():
            # Learning waits until as much was collected as it waited for at first.
            self._began, self._empty_at = -1, checkpoint.state["timesteps"]
            buffer.num_samples = checkpoint.state["learner"]["num_updates"]  # β goes on
            wait = self._config.first_learned
            if self._empty_at + wait >= self._config.total_timesteps:
                raise ConfigError(
                    "the replay buffer was not kept with this checkpoint, and without it learning "
                    f"waits for {wait:,} transitions, but only "
                    f"{self._config.total_timesteps - self._empty_at:,} are to come: raise "
                    "`total_timesteps`"
                )
            return [
                "the replay buffer was not kept with this checkpoint and begins empty "
                "(`save_replay` keeps it with the last one): learning waits for "
                f"{wait:,} transitions"
            ]
        with span("restore_replay"):
            buffer.restore(path)
        if self._shares is not None and "shares.workers" in arrays:
            self._shares.load(arrays["shares.workers"])
        self._began, self._done = state["began"], state["done"]
        self._empty_at = state["empty_at"]
        ahead = buffer.num_added - state["added"]
        is_ahead = ahead > 0 or buffer.num_samples != state["sampled"]
        if ahead < 0:
            raise CheckpointError(
                f"{path} holds {-ahead} transitions fewer than its checkpoint was made with: take "
                "another checkpoint, or remove the file to begin with an empty buffer"
            )
        if is_ahead:
            buffer.cut()  # the steps that come now follow others than the last ones that it holds
            return [f"the replay buffer holds {ahead} transitions from after the checkpoint"]
        return []

    def run_iteration(self, interrupt: Any) -> None:
        """Rounds until a report is due, the run is done, or a signal has come."""
        config, rollout = self._config, self._rollout
        end = min(rollout.num_transitions + config.report_interval, config.total_timesteps)
        self._learner.metrics.clear()
        self._iteration_began = self._learner.num_updates
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
            due = self._num_due()
            allowed = rollout.updates_allowed()
            if allowed is not None and rollout.num_transitions < config.total_timesteps:
                due = min(due, allowed)
            while due > 0:
                count = min(due, self._max_drawn)
                self._learn(count)
                due -= count
                self._done += count
            if len(self._indices) >= MAX_KEPT:
                self._check_finite()
            if self._began >= 0:
                with span("publish"):
                    self._learner.end_round(rollout.num_transitions)
                    self.publish()

    def publish(self) -> None:
        """Act with the parameters as they are now."""
        learner = self._learner
        self._rollout.publish(PolicySnapshot(learner.num_updates, learner.acting))

    def metrics(self) -> dict[str, float]:
        """What the iteration's updates said.

        Raises:
            NonFiniteUpdate: one of them was not finite.
        """
        self._check_finite()
        return {
            **self._learner.metrics.means(),
            "num_updates": float(self._learner.num_updates),
            "replay_size": float(len(self._buffer)),
        }

    def _check_finite(self) -> None:
        """Look through the updates since the last look.

        Raises:
            NonFiniteUpdate: one was not finite.
        """
        learner = self._learner
        bad = learner.metrics.first_bad()
        if bad is None and self._indices and not learner.is_finite():
            bad = learner.num_updates, ["the parameters"]
        if bad is not None:
            number, names = bad
            index = self._indices[number - 1 - (learner.num_updates - len(self._indices))]
            kept = index[index >= self._buffer.num_added - len(self._buffer)]
            batch = self._buffer.get(kept) if len(kept) else {}
            number -= self._iteration_began
            raise NonFiniteUpdate(names, number, {name: batch[name] for name in batch})
        self._indices.clear()
        learner.metrics.fold()

    def _store(self, fragment: Fragment) -> None:
        flat = {
            name: array.reshape(-1, *array.shape[2:])
            for name, array in (
                ("obs", fragment.obs),
                ("action", fragment.action),
                ("reward", fragment.reward),
                ("next_obs", fragment.next_obs),
                ("terminated", fragment.terminated),
                ("truncated", fragment.truncated),
            )
        }
        first = fragment.first_env
        for env in fragment.restarted_envs:
            self._buffer.cut(first + env)
        env = None
        if fragment.num_envs != self._num_envs:
            env = np.tile(np.arange(first, first + fragment.num_envs), fragment.num_steps)
        valid = fragment.valid.reshape(-1)
        before = self._buffer.num_added
        self._buffer.extend(**flat, env=env, valid=None if valid.all() else valid)
        if self._shares is not None:
            worker = first // fragment.num_envs
            self._shares.add(worker, before, self._buffer.num_added - before)

    def _num_due(self) -> int:
        """Updates to make now."""
        config, collected = self._config, self._rollout.num_transitions
        if self._began < 0:
            collecting = collected - self._empty_at < config.first_learned
            if collecting or len(self._buffer) < config.batch_size:
                return 0
            self._began = collected - 1  # the transition that learning waited for is the first
            self._done = 0
        return int(config.update_to_data * (collected - self._began)) - self._done

    def _learn(self, count: int) -> None:
        batches, index = self._batches.draw(count)
        learner = self._learner
        self._indices.extend(index.copy().reshape(count, -1))
        for batch in batches:
            with span("update"):
                td_error = learner.update(batch)
            if self._by_priority:
                with span("update_priorities"):
                    try:
                        self._buffer.update_weights(index, td_error.numpy())
                    except ReplayError:
                        self._check_finite()  # an error that is NaN has a cause
                        raise


def _arrays(
    learner: Mapping[str, Array], loop: Mapping[str, Array], rollout: RolloutState
) -> dict[str, Array]:
    """What a checkpoint holds; only put together if it is saved."""
    return {**learner, **loop, **rollout.to_arrays()}
