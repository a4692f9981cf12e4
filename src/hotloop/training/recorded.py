"""Recorded transitions: data sets of Minari, alone or mixed with a run's own transitions.

A data set is data from outside. hotloop reads arrays and the JSON of spaces. It never makes the
environment that a data set names, which could run code, and opens no other file that it refers to.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotloop.base.files import read_regular
from hotloop.base.memory import available_memory, require_memory
from hotloop.envs import EnvSpec, Spaces
from hotloop.envs.action_decoder import ActionDecoder
from hotloop.envs.encoding import ObsEncoder
from hotloop.errors import (
    ConfigError,
    HotloopError,
    SpaceError,
    nearest,
    requires_extra,
    shortened,
)
from hotloop.ops.schedules import as_schedule
from hotloop.policies import ObsScale
from hotloop.rollouts import Environments
from hotloop.training.options import ReplayOptions, with_values
from hotloop.training.options.constraints import DATASET_NAME, DATASET_PREFIX
from hotloop.training.replay import MAX_DRAWN, Replay, ReplayBatch, ReplaySource
from hotloop.types import Array

_NUM_DRAWN = "recorded.num_drawn"
_STREAM = 7  # of the random draws, next to the learner's own streams
_MAX_COMPRESSION = 1100  # of equal bytes by zlib


class RecordedReplay(ReplaySource):
    """The transitions of a data set, drawn uniformly. Those of the run are not stored.

    The rows of a batch are a function of the seed and the number of batches before it, so a resumed
    run continues exactly.

    Args:
        config: the configuration of the run. `replay_from` names the data set.
        envs: the environments, with the same spaces.
        device: the device of the batches.
        batch_size: recorded transitions in a batch.

    Attributes:
        buffer: all transitions of the data set.

    Raises:
        ConfigError: the data set is missing, damaged or too small.
        SpaceError: the data set has other spaces than the environments.
    """

    options = ("n_step", "clip_reward")
    max_drawn = MAX_DRAWN

    def __init__(
        self, config: ReplayOptions, envs: Environments, device: torch.device, batch_size: int
    ) -> None:
        if config.replay_from is None:
            raise ConfigError(
                "training from a data set alone needs one: set `replay_from` 'minari:NAME'"
            )
        self.buffer = recorded_transitions(config, envs)
        if len(self.buffer) < batch_size:
            raise ConfigError(
                f"the data set of `replay_from` must have at least one batch, `batch_size` = "
                f"{batch_size}, got {len(self.buffer)} transitions: lower `batch_size`"
            )
        self.gamma = as_schedule(config.gamma)(0.0)
        self._seed, self._batch_size, self._device = config.seed, batch_size, device
        self._num_drawn = 0

    def __len__(self) -> int:
        return len(self.buffer)

    def store(self, fragment: object) -> None:
        """Ignore the run's own transitions."""

    def draw(self, count: int, scale: ObsScale | None) -> tuple[list[ReplayBatch], Array]:
        """Return `count` batches, and the numbers of their transitions."""
        numbers = range(self._num_drawn, self._num_drawn + count)
        generators = (np.random.default_rng((self._seed, _STREAM, number)) for number in numbers)
        rows = [rng.integers(len(self.buffer), size=self._batch_size) for rng in generators]
        self._num_drawn += count
        batches = [self._make_batch(batch_rows, scale) for batch_rows in rows]
        return batches, np.concatenate(rows)

    def obs(self) -> Array:
        """Return all observations, (M, *obs_shape)."""
        return self.buffer.get(np.arange(len(self.buffer)))["obs"].copy()

    def counters(self) -> tuple[int, int]:
        """Return the number of transitions, and the batches drawn so far."""
        return len(self.buffer), self._num_drawn

    def stored_rows(self, index: Any) -> Mapping[str, Array]:
        """Return the fields of transitions."""
        return self.buffer.get(index)

    def to_arrays(self) -> dict[str, Array]:
        """Return the number of drawn batches."""
        return {_NUM_DRAWN: np.array(self._num_drawn, np.int64)}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Restore the output of `to_arrays`."""
        self._num_drawn = int(arrays[_NUM_DRAWN])

    def start_empty(self, num_samples: int) -> None:
        """Continue after this number of batches."""
        self._num_drawn = num_samples

    def _make_batch(self, rows: Array, scale: ObsScale | None) -> ReplayBatch:
        batch = self.buffer.get(rows)
        fields = {name: batch[name].copy() for name in ("obs", "action", "reward", "next_obs")}
        if scale is not None:
            for name in ("obs", "next_obs"):
                fields[name] = np.empty(fields[name].shape, np.float32)
                scale.apply(batch[name], fields[name])
        if "discount" in batch:  # of several steps
            fields["discount"] = batch["discount"].copy()
        else:
            fields["discount"] = np.float32(self.gamma) * ~batch["terminated"]
        fields["importance"] = np.ones(len(rows), np.float32)
        tensors = {name: torch.from_numpy(x).to(self._device) for name, x in fields.items()}
        return ReplayBatch(**tensors)


class MixedReplay(Replay):
    """A run's replay buffer, with a share of each batch from a data set.

    Ball et al. 2023, "Efficient Online Reinforcement Learning with Offline Data", arXiv:2302.02948,
    draw half of each batch from the data. Batches hold the run's own transitions first.
    """

    def __init__(
        self,
        config: ReplayOptions,
        envs: Environments,
        device: torch.device,
        env_spec: EnvSpec,
        memory_size: int,
    ) -> None:
        num_recorded = config.num_recorded
        self._recorded = RecordedReplay(config, envs, device, num_recorded)
        changed = {"replay_from": None, "batch_size": config.batch_size - num_recorded}
        super().__init__(
            with_values(type(config), vars(config), changed), envs, device, env_spec, memory_size
        )

    def draw(self, count: int, scale: ObsScale | None = None) -> tuple[list[ReplayBatch], Array]:
        """Return mixed batches, and the numbers of the run's own transitions."""
        batches, index = super().draw(count, scale)
        self._recorded.gamma = self.gamma
        recorded, _ = self._recorded.draw(count, scale)
        return [_join(*pair) for pair in zip(batches, recorded, strict=True)], index

    def update_priorities(self, index: Array, td_error: Tensor) -> None:
        """Set the priorities of the run's own transitions. Recorded ones are drawn uniformly."""
        super().update_priorities(index, td_error[: len(index)])

    def to_arrays(self) -> dict[str, Array]:
        """Return the arrays for a checkpoint."""
        return super().to_arrays() | self._recorded.to_arrays()

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Restore the output of `to_arrays`."""
        super().load(arrays)
        self._recorded.load(arrays)

    def start_empty(self, num_samples: int) -> None:
        """Continue without the run's own transitions, after this number of batches."""
        super().start_empty(num_samples)
        self._recorded.start_empty(num_samples)


