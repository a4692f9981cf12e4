"""Soft actor-critic (SAC) whose batches mix a Minari data set with the run's own steps.

A fixed share of each batch comes from the recorded steps, the rest from the replay buffer, as in
Ball et al. 2023, "Efficient Online Reinforcement Learning with Offline Data", arXiv:2302.02948.
The updates are SAC's. Without `--minari-dataset`, the run is plain SAC.

    pip install 'minari[hdf5]'
    minari download mujoco/hopper/expert-v0
    cd examples
    hotloop train sac_from_minari:algorithm --env-id Hopper-v5 \\
        --minari-dataset mujoco/hopper/expert-v0
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from hotloop.algorithms import sac
from hotloop.envs import EnvSpec, Spaces
from hotloop.errors import ConfigError, MissingExtraError, SpaceError
from hotloop.ops.schedules import as_schedule
from hotloop.policies import ObsScale
from hotloop.replay import ReplayBuffer
from hotloop.rollouts import Environments
from hotloop.training import Replay, ReplayBatch
from hotloop.training.options import SET, Fraction, RequirementTable, with_values

if TYPE_CHECKING:
    from minari import MinariDataset


@dataclass(frozen=True, kw_only=True)
class Config(sac.Config):
    """Options of SAC, and the data set."""

    minari_dataset: str | None = None
    """Id of a local Minari data set, such as mujoco/hopper/expert-v0. None: plain SAC."""
    minari_share: Fraction = 0.5
    """Share of each batch that comes from the data set. Lower it if the data are poor."""

    requires: ClassVar[RequirementTable] = {"minari_share": {"minari_dataset": SET}}

    @property
    def num_recorded(self) -> int:
        """Return the number of recorded transitions in each batch."""
        return round(self.minari_share * self.batch_size)

    def check(self) -> None:
        """Check that both sources have a part of each batch."""
        if self.minari_dataset is not None and not 0 < self.num_recorded < self.batch_size:
            raise ConfigError(
                f"`minari_share` of `batch_size` = {self.batch_size} must leave at least one "
                f"transition for the data set and one for the run, got {self.minari_share}: "
                "set 0.5, or leave `minari_dataset` out"
            )


class MixedReplay(Replay):
    """A run's replay buffer, with a share of each batch from recorded steps.

    Batches hold the run's transitions first, and the recorded ones after them. Recorded rows are
    a function of the seed and of the number of draws before, so a resumed run continues exactly.
    """

    def __init__(
        self,
        config: Config,
        envs: Environments,
        device: torch.device,
        env_spec: EnvSpec,
        memory_size: int,
    ) -> None:
        assert config.minari_dataset is not None
        dataset = load_dataset(config.minari_dataset)
        check_spaces(dataset, envs)
        self.recorded = recorded_steps(dataset, config, envs)
        self._num_recorded, self._seed = config.num_recorded, config.seed
        values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
        smaller = {"minari_dataset": None, "batch_size": config.batch_size - config.num_recorded}
        own_config = with_values(Config, values, smaller)
        super().__init__(own_config, envs, device, env_spec, memory_size)

    def draw(
        self, count: int, scale: ObsScale | None = None
    ) -> tuple[list[ReplayBatch], np.ndarray]:
        """Return mixed batches, and the numbers of the run's own transitions."""
        _, num_draws = self.counters()
        rng = np.random.default_rng((self._seed, num_draws))
        rows = rng.integers(len(self.recorded), size=count * self._num_recorded)
        recorded = self._recorded_fields(rows, scale)
        batches, index = super().draw(count, scale)
        parts = zip(*(x.chunk(count) for x in recorded.values()), strict=True)
        named = (dict(zip(recorded, part, strict=True)) for part in parts)
        return [join(batch, part) for batch, part in zip(batches, named, strict=True)], index

    def update_priorities(self, index: np.ndarray, td_error: Tensor) -> None:
        """Set the priorities of the run's own transitions. Recorded ones are drawn uniformly."""
        super().update_priorities(index, td_error[: len(index)])

    def _recorded_fields(self, rows: np.ndarray, scale: ObsScale | None) -> dict[str, Tensor]:
        batch = self.recorded.get(rows)
        fields = {name: batch[name] for name in ("obs", "action", "reward", "next_obs")}
        if scale is not None:
            for name in ("obs", "next_obs"):
                fields[name] = np.empty_like(batch[name])
                scale.apply(batch[name], fields[name])
        if "discount" in batch:  # of several steps
            fields["discount"] = batch["discount"]
        else:
            fields["discount"] = np.float32(self.gamma) * ~batch["terminated"]
        ones = np.ones(len(rows), np.float32)
        fields |= {"importance": ones, "weight": ones}
        return {name: torch.from_numpy(x).to(self._device) for name, x in fields.items()}


