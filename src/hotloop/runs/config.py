"""What every algorithm's configuration has in common, and what its values must satisfy."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hotloop.errors import ConfigError

# What may differ when a run is resumed: it changes nothing that is learned.
MAY_CHANGE = frozenset(
    {
        *("total_timesteps", "runs_dir", "run_dir", "track"),
        *("checkpoint_interval", "keep_checkpoints", "save_replay", "report_interval"),
        *("eval_interval", "eval_episodes", "eval_videos"),
        *("backend", "step_timeout_s", "max_failures"),
    }
)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The options of a run that no algorithm has to itself."""

    env_id: str = "CartPole-v1"
    """Gymnasium id, `module:Id`, `envpool:Id`, or `module:factory`."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Passed to the environment, as JSON on the command line: '{"g": 1.62}'."""
    total_timesteps: int = 200_000
    """Transitions to collect, over all environments; rounded up to whole iterations."""
    seed: int = 1
    """Of environments, networks, actions and minibatches: the same seed gives the same weights."""
    num_envs: int = 8
    """N, environments side by side."""
    workers: int | Literal["auto"] = 0
    """Processes that step the environments; 0: the learner's own. auto: measured, then chosen."""
    envs_per_worker: int | None = None
    """Environments of each worker, which makes N; None: `num_envs` are shared out evenly."""
    backend: Literal["processes", "inline"] = "processes"
    """Where workers run. inline: here, one after another, with the same results as processes."""
    step_timeout_s: float | None = 300.0
    """Workers: seconds that a step or a reset may take before the worker is replaced; None: any."""
    max_failures: int = 100
    """Workers: environments that fail and workers that die are replaced so often in a run."""
    eval_interval: int | None = None
    """Evaluate after every so many transitions, and keep the best checkpoint; None: never."""
    eval_episodes: int = 10
    """Episodes of an evaluation, in environments of its own; always the same ones."""
    eval_videos: bool = False
    """Film the first episode of each evaluation, into <run>/videos."""
    checkpoint_interval: int = 50_000
    """Save a checkpoint after every so many transitions; the last one is always saved."""
    keep_checkpoints: int = 3
    """How many checkpoints to keep besides the last and the best."""
    track: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Log metrics there too."""
    torch_threads: int = 1
    """Cores for the update; tiny networks are slower on two than on one."""
    runs_dir: str = "runs"
    """Where run directories are made."""
    run_dir: str | None = None
    """This run's directory, which must not exist; None: <runs-dir>/<env>__<algorithm>__…"""

    def __post_init__(self) -> None:
        check_fields(
            self,
            counts=(
                *("total_timesteps", "num_envs", "eval_interval", "eval_episodes"),
                *("checkpoint_interval", "torch_threads"),
            ),
        )
        self._check_workers()
        if self.run_dir == "":
            raise ConfigError("`run_dir` must be the path of a new directory, got ''")
        keep, track = self.keep_checkpoints, self.track
        if not _is_int(keep) or keep < 0:
            raise ConfigError(f"`keep_checkpoints` must be an integer ≥ 0, got {keep!r}")
        if not isinstance(track, (tuple, list)) or set(track) - {"tensorboard", "wandb"}:
            raise ConfigError(f"`track` must name 'tensorboard', 'wandb' or both, got {track!r}")
        if self.eval_videos and self.eval_interval is None:
            raise ConfigError("`eval_videos` films evaluations: set `eval_interval` too")

    @property
    def has_workers(self) -> bool:
        """Whether environments are stepped in processes of their own."""
        return self.workers != 0 and self.backend == "processes"

    @property
    def num_groups(self) -> int:
        """Groups in which environments are acted for: one for each worker."""
        return self.workers if isinstance(self.workers, int) and self.workers > 0 else 1

    def _check_workers(self) -> None:
        workers, each = self.workers, self.envs_per_worker
        check_fields(
            self, counts=("envs_per_worker",), positive=("step_timeout_s",), not_negative=()
        )
        if workers != "auto" and (not _is_int(workers) or workers < 0):
            raise ConfigError(f"`workers` must be an integer ≥ 0 or 'auto', got {workers!r}")
        if self.backend not in ("processes", "inline"):
            raise ConfigError(f"`backend` must be 'processes' or 'inline', got {self.backend!r}")
        if not _is_int(self.max_failures) or self.max_failures < 0:
            raise ConfigError(f"`max_failures` must be an integer ≥ 0, got {self.max_failures!r}")
        if workers in (0, "auto"):
            if each is not None:
                raise ConfigError("`envs_per_worker` needs `workers`: say how many there are")
            return
        if each is not None:
            object.__setattr__(self, "num_envs", workers * each)
        elif self.num_envs % workers:
            raise ConfigError(
                f"`num_envs` = {self.num_envs} can't be shared out evenly among {workers} workers: "
                "set `envs_per_worker`"
            )


