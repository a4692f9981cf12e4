"""Checkpoints of a run: written aside, renamed when whole, found by the links `last` and `best`.

checkpoints/
  step-000051200/
    policy.safetensors    what acting needs: parameters and the scale of the observations
    learner.safetensors   what learning needs besides
    replay.zip            the replay buffer, where it is to be kept; only in the last checkpoint
    state.json            the network's kind, counters, random states
  last -> step-000051200
  best -> step-000040960

A link is replaced in one step: a process killed at any moment leaves whole checkpoints. Nothing
is pickled: nothing that is loaded can run code.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.errors import (
    CheckpointError,
    HotloopError,
    MissingExtraError,
    RunDirectoryError,
)
from hotloop.policies import Network, ObsScale, PolicySnapshot, network_from_json
from hotloop.types import Array

CHECKPOINT_VERSION = 3

REPLAY_FILE = "replay.zip"
LARGE = (REPLAY_FILE,)  # what only the last checkpoint keeps
_SCALE = ("mean", "std", "clip")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A run between two iterations.

    Attributes:
        network: which networks, as their `to_json` gives it.
        snapshot: the policy.
        arrays: gives, by name, what the learner, its normaliser and its rollout need to go on; only
            called if the checkpoint is saved, perhaps much later.
        state: counters and random states, as JSON holds them; `timesteps` is always there.
        files: what else there is, by file name: each writes itself to a path, as it is when the
            checkpoint is saved. Those that are large only the last checkpoint keeps.
        path: where it was read from; None: not from a file.
    """

    network: dict[str, Any]
    snapshot: PolicySnapshot
    arrays: Callable[[], Mapping[str, Array]] = field(repr=False)
    state: dict[str, Any]
    files: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)
    path: Path | None = None


