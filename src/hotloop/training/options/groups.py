"""Option groups of which an algorithm's Config consists.

A Config inherits from the groups that it needs, and adds its own options:

    @dataclass(frozen=True, kw_only=True)
    class Config(OnPolicyOptions, NetworkOptions, RunOptions):
        learning_rate: ScheduledPositive = linear(1e-3, 0.0)

Groups are mixins, not attributes, so that options stay flat: `Config(eval_interval=1000)`,
`--eval-interval 1000` and one JSON object, never `config.eval.interval`. If two groups share an
option, the default of the first group counts, so RunOptions comes last. Help shows the groups from
the last to the first.

A function that reads options takes the group that has them. An option that only some algorithms
have is read through a property of a group that all have, such as `RunOptions.is_recurrent`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from hotloop.base.importing import name_of
from hotloop.base.memory import require_memory
from hotloop.errors import ConfigError
from hotloop.ops.schedules import as_schedule
from hotloop.policies.spec import encoder_name, is_built_in, is_encoder
from hotloop.rollouts import NUM_SLOTS
from hotloop.training.options.base import SET, Options, RequirementTable, default_of
from hotloop.training.options.constraints import (
    DATA,
    MAY_CHANGE,
    Count,
    DataIf,
    DatasetName,
    Fraction,
    Hint,
    Importable,
    InfoNames,
    Natural,
    NotNegative,
    Positive,
    ScheduledFraction,
    Sizes,
    Trackers,
)
from hotloop.training.options.evaluation import EvalOptions
from hotloop.training.options.policies import PolicyOptions
from hotloop.training.options.self_play import SelfPlayOptions
from hotloop.training.options.stopping import StopOptions
from hotloop.training.options.task import TaskOptions
from hotloop.training.options.workers import WORKERS, WorkerOptions

if TYPE_CHECKING:
    from hotloop.replay import Sampler

_BY_PRIORITY = ("prioritized", "rank")
# Lower bounds on memory, for any environment and network.
_PARAMETER_BYTES = 16  # with its gradient and Adam's two moments
_HOST_PARAMETER_BYTES = 8  # for networks on a GPU: the initial value and the copy sent there
_ORDER_BYTES = 8  # a transition's index in the order of a pass


@dataclass(frozen=True, kw_only=True)
class SaveOptions(Options):
    """Checkpoints, metrics and the run directory."""

    checkpoint_interval: Annotated[Count, MAY_CHANGE] = 50_000
    """Transitions between checkpoints. Lower it to lose less if a run is killed."""
    keep_checkpoints: Annotated[Natural, MAY_CHANGE] = 3
    """Number of checkpoints to keep besides the last and the best."""
    track: Annotated[Trackers, MAY_CHANGE] = ()
    """Trackers that receive the metrics too: tensorboard, wandb, mlflow, trackio."""
    log_info: Annotated[InfoNames, MAY_CHANGE] = ()
    """Keys of the environment's `info` to log, at the last step of each episode: is_success,…;
    numbers in info["episode"] are always logged."""
    runs_dir: Annotated[str, MAY_CHANGE, DATA] = "runs"  # a resumed run stays where it is
    """Parent directory of run directories."""
    run_dir: Annotated[str | None, MAY_CHANGE, DATA] = None
    """This run's directory, which must not exist. None: <runs-dir>/<env>__<algorithm>__…"""

    def check(self) -> None:
        """Check that the directory has a name."""
        if self.run_dir == "":
            raise ConfigError("`run_dir` must be the path of a new directory, got ''")


