"""Checkpoints of a run: written aside, renamed when whole, found by the links `last` and `best`.

checkpoints/
  step-000051200/
    policy.safetensors    what acting needs: parameters and the scale of the observations
    learner.safetensors   what learning needs besides
    replay.zip            the replay buffer, where it is to be kept; only in the last checkpoint
    state.json            the network's kind, counters, random states, and digests of the others
  last -> step-000051200
  best -> step-000040960

A link is replaced in one step, after all that it leads to is on the disk: a process killed, or a
machine that crashes, at any moment leaves whole checkpoints. What is read is held against its
digest first. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hotloop import documents
from hotloop.errors import (
    CheckpointError,
    HotloopError,
    MissingExtraError,
    RunDirectoryError,
    shortened,
)
from hotloop.policies import Network, ObsScale, PolicySnapshot, network_from_json
from hotloop.system.files import read_regular, sync, write_new
from hotloop.types import Array

CHECKPOINT_VERSION = 4

REPLAY_FILE = "replay.zip"
"""Name of the replay buffer in a checkpoint that has one."""
LARGE = (REPLAY_FILE,)  # what only the last checkpoint keeps
_SCALE = ("mean", "std", "clip")
_POLICY, _LEARNER = "policy.safetensors", "learner.safetensors"
_STEP = re.compile(r"step-\d{12,}")
_NAME = re.compile(r"[\w-]{1,100}")


class _Damaged(Exception):
    """Why a checkpoint can't be used."""