class Checkpoints:
    """The checkpoints of one run.

    Args:
        path: `<run>/checkpoints`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(
        self, checkpoint: Checkpoint, *, names: Sequence[str] = ("last",), keep: int = 0
    ) -> Path:
        """Write a checkpoint; those before it stay if this fails.

        Args:
            checkpoint: what to write.
            names: links that lead to it from now on, replaced in this order.
            keep: how many of the newest to keep besides those that a link leads to.

        Returns:
            The checkpoint's directory.

        Raises:
            RunDirectoryError: it can't be written.
            MissingExtraError: safetensors is not installed.
        """
        target = self.path / _folder(checkpoint.state["timesteps"])
        aside = self.path / f".{target.name}.tmp"
        try:
            self._remove_leftovers()
            if target.name not in self._linked():  # else it is the same one
                aside.mkdir(parents=True)
                self._write(checkpoint, aside)
                shutil.rmtree(target, ignore_errors=True)  # killed before it was linked
                aside.rename(target)
            for name in names:
                self._link(name, target.name)
            self._prune(keep)
        except OSError as error:
            why = getattr(error, "strerror", None) or error
            raise RunDirectoryError(
                f"{target} can't be written ({why}): free some space, or choose a --run-dir "
                "elsewhere"
            ) from error
        finally:
            self._remove_leftovers()
        return target

    def names(self) -> list[str]:
        """What `load` takes: links first, then every checkpoint by its step."""
        if not self.path.is_dir():
            return []
        present = [path for path in sorted(self.path.iterdir()) if path.name[0] != "."]
        usable = [path for path in present if (path / "state.json").is_file()]
        return [path.name for path in sorted(usable, key=lambda path: not path.is_symlink())]

    def check_version(self, name: str = "last") -> None:
        """Refuse a checkpoint of another version; one that is not there is left to `load`.

        Raises:
            CheckpointError: says which version it has, and what to do.
        """
        target = self._find(name)
        try:
            version = json.loads((target / "state.json").read_text())["checkpoint_version"]
        except (OSError, ValueError, KeyError, TypeError):
            return
        if version != CHECKPOINT_VERSION:
            advice = "upgrade hotloop" if version > CHECKPOINT_VERSION else "train anew"
            raise CheckpointError(
                f"{target} has checkpoint version {version}, this hotloop reads "
                f"{CHECKPOINT_VERSION}: {advice}, or take the hotloop that wrote it"
            )

    def load(self, name: str = "last") -> Checkpoint:
        """Read a checkpoint back.

        Args:
            name: a link or a checkpoint's directory; without a link `last`, the newest is it.

        Raises:
            CheckpointError: there is none of that name, it is cut short, or newer than this code.
            MissingExtraError: safetensors is not installed.
        """
        return self._load(name, with_learner=True)

    def load_policy(self, name: str = "last") -> tuple[Network, PolicySnapshot, dict[str, Any]]:
        """The network, its parameters and the state of a checkpoint; raises what `load` does.

        Raises:
            CheckpointError: also where a network of the user's own can't be made again.
        """
        checkpoint = self._load(name, with_learner=False)
        try:
            network = network_from_json(checkpoint.network)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, HotloopError):
                raise
            raise self._damaged(name, error) from error
        return network, checkpoint.snapshot, checkpoint.state

    def rewind(self, checkpoint: Checkpoint, *, best: int | None) -> None:
        """Make a checkpoint the last one again, and of the earlier ones, `best` the best.

        Args:
            checkpoint: that is there.
            best: the step of the best one until then; None for none.
        """
        self._link("last", _folder(checkpoint.state["timesteps"]))
        if best is not None:
            self._link("best", _folder(best))
        else:
            (self.path / "best").unlink(missing_ok=True)

    def remove_later(self, checkpoint: Checkpoint) -> None:
        """Remove those of later steps."""
        for path in self.path.glob("step-*"):
            if path.name > _folder(checkpoint.state["timesteps"]):
                shutil.rmtree(path, ignore_errors=True)

    def has(self, timesteps: int) -> bool:
        """Whether there is a checkpoint of this step."""
        return (self.path / _folder(timesteps) / "state.json").is_file()

    def clear(self) -> None:
        """Remove all of them."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _write(self, checkpoint: Checkpoint, folder: Path) -> None:
        policy = dict(checkpoint.snapshot.params)
        scale = checkpoint.snapshot.obs_scale
        if scale is not None:
            policy |= {f"obs_scale.{name}": np.asarray(getattr(scale, name)) for name in _SCALE}
        for name, arrays in (("policy", policy), ("learner", checkpoint.arrays())):
            write_arrays(arrays, folder / f"{name}.safetensors")
        for name, write in checkpoint.files.items():
            write(folder / name)
        content = {
            "checkpoint_version": CHECKPOINT_VERSION,
            "network": checkpoint.network,
            "policy_version": checkpoint.snapshot.version,
            **checkpoint.state,
        }
        (folder / "state.json").write_text(json.dumps(content, indent=2) + "\n")

    def _find(self, name: str) -> Path:
        """The directory that a name leads to: a link may lead elsewhere a moment later."""
        target = (self.path / name).resolve()
        if name == "last" and not target.exists():  # killed before the first one was linked
            target = max(self.path.glob("step-*"), default=target)
        return target

    def _load(self, name: str, *, with_learner: bool) -> Checkpoint:
        load_file = _safetensors().numpy.load_file
        target = self._find(name)
        if not (target / "state.json").is_file():
            present = ", ".join(self.names())
            raise CheckpointError(
                f"{self.path.parent} has no checkpoint '{name}'; it has "
                f"{present or 'none: the run ended before it saved one'}"
            )
        self.check_version(name)
        try:
            state = json.loads((target / "state.json").read_text())
            state.pop("checkpoint_version")
            network = state.pop("network")
            params = load_file(target / "policy.safetensors")
            mean, std, clip = (params.pop(f"obs_scale.{name}", None) for name in _SCALE)
            scale = None if mean is None or std is None else ObsScale(mean, std, float(clip))
            snapshot = PolicySnapshot(
                version=state.pop("policy_version"), params=params, obs_scale=scale
            )
            arrays = load_file(target / "learner.safetensors") if with_learner else {}
            state["timesteps"] = int(state["timesteps"])
        except CheckpointError:
            raise
        except (OSError, ValueError, KeyError, TypeError, _safetensors().SafetensorError) as error:
            if self._find(name) != target:  # a training has just replaced it
                return self._load(name, with_learner=with_learner)
            raise self._damaged(name, error) from error
        return Checkpoint(
            network=network, snapshot=snapshot, arrays=lambda: arrays, state=state, path=target
        )

    def _damaged(self, name: str, error: Exception) -> CheckpointError:
        broken = self._find(name)
        others = ", ".join(other for other in self.names() if self._find(other) != broken)
        return CheckpointError(
            f"the checkpoint {self.path / name} is cut short or damaged "
            f"({type(error).__name__}: {error}): "
            + (f"take another one ({others})" if others else "train anew")
        )

    def _link(self, name: str, target: str) -> None:
        """Point a link at a checkpoint, in one step."""
        aside = self.path / f".{name}.tmp"
        aside.unlink(missing_ok=True)
        aside.symlink_to(target)
        os.replace(aside, self.path / name)

    def _linked(self) -> set[str]:
        if not self.path.is_dir():
            return set()
        return {os.readlink(path) for path in self.path.iterdir() if path.is_symlink()}

    def _prune(self, keep: int) -> None:
        """Remove the checkpoints that no link leads to, but for the `keep` newest."""
        linked = self._linked()
        unlinked = sorted(p for p in self.path.glob("step-*") if p.name not in linked)
        for path in unlinked[: max(0, len(unlinked) - keep)]:
            shutil.rmtree(path, ignore_errors=True)
        last = self._find("last").name
        for name in LARGE:
            for path in self.path.glob(f"step-*/{name}"):
                if path.parent.name != last:
                    path.unlink(missing_ok=True)

    def _remove_leftovers(self) -> None:
        for path in self.path.glob(".*"):
            if path.is_symlink() or path.is_file():
                with contextlib.suppress(OSError):
                    path.unlink()
            else:
                shutil.rmtree(path, ignore_errors=True)


def write_arrays(arrays: Mapping[str, Array], path: Path) -> None:
    """Write arrays as one safetensors file.

    Raises:
        OSError: it can't be written.
        MissingExtraError: safetensors is not installed.
    """
    safetensors = _safetensors()
    # safetensors takes an array's memory as it lies, whatever its strides say.
    whole = {name: np.asarray(x, order="C") for name, x in arrays.items()}
    try:
        safetensors.numpy.save_file(whole, path)
    except safetensors.SafetensorError as error:
        raise OSError(str(error)) from error


def _folder(timesteps: int) -> str:
    return f"step-{timesteps:012}"


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.numpy
    except ImportError as error:
        raise MissingExtraError(
            "checkpoints need safetensors: pip install 'hotloop[train]'"
        ) from error
    return safetensors