def _join(batch: ReplayBatch, recorded: ReplayBatch) -> ReplayBatch:
    """Return a batch with recorded transitions after its own."""
    fields = {name: x for name, x in batch._asdict().items() if x is not None}
    parts = {name: getattr(recorded, name) for name in fields}
    if batch.weight is not None:  # of slow and fast workers: a recorded one counts as 1
        parts["weight"] = recorded.importance
    return batch._replace(**{name: torch.cat((x, parts[name])) for name, x in fields.items()})


# --- reading --------------------------------------------------------------------------------------


def recorded_transitions(config: ReplayOptions, envs: Environments) -> Any:
    """Return a `ReplayBuffer` with all transitions of the data set of `replay_from`.

    Raises:
        ConfigError: the data set is missing or damaged.
        SpaceError: it has other spaces than the environments.
        MissingExtraError: Minari, or the library of the data set's format, is not installed.
    """
    from hotloop.replay import ReplayBuffer

    assert config.replay_from is not None
    name = config.replay_from.removeprefix(DATASET_PREFIX)
    storage = open_dataset(name)
    check_spaces(storage, name, envs)
    _require_memory(storage, name, envs)
    options: dict[str, Any] = {"n_step": config.n_step, "seed": config.seed}
    options["gamma"] = as_schedule(config.gamma)(0.0)
    episodes = list(read_episodes(storage, name, envs))
    count = sum(len(episode["reward"]) for episode in episodes)
    if not count:
        raise ConfigError(f"the data set '{name}' must have a step, got none: choose another one")
    buffer = ReplayBuffer.for_env(envs, count, num_envs=1, **options)
    bound = np.inf if config.clip_reward is None else config.clip_reward
    for episode in episodes:
        episode["reward"] = episode["reward"].clip(-bound, bound)
        buffer.extend(**episode, valid=np.ones(len(episode["reward"]), np.bool_))
    return buffer


