"""Groups of options that an algorithm's Config is composed of.

A Config lists the groups that it needs side by side, and adds its own options:

    @dataclass(frozen=True, kw_only=True)
    class Config(OnPolicyOptions, NetworkOptions, RunOptions):
        learning_rate: ScheduledPositive = linear(1e-3, 0.0)

They are mixins and not attributes, so that options stay flat: `Config(eval_interval=1000)`,
`--eval-interval 1000` and one JSON object, never `config.eval.interval`. Where two groups have one
option, the default of the one that is listed first counts, so RunOptions stand last; help shows the
groups from the last to the first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from hotloop.errors import ConfigError
from hotloop.importing import name_of
from hotloop.ops.schedules import as_schedule
from hotloop.policies.network import encoder_of, is_built_in
from hotloop.rollouts import NUM_SLOTS
from hotloop.rollouts.evaluation import EPISODE_BYTES
from hotloop.system.memory import need_memory
from hotloop.training.options.base import Options
from hotloop.training.options.constraints import (
    MAY_CHANGE,
    Count,
    Device,
    Fraction,
    Hint,
    Importable,
    InfoNames,
    JsonObject,
    Natural,
    NotNegative,
    Positive,
    ScheduledFraction,
    Seed,
    Sizes,
    Trackers,
)
from hotloop.training.options.workers import WorkerOptions

if TYPE_CHECKING:
    from hotloop.replay import Sampler

_BY_PRIORITY = ("prioritized", "rank")
# With so many torch starts 1,024, whose stacks are 9 GiB of addresses; some thousand more crash
# it. The bound is the same everywhere: a run can be resumed where there are fewer cores.
_MAX_THREADS = 512

# Lower bounds on memory, whatever the environment and the network are.
_PARAMETER_BYTES = 16  # with its gradient and Adam's two moments
_HOST_PARAMETER_BYTES = 8  # where these are on a GPU: as it is drawn, and as it is sent there
_ORDER_BYTES = 8  # of a transition, in what keeps the order of a pass


@dataclass(frozen=True, kw_only=True)
class TaskOptions(Options):
    """What is trained on, for how long, and on which machine."""

    env_id: str = "CartPole-v1"
    """Gymnasium id, `module:Id`, `envpool:Id`, or `module:factory`; for ppo on the device too:
    `hotloop:CartPole`, `gymnax:Id`, `brax:name`, `playground:name`."""
    env_kwargs: JsonObject = field(default_factory=dict)
    """Passed to the environment, as JSON on the command line: '{"g": 1.62}'."""
    total_timesteps: Annotated[Count, MAY_CHANGE] = 200_000
    """Transitions to collect, over all environments; rounded up to whole iterations."""
    seed: Seed = 1
    """Of environments, networks, actions and minibatches: the same seed gives the same weights."""
    num_envs: Count = 8
    """N, environments side by side."""
    torch_threads: Count | Literal["auto"] = 1
    """Threads of the update; tiny networks are slower with two than with one. auto: four at most,
    as long as cores are free."""
    device: Annotated[Device, MAY_CHANGE] = "cpu"
    """Where networks are updated: cpu, cuda, cuda:1, …; auto: a GPU where torch sees one."""
    execution: Literal["auto", "eager", "compile", "cudagraph", "compile+cudagraph"] = "auto"
    """How updates run: eager, operation by operation; compiled, several times as fast once they
    are, which they are once on a machine; on a GPU as one CUDA graph, compiled or not. auto: on a
    GPU compile+cudagraph, else compiled where they are already, or the run is long enough to gain
    by it."""
    gpu_window_ms: Annotated[Natural, MAY_CHANGE] = 0
    """How long torch's profiler looks at the GPU each time, 3, 10, 30, 100, … s into the run, for
    `hotloop report`; 0: never."""

    def check(self) -> None:
        """Refuse more threads than torch can start, and windows on a GPU that are none."""
        if self.gpu_window_ms and not 20 <= self.gpu_window_ms <= 10_000:
            raise ConfigError(
                "`gpu_window_ms` must be 0 or between 20 and 10,000 milliseconds, got "
                f"{self.gpu_window_ms:,}: 250 is usual"
            )
        if self.gpu_window_ms and self.device == "cpu":
            raise ConfigError(
                f"`gpu_window_ms` {self.gpu_window_ms} needs a GPU, got `device` 'cpu': set "
                "`device` to cuda, or leave it out"
            )
        if self.torch_threads != "auto" and self.torch_threads > _MAX_THREADS:
            raise ConfigError(
                f"`torch_threads` must be at most {_MAX_THREADS:,}, got {self.torch_threads:,}: "
                "threads beyond the machine's cores only wait for each other"
            )


@dataclass(frozen=True, kw_only=True)
class EvalOptions(Options):
    """Evaluations during the run."""

    eval_interval: Annotated[Count | None, MAY_CHANGE] = None
    """Evaluate after every so many transitions, and keep the best checkpoint; None: never."""
    eval_episodes: Annotated[Count, MAY_CHANGE] = 10
    """Episodes of an evaluation, in environments of its own; always the same ones."""
    eval_videos: Annotated[bool, MAY_CHANGE] = False
    """Film the first episode of each evaluation, into <run>/videos."""

    def check(self) -> None:
        """Refuse films of evaluations that there are not, and more episodes than fit."""
        if self.eval_videos and self.eval_interval is None:
            raise ConfigError("`eval_videos` films evaluations: set `eval_interval` too")
        if self.eval_interval is not None:
            need_memory(
                EPISODE_BYTES * self.eval_episodes,
                f"{self.eval_episodes:,} episodes",
                "lower `eval_episodes`",
            )


@dataclass(frozen=True, kw_only=True)
class SaveOptions(Options):
    """What is kept of the run, and where."""

    checkpoint_interval: Annotated[Count, MAY_CHANGE] = 50_000
    """Save a checkpoint after every so many transitions; the last one is always saved."""
    keep_checkpoints: Annotated[Natural, MAY_CHANGE] = 3
    """How many checkpoints to keep besides the last and the best."""
    track: Annotated[Trackers, MAY_CHANGE] = ()
    """Log metrics there too."""
    log_info: Annotated[InfoNames, MAY_CHANGE] = ()
    """Keys of the environment's `info` to log, at the last step of each episode: is_success,…;
    numbers in info["episode"] are logged anyway."""
    runs_dir: Annotated[str, MAY_CHANGE] = "runs"
    """Where run directories are made."""
    run_dir: Annotated[str | None, MAY_CHANGE] = None
    """This run's directory, which must not exist; None: <runs-dir>/<env>__<algorithm>__…"""

    def check(self) -> None:
        """Refuse a directory without a name."""
        if self.run_dir == "":
            raise ConfigError("`run_dir` must be the path of a new directory, got ''")