def changed_fields(config: Any, stored: dict[str, Any]) -> list[str]:
    """The fields of a configuration that a resumed run may not change, and that differ.

    Args:
        config: the configuration to go on with, a dataclass.
        stored: the configuration that the run was started with, as JSON holds it.

    Returns:
        One `name: stored → new` for each.
    """
    new = json.loads(json.dumps(dataclasses.asdict(config)))
    return [
        f"{name}: {stored[name]} → {value}"
        for name, value in new.items()
        if name not in MAY_CHANGE and name in stored and stored[name] != value
    ]


def from_stored(config_class: type, stored: dict[str, Any]) -> Any:
    """A configuration as `config.json` holds it, made again.

    Raises:
        ConfigError: it has a field that this version does not know, or a value that is wrong.
    """
    known = {field.name for field in dataclasses.fields(config_class)}
    unknown = sorted(set(stored) - known)
    if unknown:
        raise ConfigError(
            f"config.json has options that this version of hotloop does not know "
            f"({', '.join(unknown)}): resume with the version that it names"
        )
    tuples = (name for name, value in stored.items() if isinstance(value, list))
    return config_class(**{**stored, **{name: tuple(stored[name]) for name in tuples}})


def check_fields(
    config: Any,
    *,
    counts: Sequence[str] = (),
    positive: Sequence[str] = (),
    not_negative: Sequence[str] = (),
    fractions: Sequence[str] = (),
) -> None:
    """Refuse values that no run could use, before anything starts.

    `seed`, `env_kwargs` and switches are always checked, `hidden_sizes` and `activation` where
    there are any; a field that is None is one that is switched off, if its type has None.

    Args:
        config: the configuration, a dataclass.
        counts: fields that are integers ≥ 1.
        positive: fields that are finite numbers > 0.
        not_negative: fields that are finite numbers ≥ 0.
        fractions: fields that are numbers in [0, 1].

    Raises:
        ConfigError: names the field, what was expected and what came.
    """

    def check(name: str, is_good: bool, expected: str) -> None:
        if not is_good:
            raise ConfigError(f"`{name}` must {expected}, got {getattr(config, name)!r}")

    for one in dataclasses.fields(config):
        value = getattr(config, one.name)
        if one.type in (bool, "bool"):
            check(one.name, isinstance(value, bool), "be True or False")
        if value is None:
            check(one.name, "None" in str(one.type), "be given")
    for name in counts:
        value = getattr(config, name)
        if value is not None:
            check(name, _is_int(value) and value >= 1, "be a positive integer")
    for names, is_good, expected in (
        (positive, lambda x: x > 0, "be positive and finite"),
        (not_negative, lambda x: x >= 0, "be finite and not negative"),
        (fractions, lambda x: 0 <= x <= 1, "lie in [0, 1]"),
    ):
        for name in names:
            value = getattr(config, name)
            if value is not None:
                is_number = isinstance(value, (int, float)) and math.isfinite(value)
                check(name, is_number and is_good(value), expected)
    check("seed", _is_int(config.seed) and 0 <= config.seed < 2**63, "be an integer in [0, 2⁶³)")
    if hasattr(config, "hidden_sizes"):
        sizes = config.hidden_sizes
        are_good = isinstance(sizes, (tuple, list)) and all(_is_int(x) and x >= 1 for x in sizes)
        check("hidden_sizes", are_good, "be positive integers")
        check("activation", config.activation in ("tanh", "relu"), "be 'tanh' or 'relu'")
    check("env_kwargs", _is_json_object(config.env_kwargs), "be a dict that JSON can hold")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_json_object(value: Any) -> bool:
    """What `config.json` could not hold could not be made again for evaluation."""
    try:
        return isinstance(value, dict) and json.loads(json.dumps(value)) == value
    except (TypeError, ValueError):
        return False