@dataclass(frozen=True, kw_only=True)
class RunOptions(
    StopOptions, SaveOptions, EvalOptions, SelfPlayOptions, WorkerOptions, TaskOptions
):
    """The option groups of every run."""

    @property
    def is_recurrent(self) -> bool:
        """Whether the networks have a recurrent layer."""
        return False

    @property
    def has_policies(self) -> bool:
        """Whether several policies are trained at once."""
        return False


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(Options):
    """The layers of the networks, or a custom network."""

    hidden_sizes: Sizes = (64, 64)
    """Widths of the hidden layers. Raise them for complex tasks, lower them for faster updates."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation after each hidden layer."""
    network: Annotated[Importable, DataIf(is_encoder)] | None = None
    """perceptron, or an image encoder before the hidden layers: nature, impala, vizdoom. None:
    chosen by the observations. Or a custom network, `module:Class` or `module:function`."""
    layer_norm: bool = False
    """Normalize the output of an image encoder."""
    init_from: str | None = None
    """Start with the networks, the optimizer's state and the observations' statistics of another
    run, or of a checkpoint in it, to fine-tune it. The algorithm and spaces must be the same."""
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    """Precision of matrix products and convolutions. tf32: faster on GPUs from Ampere on, with 10
    bits of mantissa in the operands. bfloat16: 8 bits, faster on devices with instructions for
    it."""

    layer_options: ClassVar[tuple[str, ...]] = ("hidden_sizes", "activation", "layer_norm")
    """Options that a custom network ignores."""

    def check(self) -> None:
        """Check the encoder's name, or that a custom network leaves `layer_options` as they are."""
        if self.network is None:
            return
        if is_built_in(self.network):
            encoder_name(self.network)
            return
        values = {name: self.value_of(name) for name in self.layer_options}
        values = {name: tuple(x) if isinstance(x, list) else x for name, x in values.items()}
        if any(value != default_of(type(self), name) for name, value in values.items()):
            *names, last = (f"`{name}`" for name in values)
            listed = f"{', '.join(names)} and {last}" if names else last
            network = self.network if isinstance(self.network, str) else name_of(self.network)
            raise ConfigError(
                f"`network` ({network}) is a custom network with its own layers: leave {listed} "
                "out, or leave `network` out"
            )


@dataclass(frozen=True, kw_only=True)
class MaskOptions(Options):
    """Action masks."""

    action_masks: bool = False
    """Act and learn with the actions that the environment's `action_mask` allows. Its place is
    `info`, a method `action_masks()`, or a dict observation."""