def open_dataset(name: str) -> Any:
    """Return the storage of a local data set of Minari, in `MINARI_DATASETS_PATH`.

    Raises:
        ConfigError: there is no such data set, or it is damaged.
        MissingExtraError: Minari, or the library of the data set's format, is not installed.
    """
    with requires_extra("`replay_from` needs Minari", "minari"):
        from minari.dataset.minari_storage import MinariStorage
    folder = datasets_path()
    path = folder / name / "data"
    if not DATASET_NAME.fullmatch(name) or not path.is_dir():
        present = [
            str(x.parent.parent.relative_to(folder)) for x in folder.glob("**/metadata.json")
        ]
        raise ConfigError(
            f"`replay_from` must name a local data set such as minari:mujoco/hopper/expert-v0, got "
            f"'minari:{shortened(name)}', which is not in {folder}"
            + (
                nearest(name, present, prefix=DATASET_PREFIX)
                or ": `minari download` fetches others"
            )
        )
    try:
        metadata = json.loads(read_regular(path / "metadata.json"))
        missing = [key for key in ("observation_space", "action_space") if key not in metadata]
        if missing:  # Minari would make the environment that the data set names
            raise ValueError(f"its metadata.json lacks `{missing[0]}`")
        with requires_extra(f"the data set '{name}' needs a library", "minari"):
            _check_files(path)
            return MinariStorage.read(path)
    except HotloopError:
        raise
    except Exception as error:  # files may have any content
        raise _damaged(name, error) from error


def _check_files(folder: Path) -> None:
    """Check that a data set has regular files only, which contain what they claim.

    Raises:
        ValueError: it has others, or a file refers to another one or claims more than it has.
    """
    for path in folder.rglob("*"):
        if not (path.is_file() or path.is_dir()):
            raise ValueError(f"{path.name} is no regular file")
    for path in folder.glob("*.hdf5"):
        import h5py

        num_bytes = path.stat().st_size
        with h5py.File(path, "r") as file:
            pending: list[Any] = [file]
            visited: set[Any] = set()
            total_bytes = 0
            while pending:
                group = pending.pop()
                if group in visited:
                    raise ValueError(f"{path.name} has a group in two places")
                visited.add(group)
                for key in group:
                    is_link = not isinstance(group.get(key, getlink=True), h5py.HardLink)
                    item = None if is_link else group[key]
                    if isinstance(item, h5py.Group):
                        pending.append(item)
                    elif not isinstance(item, h5py.Dataset) or item.external or item.is_virtual:
                        raise ValueError(f"'{key}' in {path.name} refers to another place")
                    else:
                        # A chunk is read as a whole, even if the array is a part of it.
                        chunk_bytes = math.prod(item.chunks or (0,)) * item.dtype.itemsize
                        size_bytes = max(item.nbytes, chunk_bytes)
                        if size_bytes > num_bytes * (_MAX_COMPRESSION if item.compression else 1):
                            raise ValueError(f"'{key}' in {path.name} claims {size_bytes:,} bytes")
                        total_bytes += size_bytes  # parts that were never written read as zeros
        free = available_memory()
        if total_bytes > min(num_bytes * _MAX_COMPRESSION, free or total_bytes):
            raise ValueError(f"the arrays in {path.name} claim {total_bytes:,} bytes")


def datasets_path() -> Path:
    """Return the directory of local data sets: `MINARI_DATASETS_PATH`, or ~/.minari/datasets."""
    folder = os.environ.get("MINARI_DATASETS_PATH")
    return Path(folder) if folder else Path.home() / ".minari" / "datasets"


def check_spaces(storage: Any, name: str, envs: Spaces) -> None:
    """Raise SpaceError if a data set comes from an environment with other spaces."""
    obs, action = storage.observation_space, storage.action_space
    finding = f"the data set '{name}' has observations {obs} and actions {action}"
    if envs.action_spec.parts:
        raise SpaceError(f"{finding}, and recorded actions must be arrays: join them in a wrapper")
    if envs.action_spec.is_masked:
        raise SpaceError(f"{finding} without action masks: leave out `action_masks`")
    try:
        specs = ObsEncoder(obs).spec, ActionDecoder(action).spec
    except SpaceError as error:
        raise SpaceError(f"{finding}, which hotloop does not support: {error}") from error
    if specs != (envs.obs_spec, envs.action_spec):
        spec = envs.action_spec
        kind = f"{spec.kind} actions of shape {spec.shape}"
        if spec.kind == "box":
            kind += f" from {list(spec.low)} to {list(spec.high)}"
        elif spec.kind == "discrete":
            kind = f"{spec.num_actions} discrete actions"
        raise SpaceError(
            f"{finding}, but the environments have observations of shape {envs.obs_spec.shape} and "
            f"{kind}: choose a data set of this environment"
        )
    if envs.obs_spec.is_composite or envs.obs_spec.layout[0].encoding != "box":
        raise SpaceError(
            f"{finding}, and recorded observations must be arrays (Box): flatten them in a wrapper"
        )


