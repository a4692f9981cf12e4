"""Checkpoints of a run: written aside, renamed when whole, found by the links `last` and `best`.

checkpoints/
  step-000051200/
    policy.safetensors    what acting needs: parameters and the scale of the observations
    learner.safetensors   what learning needs besides
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.errors import CheckpointError, MissingExtraError, RunDirectoryError
from hotloop.policies import Network, ObsScale, PolicySnapshot, network_from_json
from hotloop.types import Array

CHECKPOINT_VERSION = 2

_SCALE = ("mean", "std", "clip")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A run between two iterations.

    Attributes:
        network: which networks.
        snapshot: the policy.
        arrays: what the learner, its normaliser and its rollout need to go on, by name.
        state: counters and random states, as JSON holds them; `timesteps` is always there.
    """

    network: Network
    snapshot: PolicySnapshot
    arrays: Mapping[str, Array] = field(repr=False)
    state: dict[str, Any]


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
            names: links that lead to it from now on.
            keep: how many of the newest to keep besides those that a link leads to.

        Returns:
            The checkpoint's directory.

        Raises:
            RunDirectoryError: it can't be written.
            MissingExtraError: safetensors is not installed.
        """
        safetensors = _safetensors()
        target = self.path / _folder(checkpoint.state["timesteps"])
        aside = self.path / f".{target.name}.tmp"
        try:
            self._remove_leftovers()
            aside.mkdir(parents=True)
            policy = dict(checkpoint.snapshot.params)
            scale = checkpoint.snapshot.obs_scale
            if scale is not None:
                policy |= {f"obs_scale.{name}": np.asarray(getattr(scale, name)) for name in _SCALE}
            for name, arrays in (("policy", policy), ("learner", checkpoint.arrays)):
                # safetensors takes an array's memory as it lies, whatever its strides say.
                whole = {key: np.asarray(x, order="C") for key, x in arrays.items()}
                safetensors.numpy.save_file(whole, aside / f"{name}.safetensors")
            content = {
                "checkpoint_version": CHECKPOINT_VERSION,
                "network": checkpoint.network.to_json(),
                "policy_version": checkpoint.snapshot.version,
                **checkpoint.state,
            }
            (aside / "state.json").write_text(json.dumps(content, indent=2) + "\n")
            shutil.rmtree(
                target, ignore_errors=True
            )  # of a run that was killed before it linked it
            aside.rename(target)
            for name in names:
                self._link(name, target.name)
            self._prune(keep)
        except (OSError, safetensors.SafetensorError) as error:
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

    def load(self, name: str = "last") -> Checkpoint:
        """Read a checkpoint back.

        Raises:
            CheckpointError: there is none of that name, it is cut short, newer than this code, or
                its network can't be made again.
            MissingExtraError: safetensors is not installed.
        """
        return self._load(name, with_learner=True)

    def load_policy(self, name: str = "last") -> tuple[Network, PolicySnapshot, dict[str, Any]]:
        """The network, its parameters and the state of a checkpoint; raises what `load` does."""
        checkpoint = self._load(name, with_learner=False)
        return checkpoint.network, checkpoint.snapshot, checkpoint.state

    def _load(self, name: str, *, with_learner: bool) -> Checkpoint:
        safetensors = _safetensors()
        target = self.path / name
        if not (target / "state.json").is_file():
            present = ", ".join(self.names())
            raise CheckpointError(
                f"{self.path.parent} has no checkpoint '{name}'; it has "
                f"{present or 'none: the run ended before it saved one'}"
            )
        try:
            state = json.loads((target / "state.json").read_text())
            version = state.pop("checkpoint_version")
            if version != CHECKPOINT_VERSION:
                advice = "upgrade hotloop" if version > CHECKPOINT_VERSION else "train anew"
                raise CheckpointError(
                    f"{target} has checkpoint version {version}, this hotloop reads "
                    f"{CHECKPOINT_VERSION}: {advice}"
                )
            network = network_from_json(state.pop("network"))
            params = safetensors.numpy.load_file(target / "policy.safetensors")
            scale = [params.pop(f"obs_scale.{name}", None) for name in _SCALE]
            mean, std, clip = scale
            snapshot = PolicySnapshot(
                version=state.pop("policy_version"),
                params=params,
                obs_scale=None if mean is None else ObsScale(mean, std, float(clip)),
            )
            arrays = {}
            if with_learner:
                arrays = safetensors.numpy.load_file(target / "learner.safetensors")
            state["timesteps"] = int(state["timesteps"])
        except CheckpointError:
            raise
        except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
            others = ", ".join(other for other in self.names() if other != name)
            raise CheckpointError(
                f"the checkpoint {target} is cut short or damaged ({error}): "
                + (f"take another one ({others})" if others else "train anew")
            ) from error
        return Checkpoint(network=network, snapshot=snapshot, arrays=arrays, state=state)

    def rewind(self, timesteps: int) -> None:
        """Make the checkpoint of this step the last one: those of later steps are removed."""
        target = _folder(timesteps)
        self._link("last", target)
        for path in self.path.glob("step-*"):
            if path.name > target:
                shutil.rmtree(path, ignore_errors=True)
        best = self.path / "best"
        if best.is_symlink() and not best.exists():
            best.unlink()

    def clear(self) -> None:
        """Remove all of them."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _link(self, name: str, target: str) -> None:
        """Point a link at a checkpoint, in one step."""
        aside = self.path / f".{name}.tmp"
        aside.symlink_to(target)
        os.replace(aside, self.path / name)

    def _prune(self, keep: int) -> None:
        """Remove the checkpoints that no link leads to, but for the `keep` newest."""
        linked = {os.readlink(path) for path in self.path.iterdir() if path.is_symlink()}
        unlinked = sorted(p for p in self.path.glob("step-*") if p.name not in linked)
        for path in unlinked[: max(0, len(unlinked) - keep)]:
            shutil.rmtree(path, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        for path in self.path.glob(".*"):
            if path.is_symlink() or path.is_file():
                with contextlib.suppress(OSError):
                    path.unlink()
            else:
                shutil.rmtree(path, ignore_errors=True)


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