@dataclass(frozen=True, kw_only=True)
class OnPolicyOptions(PolicyOptions, RunOptions):
    """On-policy learning."""

    num_steps: Count = 128
    """T, steps of each environment between two updates. Lower it for more frequent updates."""
    update_epochs: Count = 1
    """Passes over each fragment. Raise it to reuse data, lower it for smaller policy changes."""
    num_minibatches: Count = 1
    """Minibatches of each pass, a divisor of N × num_steps. Lower it if gradients are noisy."""
    gamma: ScheduledFraction = 0.99
    """Discount γ. Raise it if rewards come late, lower it if returns are noisy."""
    normalize_obs: bool = False
    """Normalize observations to mean 0 and standard deviation 1, by running statistics."""
    normalize_reward: bool = False
    """Scale rewards so that returns have standard deviation 1, by running statistics."""
    clip_obs: Positive | Literal["auto"] | None = "auto"
    """Bound on the magnitude of observations. auto: 10 if normalized, else none. None: no bound."""
    clip_reward: Positive | None = None
    """Bound on the magnitude of (normalized) rewards. None: no bound. 10 is usual."""
    schedule: Annotated[
        Literal["barrier", "variable"],
        Hint("'async' is for appo, and for algorithms that learn from replay"),
    ] = "barrier"
    """barrier: update after T steps of each environment. variable, with workers: update after N × T
    steps in all, weighted so that slow environments count as much as fast ones."""
    overlap: bool = False
    """With workers: collect the next fragment with the previous policy during an update. Set it if
    updates take a large share of the time."""

    requires: ClassVar[RequirementTable] = {"schedule": WORKERS, "overlap": WORKERS}

    def check(self) -> None:
        """Check memory and minibatch sizes."""
        self.require_fragment_memory(self.num_steps, "num_steps")
        if self.batch_size % self.num_minibatches:
            small = [
                n for n in range(1, math.isqrt(self.batch_size) + 1) if not self.batch_size % n
            ]
            divisors = [*small, *(self.batch_size // n for n in reversed(small))]
            near = min(divisors, key=lambda n: abs(n - self.num_minibatches))
            raise ConfigError(
                f"`num_minibatches` must divide num_envs × num_steps = {self.total_envs} × "
                f"{self.num_steps} = {self.batch_size}, got {self.num_minibatches}: {near} does"
            )
        require_memory(
            _ORDER_BYTES * self.batch_size * self.update_epochs,
            f"{self.update_epochs:,} passes over {self.batch_size:,} transitions",
            "lower `update_epochs`",
        )
        _require_network_memory(self, self.minibatch_size, "raise `num_minibatches`")

    @property
    def sequence_steps(self) -> int:
        """Return the number of steps of a training sequence of a recurrent network."""
        return self.num_steps

    @property
    def batch_size(self) -> int:
        """Return the number of transitions in one fragment, T × N."""
        return self.num_steps * self.total_envs

    @property
    def minibatch_size(self) -> int:
        """Return B, the number of transitions in one gradient step."""
        return self.batch_size // self.num_minibatches

    @property
    def num_updates(self) -> int:
        """Return the number of gradient steps in the whole run."""
        num_iterations = -(-self.total_timesteps // self.batch_size)
        return num_iterations * self.update_epochs * self.num_minibatches


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(PolicyOptions, RunOptions):
    """Learning from a replay buffer."""

    num_envs: Count = 1
    """N, environments that are stepped together. Raise it if updates are noisy or acting slow."""
    batch_size: Count = 256
    """B, transitions in one update. Raise it if gradients are noisy, lower it for speed."""
    buffer_size: Count = 1_000_000
    """Transitions in the full buffer, where new ones replace the oldest. Lower it to save RAM."""
    learning_starts: Natural = 5_000
    """Transitions before the first update, at least one batch. Raise it for a diverse start."""
    train_frequency: Count = 1
    """Steps of each environment between two rounds of updates. Raise it for fewer updates."""
    update_to_data: Positive = 1.0
    """Updates for each transition collected since learning began. Raise it if environment steps are
    expensive, lower it if updates are."""
    gamma: ScheduledFraction = 0.99
    """Discount γ. Raise it if rewards come late, lower it if returns are noisy."""
    n_step: Count = 1
    """n, steps with summed rewards before the bootstrap value. Raise it for sparse rewards."""
    hindsight: Literal["future", "final"] | None = None
    """Hindsight experience replay, for observations with goals: replace a goal by the one achieved
    at a later step of the episode, any (future) or the last (final)."""
    hindsight_share: Fraction = 0.8
    """hindsight: share of a batch whose goals are replaced."""
    normalize_obs: bool = False
    """Normalize observations to mean 0 and standard deviation 1, by running statistics. The buffer
    stores raw observations."""
    clip_obs: Positive | Literal["auto"] | None = "auto"
    """Bound on the magnitude of observations. auto: 10 if normalized, else none. None: no bound."""
    clip_reward: Positive | None = None
    """Bound on the magnitude of replayed rewards. None: no bound."""
    replay: Literal["uniform", "proportional", "prioritized", "rank"] = "uniform"
    """Sampling of batches. proportional: by the return of a transition's episode. prioritized or
    rank: by the value or the rank of the TD error (Schaul et al. 2016)."""
    replay_alpha: NotNegative | None = None
    """prioritized, rank: exponent α of the priorities. None: 0.6, 0.7."""
    replay_beta: NotNegative | None = None
    """prioritized, rank: initial β of the importance weights, annealed to 1. None: 0.4, 0.5."""
    replay_weight_from: Literal["episode_return", "return_so_far", "return_to_go"] | None = None
    """proportional: the return that weights transitions. None: episode_return."""
    replay_shift: float | None = None
    """proportional: a number added to all returns. None: such that the smallest becomes 0."""
    replay_replacement: bool | None = None
    """uniform, proportional: draw with replacement. None: yes for uniform, no for proportional."""
    replay_from: DatasetName | None = None
    """A data set of recorded transitions to learn from as well, minari:NAME. Set it if you have
    recordings of this environment."""
    replay_from_share: Fraction = 0.5
    """replay_from: share of each batch that comes from the data set. Lower it if the data are
    poor."""
    replay_device: Annotated[Literal["auto", "host", "device"], MAY_CHANGE] = "auto"
    """Location of the buffer: the host, or tensors on `device`. auto: the device, if it is a GPU
    with enough memory."""
    updates_per_launch: Annotated[Count, MAY_CHANGE] = 1
    """K, with the buffer on the device: updates that run as one function, including sampling. Must
    be a multiple of the periods of delayed updates."""
    save_replay: Annotated[bool, MAY_CHANGE] = False
    """Save the buffer with the last checkpoint, so that a resumed run ends with equal weights."""
    schedule: Annotated[
        Literal["barrier", "async"],
        Hint("'variable' is for on-policy algorithms"),
    ] = "barrier"
    """barrier: every environment steps, then the due updates run. async, with workers: updates run
    as transitions arrive."""
    fragment_steps: Count = 64
    """async: steps of a worker's fragment. A worker may be two fragments ahead of the learner."""
    max_policy_age: Count = 1_000
    """async: maximum number of updates since the acting policy of a transition. Learning waits
    rather than exceed it. Lower it if learning is unstable."""
    overlap: bool = False
    """On a GPU: step environments during the updates, with the previously published policy."""
    report_interval: Annotated[Count, MAY_CHANGE] = 1_000
    """Transitions between two lines of metrics, in whole rounds."""

    requires: ClassVar[RequirementTable] = {
        "schedule": WORKERS,
        "fragment_steps": {"schedule": ("async",)},
        "max_policy_age": {"schedule": ("async",)},
        "hindsight_share": {"hindsight": SET},
        "replay_alpha": {"replay": _BY_PRIORITY},
        "replay_beta": {"replay": _BY_PRIORITY},
        "replay_weight_from": {"replay": ("proportional",)},
        "replay_shift": {"replay": ("proportional",)},
        "replay_replacement": {"replay": ("uniform", "proportional")},
        "replay_from_share": {"replay_from": SET},
    }

    def check(self) -> None:
        """Check memory, and options that depend on each other."""
        # Check the numbers of steps, rows and updates.
        for name, most in (
            ("learning_starts", self.total_timesteps - 1),
            ("batch_size", self.total_timesteps),
        ):
            if min(getattr(self, name), self.first_update_at) > most:
                relation = "less" if most < self.total_timesteps else "no more"
                raise ConfigError(
                    f"`{name}` must be {relation} than `total_timesteps`, or nothing is learned, "
                    f"got {getattr(self, name):,} of {self.total_timesteps:,}: lower `{name}` or "
                    "raise `total_timesteps`"
                )
        if self.buffer_size < self.batch_size:
            raise ConfigError(
                f"`buffer_size` must hold a batch, `batch_size` = {self.batch_size}, got "
                f"{self.buffer_size}: raise it"
            )
        if self.update_to_data > 10_000:
            raise ConfigError(
                f"`update_to_data` must be at most 10,000, got {self.update_to_data}: 1 is usual, "
                "20 is high"
            )
        if self.n_step > 1 and not as_schedule(self.gamma).is_constant:
            raise ConfigError(
                f"`gamma` must be constant if `n_step` is above 1, got {self.gamma}: the buffer "
                "sums rewards with one γ; set a number, or `n_step` 1"
            )
        # Check the schedule of workers and learner.
        if self.overlap and (self.device == "cpu" or self.schedule == "async"):
            setting = "`device` 'cpu'" if self.device == "cpu" else "`schedule` 'async'"
            raise ConfigError(
                f"`overlap` needs a GPU and a barrier, got {setting}: set `device` 'cuda' and "
                "`schedule` 'barrier', or leave out `overlap`"
            )
        if self.schedule == "async" and self.max_steps_ahead < NUM_SLOTS:
            raise ConfigError(
                f"`max_policy_age` = {self.max_policy_age} is too low for {self.total_envs} "
                f"environments and {self.update_to_data:g} updates for each step: {NUM_SLOTS} "
                "steps of every environment lead to more updates; raise it, or use fewer "
                "environments"
            )
        # Check the replay options and the memory.
        if self.hindsight is not None and (self.n_step > 1 or self.schedule == "async"):
            setting = "`n_step` 1" if self.n_step > 1 else "`schedule` 'barrier'"
            raise ConfigError(f"`hindsight` needs {setting}: change it, or leave out `hindsight`")
        self._check_recorded()
        self._check_device_replay()
        if self.replay != "uniform":  # which has no settings, and may work without Numba
            self.sampler()
        is_async = self.schedule == "async"
        steps = self.train_frequency
        if is_async:
            steps = min(self.fragment_steps, self.max_steps_ahead // NUM_SLOTS)
        self.require_fragment_memory(steps, "fragment_steps" if is_async else "train_frequency")
        _require_network_memory(self, self.batch_size, "lower `batch_size`")

    def _check_recorded(self) -> None:
        """Check that the data set and the run both have a part of each batch."""
        if self.replay_from is None:
            return
        if self.is_recurrent or self.hindsight is not None:
            option = "memory" if self.is_recurrent else "hindsight"
            raise ConfigError(
                f"`replay_from` mixes single transitions without goals, and does not support "
                f"`{option}`: leave one of them out"
            )
        if not 0 < self.num_recorded < self.batch_size:
            raise ConfigError(
                f"`replay_from_share` of `batch_size` = {self.batch_size} must leave at least one "
                f"transition for the data set and one for the run, got {self.replay_from_share}: "
                "set 0.5, or leave `replay_from` out"
            )

    def _check_device_replay(self) -> None:
        """Check that the device can hold a buffer, and a round the updates of a launch."""
        if self.replay_device == "device" and self.host_replay_reason:
            raise ConfigError(
                f"`replay_device` 'device' does not support {self.host_replay_reason}: choose "
                "'host', or leave that out"
            )
        if self.updates_per_launch == 1:
            return
        is_on_host = self.replay_device == "host" or (
            self.replay_device == "auto" and (self.device == "cpu" or self.host_replay_reason)
        )
        if is_on_host:
            raise ConfigError(
                "`updates_per_launch` needs a buffer on the device, and `replay_device` "
                f"'{self.replay_device}' keeps it on the host: choose 'device', or leave "
                "`updates_per_launch` out"
            )
        num_updates = int(self.update_to_data * self.train_frequency * self.total_envs)
        if self.updates_per_launch > max(1, num_updates):
            raise ConfigError(
                f"`updates_per_launch` must not exceed the updates of a round, "
                f"update_to_data × train_frequency × num_envs = {num_updates}, got "
                f"{self.updates_per_launch}: raise `train_frequency`, or lower it"
            )

    @property
    def host_replay_reason(self) -> str:
        """Return the option that requires the buffer on the host, or the empty string."""
        if self.hindsight is not None:
            return "`hindsight`"
        if self.schedule == "async":
            return "`schedule` 'async'"
        if self.replay_from is not None:
            return "`replay_from`"
        return "`memory`" if self.is_recurrent else ""

    @property
    def num_recorded(self) -> int:
        """Return the number of transitions of a batch that come from `replay_from`."""
        return round(self.replay_from_share * self.batch_size)

    @property
    def sequence_steps(self) -> int:
        """Return the number of rows that are drawn together, 1 without recurrence."""
        return 1

    @property
    def first_update_at(self) -> int:
        """Return the number of transitions before the first update, at least one batch."""
        return max(self.learning_starts, self.batch_size)

    @property
    def planned_updates(self) -> int:
        """Return the approximate number of updates, for β and the choice to compile."""
        return max(1, int(self.update_to_data * (self.total_timesteps - self.first_update_at)))

    @property
    def max_steps_ahead(self) -> int:
        """Return the steps that environments may be ahead of the learner with `schedule` async, so
        that learning from them does not exceed `max_policy_age`."""
        return int(min(self.max_policy_age / (self.total_envs * self.update_to_data), 2**63))

    def random_steps(self) -> int:
        """Return the number of steps of each environment before learning begins."""
        return -(-self.first_update_at // self.total_envs)

    def sampler(self) -> Sampler:
        """Return how batches are drawn."""
        from hotloop.replay import Prioritized, Proportional, RankBased, Uniform

        arguments: dict[str, Any] = {
            name: getattr(self, f"replay_{name}")
            for name in ("alpha", "beta", "shift", "replacement")
            if getattr(self, f"replay_{name}") is not None
        }
        if self.replay == "uniform":
            return Uniform(**arguments)
        if self.replay == "proportional":
            return Proportional(**{"replacement": False, **arguments})
        kind = Prioritized if self.replay == "prioritized" else RankBased
        return kind(beta_samples=self.planned_updates, **arguments)


AlgorithmOptions: TypeAlias = OnPolicyOptions | ReplayOptions
"""The options of an algorithm, which learns from fragments or from replay."""
AnyConfig = TypeVar("AnyConfig", bound=AlgorithmOptions)


def _require_network_memory(options: AlgorithmOptions, num_rows: int, advice: str) -> None:
    """Raise ConfigError if parameters or a batch's hidden layers don't fit into memory."""
    if not isinstance(options, NetworkOptions):
        return
    is_on_cpu, sizes, network = options.device == "cpu", options.hidden_sizes, options.network
    if network is None or is_built_in(network):
        count = sum(sizes) + sum(inputs * outputs for inputs, outputs in pairwise(sizes))
        each = _PARAMETER_BYTES if is_on_cpu else _HOST_PARAMETER_BYTES
        require_memory(each * count, f"{count:,} parameters and more", "lower `hidden_sizes`")
    if network is None and is_on_cpu:
        require_memory(
            4 * num_rows * sum(sizes),
            f"the hidden layers of {num_rows:,} transitions",
            f"{advice}, or lower `hidden_sizes`",
        )