def _require_memory(storage: Any, name: str, envs: Spaces) -> None:
    """Raise ConfigError if the observations of a data set do not fit into memory."""
    try:
        steps = int(storage.total_steps)
    except Exception as error:  # files may have any content
        raise _damaged(name, error) from error
    row_bytes = np.dtype(envs.obs_spec.dtype).itemsize * math.prod(envs.obs_spec.shape)
    # All episodes are read before the buffer copies them.
    subject = f"the {steps:,} transitions of the data set '{name}'"
    require_memory(2 * row_bytes * steps, subject, "choose a smaller one")


def read_episodes(storage: Any, name: str, envs: Spaces) -> Iterator[dict[str, Array]]:
    """Yield the fields of each episode, as a replay buffer stores them. Skip empty episodes.

    Raises:
        ConfigError: an episode is damaged, or has other lengths than its rewards.
    """
    spec, number = envs.action_spec, 0
    obs_shape = storage.observation_space.shape
    offset = spec.start if spec.kind == "discrete" else np.array(spec.starts or 0)
    try:
        for episode in _stored_episodes(storage):
            obs, action = (np.asarray(episode[key]) for key in ("observations", "actions"))
            steps = len(episode["rewards"])
            flags = {key: np.asarray(episode[key], np.bool_) for key in _FLAGS}
            lengths = len(obs) - 1, len(action), *map(len, flags.values())
            if set(lengths) != {steps}:
                raise ValueError(
                    f"episode {number} has {steps} rewards, but {len(obs)} observations, "
                    f"{len(action)} actions, and flags of {lengths[2]} and {lengths[3]} steps"
                )
            if obs.shape[1:] != obs_shape:
                raise ValueError(
                    f"episode {number} must have observations of shape {obs_shape}, got "
                    f"{obs.shape[1:]}"
                )
            number += 1
            if not steps:
                continue
            terminated, truncated = (flags[key] for key in _FLAGS)
            truncated[-1] |= not terminated[-1]  # the next episode does not continue it
            with np.errstate(over="ignore"):  # too large for float32: infinite, and refused below
                obs = obs.astype(envs.obs_spec.dtype).reshape(-1, *envs.obs_spec.shape)
                reward = np.asarray(episode["rewards"], np.float32)
                shifted = action.reshape(steps, *spec.shape) - offset
                action = shifted if spec.num_choices else shifted.astype(spec.dtype)
            for label, values in (("observations", obs), ("actions", action), ("rewards", reward)):
                if not np.isfinite(values).all():
                    raise ValueError(f"episode {number - 1} has {label} that are NaN or infinite")
            if spec.num_choices:
                action = shifted.astype(spec.dtype)
                is_possible = (action == shifted) & (action >= 0) & (action < spec.num_choices)
                if not is_possible.all():
                    raise ValueError(
                        f"episode {number - 1} has actions that are not in {storage.action_space}"
                    )
            yield {
                "obs": obs[:-1],
                "action": action,
                "reward": reward,
                "next_obs": obs[1:],
                "terminated": terminated,
                "truncated": truncated,
            }
    except Exception as error:  # files may have any content
        raise _damaged(name, error) from error


def _stored_episodes(storage: Any) -> Iterator[Any]:
    """Yield the episodes of a data set as Minari reads them, with JPEG images only.

    Minari writes JPEG, but would open any format. To open EPS, Pillow starts Ghostscript, which
    runs PostScript.
    """
    reader: Any = sys.modules[type(storage).__module__]
    pillow = getattr(reader, "Image", None)  # older versions store arrays only
    max_pixels = math.prod(storage.observation_space.shape)

    def open_jpeg(file: Any) -> Any:
        assert pillow is not None
        if file.getvalue()[:2] != b"\xff\xd8":
            raise ValueError("an image is not in the format JPEG")
        image = pillow.open(file, formats=("JPEG",))
        if image.width * image.height > max_pixels:
            raise ValueError(f"an image has {image.width} × {image.height} pixels")
        return image

    reader.Image = SimpleNamespace(open=open_jpeg)
    try:
        yield from storage.get_episodes(range(storage.total_episodes))
    finally:
        reader.Image = pillow


_FLAGS = ("terminations", "truncations")


def _damaged(name: str, error: Exception) -> ConfigError:
    text = shortened(" ".join(str(error).split())) or type(error).__name__
    return ConfigError(f"the data set '{name}' can't be used ({text}): repair or replace it")