@dataclass(frozen=True, kw_only=True)
class RunOptions(SaveOptions, EvalOptions, WorkerOptions, TaskOptions):
    """The groups above, which every run has."""


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(Options):
    """The networks' layers, or networks of one's own."""

    hidden_sizes: Sizes = (64, 64)
    """Widths of the hidden layers."""
    activation: Literal["tanh", "relu"] = "tanh"
    """After each hidden layer."""
    network: Importable | None = None
    """perceptron, or an encoder of images before the hidden layers: nature, impala, vizdoom; None:
    by what is observed. Or one of your own instead, `module:Class`, or what makes it."""
    layer_norm: bool = False
    """Normalise what an encoder of images gives."""
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    """Precision of matrix products and convolutions. tf32: faster on GPUs from Ampere on, with 10
    bits of mantissa in the operands. bfloat16: 8 bits, faster on devices with instructions for
    it."""

    layer_options: ClassVar[tuple[str, ...]] = ("hidden_sizes", "activation", "layer_norm")
    """Options that a network of one's own takes no notice of."""

    def check(self) -> None:
        """Refuse layers that don't fit, and layers for a network that has its own."""
        if self.network is None or is_built_in(self.network):
            if self.network is not None:
                encoder_of(self.network)
            sizes = self.hidden_sizes
            count = sum(sizes) + sum(inputs * outputs for inputs, outputs in pairwise(sizes))
            each = _PARAMETER_BYTES if self.device == "cpu" else _HOST_PARAMETER_BYTES
            need_memory(each * count, f"{count:,} parameters and more", "lower `hidden_sizes`")
            return
        defaults = {one.name: one.default for one in fields(self)}
        given = {name: getattr(self, name) for name in self.layer_options}
        given = {name: tuple(x) if isinstance(x, list) else x for name, x in given.items()}
        if any(value != defaults[name] for name, value in given.items()):
            names = [f"`{name}`" for name in given]
            listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
            network = self.network if isinstance(self.network, str) else name_of(self.network)
            raise ConfigError(
                f"`network` ({network}) has layers of its own: leave {listed} out, or leave "
                "`network` out"
            )