@dataclass(frozen=True, kw_only=True)
class _State:
    """The shape of `state.json`, as far as it is read here."""

    checkpoint_version: int
    files: dict[str, str]
    network: dict[str, Any]
    policy_version: int
    timesteps: int


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
            if not self.path.is_dir():
                self.path.mkdir()  # not the run's directory, which somebody may have deleted
                sync(self.path.parent)
            if target.name not in self._linked():  # else it is the same one
                aside.mkdir()
                sync(*self._write(checkpoint, aside), aside)
                self._remove(target)  # killed before it was linked
                aside.rename(target)
            for name in names:
                self._link(name, target.name)
            sync(self.path)
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
        try:
            state = _read_state(self._find(name))
        except _Damaged:
            return
        version = state.get("checkpoint_version", CHECKPOINT_VERSION)
        if version != CHECKPOINT_VERSION:
            is_newer = isinstance(version, int) and version > CHECKPOINT_VERSION
            raise CheckpointError(
                f"{self.path / name} has checkpoint version {version}, this hotloop reads "
                f"{CHECKPOINT_VERSION}: {'upgrade hotloop' if is_newer else 'train anew'}, or take "
                "the hotloop that wrote it"
            )

    def load(self, name: str = "last") -> Checkpoint:
        """Read a checkpoint back.

        Args:
            name: a link or a checkpoint's directory; without a link `last`, the newest is it.

        Raises:
            CheckpointError: there is none of that name, it is cut short, damaged or of another
                version; says which one is whole.
            MissingExtraError: safetensors is not installed.
        """
        return self._load(name, (_POLICY, _LEARNER))

    def load_policy(
        self, name: str = "last", *, check_module: Callable[[str], None] = lambda module: None
    ) -> tuple[Network, PolicySnapshot, dict[str, Any]]:
        """The network, its parameters and the state of a checkpoint; raises what `load` does.

        Args:
            name: see `load`.
            check_module: is called with the name of a network of the user's own, `module:Class`,
                before that is imported, and may raise.

        Raises:
            CheckpointError: also where a network of the user's own can't be made again.
        """
        checkpoint = self._load(name, (_POLICY,))
        body = checkpoint.network.get("body")
        if isinstance(body, dict) and body.get("kind") == "module":
            check_module(str(body.get("name")))
        try:
            network = network_from_json(checkpoint.network)
        except HotloopError:
            raise
        except Exception as error:  # it may be anything
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
        sync(self.path)

    def remove_later(self, checkpoint: Checkpoint) -> None:
        """Remove those of later steps."""
        for path in self.path.glob("step-*"):
            if path.name > _folder(checkpoint.state["timesteps"]):
                self._remove(path)

    def has_any(self) -> bool:
        """Whether something was ever saved, whole or not."""
        return bool(self._steps()) or (self.path / "last").is_symlink()

    def has(self, timesteps: int) -> bool:
        """Whether there is a checkpoint of this step."""
        return (self.path / _folder(timesteps) / "state.json").is_file()

    def clear(self) -> None:
        """Remove all of them."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _write(self, checkpoint: Checkpoint, folder: Path) -> list[Path]:
        """Write all files of a checkpoint, and return them."""
        policy = dict(checkpoint.snapshot.params)
        scale = checkpoint.snapshot.obs_scale
        if scale is not None:
            policy |= {f"obs_scale.{name}": np.asarray(getattr(scale, name)) for name in _SCALE}
        digests: dict[str, str] = {}
        for name, arrays in ((_POLICY, policy), (_LEARNER, checkpoint.arrays())):
            content = _to_bytes(arrays)
            digests[name] = _digest(content)
            write_new(folder / name, content)
        for name, write in checkpoint.files.items():
            write(folder / name)
        state = {
            "checkpoint_version": CHECKPOINT_VERSION,
            "files": digests,
            "network": checkpoint.network,
            "policy_version": checkpoint.snapshot.version,
            **checkpoint.state,
        }
        # Of what is read back: tuples are lists there.
        state["digest"] = _digest_of_state(json.loads(json.dumps(state)))
        write_new(folder / "state.json", (json.dumps(state, indent=2) + "\n").encode())
        return [folder / name for name in (*digests, *checkpoint.files, "state.json")]

    def _find(self, name: str) -> Path:
        """The directory that a name leads to: a link may lead elsewhere a moment later.

        Raises:
            CheckpointError: it can be no checkpoint's, or leads to somewhere else than one of this
                run.
        """
        if not _NAME.fullmatch(name):
            raise self._missing(name)
        path = self.path / name
        with contextlib.suppress(OSError):  # it is no link
            target = os.readlink(path)
            if not _STEP.fullmatch(target):
                raise CheckpointError(
                    f"{path} must lead to a checkpoint beside it, got a link to '{target}': make "
                    "it lead to the one that you want"
                )
            path = self.path / target
        if name == "last" and not path.exists():  # killed before the first one was linked
            path = max(self._steps(), default=path)
        return path

    def _steps(self) -> list[Path]:
        """All checkpoints, from the first step to the last."""
        return sorted(path for path in self.path.glob("step-*") if _STEP.fullmatch(path.name))

    def _load(self, name: str, files: Sequence[str]) -> Checkpoint:
        load = _safetensors().numpy.load
        target = self._find(name)
        if not (_STEP.fullmatch(target.name) and target.exists()):
            raise self._missing(name)
        self.check_version(name)
        try:
            of_checkpoint, state, contents = _read_whole(target, files)
            params, *rest = [dict(load(contents[file])) for file in files]
            mean, std, clip = (params.pop(f"obs_scale.{name}", None) for name in _SCALE)
            scale = None if mean is None or std is None else ObsScale(mean, std, float(clip))
        except Exception as error:  # files that somebody has made may hold anything
            if self._find(name) != target:  # a training has just replaced it
                return self._load(name, files)
            raise self._damaged(name, error) from error
        ours = vars(of_checkpoint).keys() - {"timesteps"} | {"digest"}
        state = {name: value for name, value in state.items() if name not in ours}
        return Checkpoint(
            network=of_checkpoint.network,
            snapshot=PolicySnapshot(of_checkpoint.policy_version, params, scale),
            arrays=lambda: rest[0] if rest else {},
            state=state,
            path=target,
        )

    def _missing(self, name: str) -> CheckpointError:
        present = ", ".join(self.names())
        return CheckpointError(
            f"{self.path.parent} has no checkpoint '{shortened(name)}'; it has "
            f"{present or 'none: the run ended before it saved one'}"
        )

    def _damaged(self, name: str, error: Exception) -> CheckpointError:
        why = str(error) if isinstance(error, _Damaged) else f"{type(error).__name__}: {error}"
        whole = self._newest_whole(other_than=self._find(name))
        run = self.path.parent
        advice = (
            f"the newest one that is whole is {whole}, take it with `--checkpoint {whole}` "
            f"(`hotloop resume {run} --checkpoint {whole}` goes on from it)"
            if whole
            else "no other one is whole: train anew"
        )
        return CheckpointError(
            f"the checkpoint {self.path / name} is cut short or damaged ({why}): {advice}"
        )

    def _newest_whole(self, *, other_than: Path) -> str:
        """The name of the newest checkpoint that can be loaded; empty where there is none."""
        for path in reversed(self._steps()):
            with contextlib.suppress(_Damaged):
                if path != other_than:
                    _read_whole(path, (_POLICY, _LEARNER))
                    return path.name
        return ""

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
        unlinked = [path for path in self._steps() if path.name not in linked]
        for path in unlinked[: max(0, len(unlinked) - keep)]:
            self._remove(path)
        last = self._find("last").name
        for name in LARGE:
            for path in self.path.glob(f"step-*/{name}"):
                if path.parent.name != last:
                    path.unlink(missing_ok=True)

    def _remove(self, path: Path) -> None:
        """Remove a checkpoint in one step: killed in mid-way, no half of it is left."""
        with contextlib.suppress(OSError):  # it stays, and is whole
            path.rename(aside := path.with_name(f".{path.name}.old"))
            shutil.rmtree(aside, ignore_errors=True)

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
    path.write_bytes(_to_bytes(arrays))


def _to_bytes(arrays: Mapping[str, Array]) -> bytes:
    # safetensors takes an array's memory as it lies, whatever its strides say.
    whole = {name: np.asarray(x, order="C") for name, x in arrays.items()}
    return _safetensors().numpy.save(whole)


def _read_whole(
    folder: Path, files: Sequence[str]
) -> tuple[_State, dict[str, Any], dict[str, bytes]]:
    """Read a checkpoint's state, as what is ours of it and whole, and files, held against digests.

    Raises:
        _Damaged: something is missing, or not what was written.
    """
    state = _read_state(folder)
    try:
        of_checkpoint = documents.record(_State, state, others=True)
    except ValueError as error:
        raise _Damaged(f"state.json: {error}") from error
    contents: dict[str, bytes] = {}
    for name in files:
        contents[name] = _read(folder / name)
        if _digest(contents[name]) != of_checkpoint.files.get(name):
            raise _Damaged(f"{name} is not what was written")
    return of_checkpoint, state, contents


def _read_state(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's `state.json`, which has no digest before version 4.

    Raises:
        _Damaged: it can't be read, or is not what was written.
    """
    try:
        state = documents.parse(_read(folder / "state.json"))
        if not isinstance(state, dict):
            raise _Damaged("state.json must hold an object")
        is_older = state.get("checkpoint_version") in range(1, CHECKPOINT_VERSION)
        if is_older or state.get("digest") == _digest_of_state(state):
            return state
    except (ValueError, RecursionError) as error:
        raise _Damaged(f"state.json: {error}") from error
    raise _Damaged("state.json is not what was written")


def _read(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise _Damaged(f"{path.name}: {error.strerror or error}") from error


def _digest_of_state(state: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in state.items() if name != "digest"}
    return _digest(json.dumps(rest, sort_keys=True).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


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