def join(batch: ReplayBatch, recorded: dict[str, Tensor]) -> ReplayBatch:
    """Return a batch with recorded transitions after its own."""
    fields = {name: x for name, x in batch._asdict().items() if x is not None}
    return batch._replace(**{name: torch.cat((x, recorded[name])) for name, x in fields.items()})


def load_dataset(name: str) -> MinariDataset:
    """Return a data set from the folder of `MINARI_DATASETS_PATH`, by default ~/.minari/datasets.

    Raises:
        MissingExtraError: Minari is not installed, or not the library of the data set's format.
        ConfigError: the data set is not there.
    """
    try:
        import minari

        return minari.load_dataset(name)
    except ImportError as error:
        raise MissingExtraError(
            f"`minari_dataset` needs Minari ({error}): pip install 'minari[hdf5]'"
        ) from error
    except (FileNotFoundError, TypeError, ValueError) as error:  # TypeError: an id without version
        raise ConfigError(
            f"`minari_dataset` must be a local data set such as mujoco/hopper/expert-v0, got "
            f"'{name}': `minari list local` prints those, and `minari download` fetches others"
        ) from error


def check_spaces(dataset: MinariDataset, envs: Spaces) -> None:
    """Raise SpaceError if the data set comes from an environment with other spaces."""
    obs, action, spec = dataset.observation_space, dataset.action_space, envs.action_spec
    is_equal = (
        isinstance(obs, Box)
        and isinstance(action, Box)
        and (obs.shape, action.shape) == (envs.obs_spec.shape, spec.shape)
        and np.allclose(action.low.reshape(-1), spec.low)
        and np.allclose(action.high.reshape(-1), spec.high)
    )
    if not is_equal:
        raise SpaceError(
            f"the data set '{dataset.id}' has observations {obs} and actions {action}, but the "
            f"environments have observations of shape {envs.obs_spec.shape} and actions of shape "
            f"{spec.shape} from {list(spec.low)} to {list(spec.high)}: choose a data set of "
            "this environment"
        )


def recorded_steps(dataset: MinariDataset, config: Config, envs: Environments) -> ReplayBuffer:
    """Return a buffer with all transitions of a data set."""
    gamma = as_schedule(config.gamma)(0.0)
    options: dict[str, Any] = {"n_step": config.n_step, "gamma": gamma, "seed": config.seed}
    buffer = ReplayBuffer.for_env(envs, dataset.total_steps, num_envs=1, **options)
    bound = np.inf if config.clip_reward is None else config.clip_reward
    for episode in dataset.iterate_episodes():
        truncated = episode.truncations.astype(np.bool_)
        truncated[-1] |= not episode.terminations[-1]  # the next episode does not continue it
        obs = episode.observations
        buffer.extend(
            obs=obs[:-1].astype(envs.obs_spec.dtype),
            action=episode.actions.astype(np.float32),
            reward=episode.rewards.astype(np.float32).clip(-bound, bound),
            next_obs=obs[1:].astype(envs.obs_spec.dtype),
            terminated=episode.terminations.astype(np.bool_),
            truncated=truncated,
            valid=np.ones(len(truncated), np.bool_),  # a data set has no reset steps
        )
    return buffer


def make_source(config: Config, *args: Any) -> Replay:
    """Return the replay source of a run."""
    return (Replay if config.minari_dataset is None else MixedReplay)(config, *args)


algorithm = dataclasses.replace(
    sac.algorithm, name="sac_from_minari", config=Config, source=make_source
)