@dataclass(frozen=True, kw_only=True)
class OnPolicyOptions(Options):
    """Learning from what the policy does now."""

    num_steps: Count = 128
    """T, steps of each environment between two updates."""
    update_epochs: Count = 1
    """Passes over each fragment."""
    num_minibatches: Count = 1
    """Minibatches a pass; must divide N × num_steps."""
    gamma: ScheduledFraction = 0.99
    """Discount γ."""
    normalize_obs: bool = False
    """Give the networks observations of mean 0 and standard deviation 1, as seen so far."""
    normalize_reward: bool = False
    """Scale rewards so that returns have standard deviation 1, as seen so far."""
    clip_obs: Positive | None = None
    """Bound on the (normalised) observations' magnitude; None: none. 10 is usual."""
    clip_reward: Positive | None = None
    """Bound on the (normalised) rewards' magnitude; None: none. 10 is usual."""
    schedule: Annotated[
        Literal["barrier", "variable"],
        Hint("'async' is for appo, and for algorithms that learn from replay"),
    ] = "barrier"
    """barrier: T steps of each environment, then an update. variable, with workers: an update as
    soon as there are as many steps in all, of each environment as many as it has made, weighted."""
    overlap: bool = False
    """With workers: collect the next fragment while learning from this one, with the policy as it
    was before."""

    def check(self) -> None:
        """Refuse what does not fit, uneven minibatches, and schedules that lack their workers."""
        self.need_fragments(self.num_steps, "num_steps")
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
        need_memory(
            _ORDER_BYTES * self.batch_size * self.update_epochs,
            f"{self.update_epochs:,} passes over {self.batch_size:,} transitions",
            "lower `update_epochs`",
        )
        _need_activations(self, self.minibatch_size, "raise `num_minibatches`")
        if not self.has_workers and (self.schedule != "barrier" or self.overlap):
            what = "`overlap`" if self.overlap else f"`schedule` '{self.schedule}'"
            raise ConfigError(f"{what} needs workers of their own: set `workers` too")

    @property
    def batch_size(self) -> int:
        """Transitions in one fragment, T × N."""
        return self.num_steps * self.total_envs

    @property
    def minibatch_size(self) -> int:
        """B, transitions in one gradient step."""
        return self.batch_size // self.num_minibatches

    @property
    def num_updates(self) -> int:
        """Gradient steps in the whole run."""
        num_iterations = -(-self.total_timesteps // self.batch_size)
        return num_iterations * self.update_epochs * self.num_minibatches


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(Options):
    """Learning from a replay buffer."""

    num_envs: Count = 1
    """N, environments side by side."""
    batch_size: Count = 256
    """B, transitions in one update."""
    buffer_size: Count = 1_000_000
    """Transitions that are kept; then each new one replaces the oldest."""
    learning_starts: Natural = 5_000
    """Transitions to collect before the first update; never fewer than a batch."""
    train_frequency: Count = 1
    """Steps of each environment between two rounds of updates."""
    update_to_data: Positive = 1.0
    """Updates for each transition collected since learning began."""
    gamma: ScheduledFraction = 0.99
    """Discount γ."""
    n_step: Count = 1
    """n: rewards of so many steps before the value of what follows."""
    hindsight: Literal["future", "final"] | None = None
    """Learn as if a later state of the episode had been the goal, where observations hold goals:
    any later one, or the last."""
    hindsight_share: Fraction = 0.8
    """hindsight: share of a batch that gets such goals."""
    normalize_obs: bool = False
    """Give the networks observations of mean 0 and standard deviation 1, as seen so far. The buffer
    holds them as they came."""
    clip_obs: Positive | None = None
    """Bound on the (normalised) observations' magnitude; None: none. 10 is usual."""
    clip_reward: Positive | None = None
    """Bound on the magnitude of rewards that are learned from; None: none."""
    replay: Literal["uniform", "proportional", "prioritized", "rank"] = "uniform"
    """How batches are drawn: uniformly; in proportion to the return that a transition's episode
    earned; or by TD error (Schaul et al. 2016), its value (prioritized) or its rank."""
    replay_alpha: NotNegative | None = None
    """prioritized, rank: how much priorities count; None: 0.6, 0.7."""
    replay_beta: NotNegative | None = None
    """prioritized, rank: β of the importance weights at first, 1 in the end; None: 0.4, 0.5."""
    replay_weight_from: Literal["episode_return", "return_so_far", "return_to_go"] | None = None
    """proportional: which return; None: the episode's whole one."""
    replay_shift: float | None = None
    """proportional: added to all returns; None: as much as makes the least one 0."""
    replay_replacement: bool | None = None
    """uniform, proportional: may one batch hold a transition twice; None: yes, no."""
    replay_device: Annotated[Literal["auto", "host", "device"], MAY_CHANGE] = "auto"
    """Where the buffer lies: on the host, or as tensors on `device`; auto: there, if that is a GPU
    with room for it."""
    updates_per_launch: Annotated[Count, MAY_CHANGE] = 1
    """K, with the buffer on the device: updates that are drawn, gathered and made as one function;
    must be a multiple of the periods of delayed updates."""
    save_replay: Annotated[bool, MAY_CHANGE] = False
    """Keep the buffer with the last checkpoint: a resumed run then ends with the same weights."""
    schedule: Annotated[
        Literal["barrier", "async"],
        Hint("'variable' is for algorithms that learn from what the policy does now"),
    ] = "barrier"
    """barrier: every environment steps, then the updates that are due. async, with workers: updates
    as transitions come in, first ready first."""
    fragment_steps: Count = 64
    """async: steps that a worker may be ahead of what was learned from, two times over."""
    max_policy_age: Count = 1_000
    """async: updates between the policy that acted and the newest; learning waits rather than let a
    transition become older."""
    overlap: bool = False
    """On a GPU: step environments while it learns, with the policy that was published before the
    last one."""
    report_interval: Annotated[Count, MAY_CHANGE] = 1_000
    """Transitions between two lines of metrics, in whole rounds."""

    def check(self) -> None:
        """Refuse what does not fit, and options that contradict each other."""
        for name, most in (
            ("learning_starts", self.total_timesteps - 1),
            ("batch_size", self.total_timesteps),
        ):
            if getattr(self, name) > most:
                than = "less" if most < self.total_timesteps else "no more"
                raise ConfigError(
                    f"`{name}` must be {than} than `total_timesteps`, or nothing is learned, got "
                    f"{getattr(self, name):,} of {self.total_timesteps:,}: lower the one or raise "
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
        if self.n_step > 1 and not as_schedule(self.gamma).is_constant:
            raise ConfigError(
                f"`gamma` must be a number where `n_step` = {self.n_step}, got {self.gamma}: the "
                "buffer sums rewards with one γ; leave one of them out"
            )
        if self.schedule == "async" and not self.has_workers:
            raise ConfigError("`schedule` 'async' needs workers of their own: set `workers` too")
        if self.overlap and (self.device == "cpu" or self.schedule == "async"):
            what = "`device` is 'cpu'" if self.device == "cpu" else "`schedule` 'async' does so too"
            raise ConfigError(
                f"`overlap` acts while a GPU learns, and {what}: set `device` 'cuda' and "
                "`schedule` 'barrier', or leave it out"
            )
        if self.schedule == "async" and self.most_ahead < NUM_SLOTS:
            raise ConfigError(
                f"`max_policy_age` = {self.max_policy_age} is too few for {self.total_envs} "
                f"environments and {self.update_to_data:g} updates for each step: learning "
                f"from {NUM_SLOTS} steps of each takes more; raise it, or use fewer environments"
            )
        for name, kinds in (
            ("replay_alpha", _BY_PRIORITY),
            ("replay_beta", _BY_PRIORITY),
            ("replay_weight_from", ("proportional",)),
            ("replay_shift", ("proportional",)),
            ("replay_replacement", ("uniform", "proportional")),
        ):
            if getattr(self, name) is not None and self.replay not in kinds:
                raise ConfigError(
                    f"`{name}` belongs to `replay` {' or '.join(kinds)}, got {self.replay}: leave "
                    "one of them out"
                )
        if self.hindsight is not None and (self.n_step > 1 or self.schedule == "async"):
            what = "`n_step` 1" if self.n_step > 1 else "`schedule` 'barrier'"
            raise ConfigError(f"`hindsight` needs {what}: leave one of them out")
        self._check_device_replay()
        if self.replay != "uniform":  # which has nothing to be refused, and may do without Numba
            self.sampler()
        is_async = self.schedule == "async"
        steps = self.train_frequency
        if is_async:
            steps = min(self.fragment_steps, self.most_ahead // NUM_SLOTS)
        self.need_fragments(steps, "fragment_steps" if is_async else "train_frequency")
        _need_activations(self, self.batch_size, "lower `batch_size`")

    def _check_device_replay(self) -> None:
        """Refuse a buffer on the device that can't be there, and launches that never fill."""
        if self.replay_device == "device" and self.needs_host_replay:
            raise ConfigError(
                f"`replay_device` 'device' keeps single transitions and nothing of "
                f"{self.needs_host_replay}: choose 'host', or leave that out"
            )
        if self.updates_per_launch == 1:
            return
        is_on_host = self.replay_device == "host" or (
            self.replay_device == "auto" and (self.device == "cpu" or self.needs_host_replay)
        )
        if is_on_host:
            raise ConfigError(
                "`updates_per_launch` is of a buffer on the device, and `replay_device` "
                f"'{self.replay_device}' keeps it on the host: choose 'device', or leave "
                "`updates_per_launch` out"
            )
        due = int(self.update_to_data * self.train_frequency * self.total_envs)
        if self.updates_per_launch > max(1, due):
            raise ConfigError(
                f"`updates_per_launch` must not exceed the updates that are due in a round, "
                f"update_to_data × train_frequency × num_envs = {due}, got "
                f"{self.updates_per_launch}: raise `train_frequency`, or lower it"
            )

    @property
    def needs_host_replay(self) -> str:
        """What keeps the buffer on the host, for a sentence; empty: nothing does."""
        if self.hindsight is not None:
            return "`hindsight`"
        if self.schedule == "async":
            return "`schedule` 'async'"
        return "`memory`" if getattr(self, "memory", None) is not None else ""

    @property
    def first_learned(self) -> int:
        """The transition that learning waits for: there must be a batch, too."""
        return max(self.learning_starts, self.batch_size)

    @property
    def planned_updates(self) -> int:
        """Updates in the whole run, about: what β and the choice to compile go by."""
        return max(1, int(self.update_to_data * (self.total_timesteps - self.first_learned)))

    @property
    def most_ahead(self) -> int:
        """async: steps that all environments may be ahead, lest learning from them take so many
        updates that the last ones are too old."""
        return int(self.max_policy_age / (self.total_envs * self.update_to_data))

    def random_steps(self) -> int:
        """Return the steps of each environment before learning begins."""
        return -(-self.first_learned // self.total_envs)

    def sampler(self) -> Sampler:
        """Return how batches are drawn."""
        from hotloop.replay import Prioritized, Proportional, RankBased, Uniform

        given: dict[str, Any] = {
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


def _need_activations(options: Any, num_rows: int, advice: str) -> None:
    """Refuse a batch whose hidden layers don't fit into memory, if they and their width are known.

    Raises:
        ConfigError: they don't.
    """
    sizes = getattr(options, "hidden_sizes", ())
    if getattr(options, "network", None) is None and options.device == "cpu":
        need_memory(
            4 * num_rows * sum(sizes),
            f"the hidden layers of {num_rows:,} transitions",
            f"{advice}, or lower `hidden_sizes`",
        )
