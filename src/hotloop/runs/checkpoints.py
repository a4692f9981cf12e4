"""Checkpoints of a run: written atomically, with the links `last` and `best`.

checkpoints/
  step-000051200/
    policy.safetensors    parameters of the policy and scale of the observations
    learner.safetensors   further arrays of the learner
    replay.zip            the replay buffer, if it is saved, only in the last checkpoint
    state.json            network type, counters, random states, digests of the other files
  last -> step-000051200
  best -> step-000040960

A link is replaced atomically, after its target is on disk. A killed process or a crashed machine
therefore leaves only complete checkpoints. Each file is checked against its digest before use.
Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.base import documents
from hotloop.base.files import read_regular, sync, write_new
from hotloop.errors import (
    CheckpointError,
    HotloopError,
    RunDirectoryError,
    requires_extra,
    shortened,
)
from hotloop.policies import Network, ObsScale, PolicySnapshot, network_from_json
from hotloop.policies.snapshot import unusable_array
from hotloop.types import Array

CHECKPOINT_VERSION = 4

REPLAY_FILE = "replay.zip"
"""Name of the replay buffer in a checkpoint that has one."""
LARGE_FILES = (REPLAY_FILE,)  # files that only the last checkpoint keeps
_SCALE = ("mean", "std", "clip")
_POLICY, _LEARNER = "policy.safetensors", "learner.safetensors"
_STEP = re.compile(r"step-\d{12,}")
_NAME = re.compile(r"[\w-]{1,100}")


class _Damaged(Exception):
    """The reason why a checkpoint cannot be used."""


@dataclass(frozen=True, kw_only=True)
class _State:
    """Schema of the part of `state.json` that this module reads."""

    checkpoint_version: int
    files: dict[str, str]
    network: dict[str, Any]
    policy_version: int
    timesteps: int


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The state of a run between two iterations.

    Attributes:
        network: the networks, in the format of their `to_json`.
        snapshot: the policy.
        arrays: function that returns the arrays of the learner, its normalizer and its rollout, by
            name. It is called when the checkpoint is saved, perhaps much later.
        state: counters and random states, as JSON values, with at least `timesteps`.
        files: functions that write a further file to a path, by file name. They are called when the
            checkpoint is saved. Only the last checkpoint keeps large files.
        path: directory of a checkpoint that was read from disk, None for others.
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
        """Write a checkpoint. If this fails, the earlier ones remain.

        Args:
            checkpoint: the checkpoint.
            names: links to point at the checkpoint, in this order.
            keep: number of latest checkpoints to keep in addition to the targets of links.

        Returns:
            The checkpoint's directory.

        Raises:
            RunDirectoryError: the checkpoint cannot be written.
            MissingExtraError: safetensors is not installed.
        """
        target = self.path / _folder_name(checkpoint.state["timesteps"])
        temp_path = self.path / f".{target.name}.tmp"
        try:
            self._remove_leftovers()
            if not self.path.is_dir():
                self.path.mkdir()  # create no parents: the user may have deleted the run directory
                sync(self.path.parent)
            if target.name not in self._linked_names():  # a linked checkpoint is complete
                temp_path.mkdir()
                sync(*self._write(checkpoint, temp_path), temp_path)
                self._remove(target)  # an earlier process was killed before it linked it
                temp_path.rename(target)
            for name in names:
                self._link(name, target.name)
            sync(self.path)
            self._prune(keep)
        except OSError as error:
            reason = getattr(error, "strerror", None) or error
            raise RunDirectoryError(
                f"{target} can't be written ({reason}): free some space, or choose a --run-dir "
                "elsewhere"
            ) from error
        finally:
            self._remove_leftovers()
        return target

    def names(self) -> list[str]:
        """Return the valid names for `load`: links first, then all checkpoints by step."""
        if not self.path.is_dir():
            return []
        present = [path for path in self.path.iterdir() if path.name[0] != "."]
        usable = [path for path in present if (path / "state.json").is_file()]
        usable.sort(key=lambda path: (not path.is_symlink(), *_step_order(path.name)))
        return [path.name for path in usable]

    def check_version(self, name: str = "last") -> None:
        """Check the version of a checkpoint. Ignore a missing or damaged checkpoint.

        Raises:
            CheckpointError: this hotloop cannot read the version.
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
                f"{CHECKPOINT_VERSION}: {'upgrade hotloop' if is_newer else 'start a new training'}"
                ", or use the hotloop that wrote it"
            )

    def load(self, name: str = "last") -> Checkpoint:
        """Return a checkpoint.

        Args:
            name: a link, or the name of a checkpoint's directory. If the link `last` is missing,
                `last` means the newest checkpoint.

        Raises:
            CheckpointError: the checkpoint does not exist, is damaged or has another version. The
                message names an intact one.
            MissingExtraError: safetensors is not installed.
        """
        return self._load(name, (_POLICY, _LEARNER))[0]

    def load_policy(
        self,
        name: str = "last",
        *,
        check_import: Callable[[str, str], None] = lambda *_: None,
    ) -> tuple[Network, PolicySnapshot, dict[str, Any]]:
        """Return the network, its parameters and the state of a checkpoint.

        Args:
            name: see `load`.
            check_import: function called with "network" or "head" and the name of a custom one,
                `module:Class`, before its import. It may raise an error.

        Raises:
            CheckpointError: see `load`, or a custom network cannot be created.
        """
        checkpoint, *_ = self._load(name, (_POLICY,))
        for part, key in (("network", "body"), ("head", "head")):
            value = checkpoint.network.get(key)
            class_name = str(value.get("name") if isinstance(value, dict) else value)
            if ":" in class_name:
                check_import(part, class_name)
        try:
            network = network_from_json(checkpoint.network)
        except HotloopError:
            raise
        except Exception as error:  # custom networks may raise any exception
            raise self._damaged_error(name, error) from error
        return network, checkpoint.snapshot, checkpoint.state

    def policy_files(self, name: str = "last") -> dict[str, bytes]:
        """Return the files of a checkpoint that `load_policy` reads, by path in the run.

        Raises:
            CheckpointError: see `load`.
        """
        checkpoint, header, contents = self._load(name, (_POLICY,))
        assert checkpoint.path is not None
        state = {**vars(header), "files": {_POLICY: header.files[_POLICY]}}
        folder = f"{self.path.name}/{checkpoint.path.name}"
        return {f"{folder}/{_POLICY}": contents[_POLICY], f"{folder}/state.json": _seal(state)}

    def rewind(self, checkpoint: Checkpoint, *, best: int | None) -> None:
        """Point the links `last` and `best` at earlier checkpoints.

        Args:
            checkpoint: the existing checkpoint for `last`.
            best: steps of the best checkpoint until then, or None to remove the link.
        """
        self._link("last", _folder_name(checkpoint.state["timesteps"]))
        if best is not None:
            self._link("best", _folder_name(best))
        else:
            (self.path / "best").unlink(missing_ok=True)
        sync(self.path)

    def remove_later(self, checkpoint: Checkpoint) -> None:
        """Remove the checkpoints after this one."""
        last = _step_order(_folder_name(checkpoint.state["timesteps"]))
        for path in self._steps():
            if _step_order(path.name) > last:
                self._remove(path)

    def remove(self, name: str) -> None:
        """Remove a checkpoint without links, if it exists."""
        self._remove(self.path / name)

    def has_any(self) -> bool:
        """Return whether a checkpoint exists, intact or damaged."""
        return bool(self._steps()) or (self.path / "last").is_symlink()

    def has(self, timesteps: int) -> bool:
        """Return whether there is a checkpoint of this step."""
        return (self.path / _folder_name(timesteps) / "state.json").is_file()

    def steps(self) -> list[int]:
        """Return the numbers of transitions of all checkpoints, intact or damaged."""
        return [int(path.name.removeprefix("step-")) for path in self._steps()]

    def clear(self) -> None:
        """Remove all checkpoints."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _write(self, checkpoint: Checkpoint, folder: Path) -> list[Path]:
        policy = dict(checkpoint.snapshot.params)
        scale = checkpoint.snapshot.obs_scale
        if scale is not None:
            policy |= {f"obs_scale.{name}": np.asarray(getattr(scale, name)) for name in _SCALE}
        digests: dict[str, str] = {}
        for name, arrays in ((_POLICY, policy), (_LEARNER, checkpoint.arrays())):
            content = to_safetensors(arrays)
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
        write_new(folder / "state.json", _seal(state))
        return [folder / name for name in (*digests, *checkpoint.files, "state.json")]

    def _find(self, name: str) -> Path:
        """Return a name's directory. Raise CheckpointError for a bad name or a link elsewhere."""
        # A running training may redirect a link at any time.
        if not _NAME.fullmatch(name):
            raise self._missing_error(name)
        path = self.path / name
        with contextlib.suppress(OSError):  # the name is not a link
            target = os.readlink(path)
            if not _STEP.fullmatch(target):
                raise CheckpointError(
                    f"{path} must link to a checkpoint in the same directory, got a link to "
                    f"'{target}': link it to one of these checkpoints"
                )
            path = self.path / target
        if name == "last" and not path.exists():  # killed before the first link was created
            path = (self._steps() or [path])[-1]
        return path

    def _steps(self) -> list[Path]:
        """Return the directories of all checkpoints by step."""
        names = (path.name for path in self.path.glob("step-*") if _STEP.fullmatch(path.name))
        return [self.path / name for name in sorted(names, key=_step_order)]

    def _load(self, name: str, files: Sequence[str]) -> tuple[Checkpoint, _State, dict[str, bytes]]:
        """Return a checkpoint, and its header and contents by file."""
        load = _safetensors().numpy.load
        target = self._find(name)
        if not (_STEP.fullmatch(target.name) and target.exists()):
            raise self._missing_error(name)
        self.check_version(name)
        try:
            header, state, contents = _read_verified(target, files)
            params, *remaining = [dict(load(contents[file])) for file in files]
            mean, std, clip = (params.pop(f"obs_scale.{name}", None) for name in _SCALE)
            scale = None if mean is None or std is None else ObsScale(mean, std, float(clip))
        except Exception as error:  # files may have any content
            if self._find(name) != target:  # a training has just redirected the link
                return self._load(name, files)
            raise self._damaged_error(name, error) from error
        header_keys = vars(header).keys() - {"timesteps"} | {"digest"}
        state = {name: value for name, value in state.items() if name not in header_keys}
        checkpoint = Checkpoint(
            network=header.network,
            snapshot=PolicySnapshot(header.policy_version, params, scale),
            arrays=lambda: _StoredArrays(target, remaining[0] if remaining else {}),
            state=state,
            path=target,
        )
        return checkpoint, header, contents

    def _missing_error(self, name: str) -> CheckpointError:
        present = ", ".join(self.names())
        return CheckpointError(
            f"{self.path.parent} has no checkpoint '{shortened(name)}': it has "
            f"{present or 'none: the run ended before it saved one'}"
        )

    def _damaged_error(self, name: str, error: Exception) -> CheckpointError:
        reason = str(error) if isinstance(error, _Damaged) else f"{type(error).__name__}: {error}"
        intact = self._newest_intact(other_than=self._find(name))
        run = shlex.quote(str(self.path.parent))
        advice = (
            f"the newest intact one is {intact}, use it with `--checkpoint {intact}` "
            f"(`hotloop resume {run} --checkpoint {intact}` continues from it)"
            if intact
            else "no other one is intact: start a new training"
        )
        return CheckpointError(
            f"the checkpoint {self.path / name} is cut short or damaged ({reason}): {advice}"
        )

    def _newest_intact(self, *, other_than: Path) -> str:
        """Return the name of the newest checkpoint that can be loaded, or ""."""
        for path in reversed(self._steps()):
            with contextlib.suppress(Exception):  # files may have any content
                if path != other_than:
                    _read_verified(path, (_POLICY, _LEARNER))
                    return path.name
        return ""

    def _link(self, name: str, target: str) -> None:
        """Point a link at a checkpoint atomically."""
        temp_path = self.path / f".{name}.tmp"
        temp_path.unlink(missing_ok=True)
        temp_path.symlink_to(target)
        os.replace(temp_path, self.path / name)

    def _linked_names(self) -> set[str]:
        if not self.path.is_dir():
            return set()
        return {os.readlink(path) for path in self.path.iterdir() if path.is_symlink()}

    def _prune(self, keep: int) -> None:
        """Remove checkpoints without a link except for the `keep` newest, and old large files."""
        linked = self._linked_names()
        unlinked = [path for path in self._steps() if path.name not in linked]
        for path in unlinked[: max(0, len(unlinked) - keep)]:
            self._remove(path)
        last = self._find("last").name
        for name in LARGE_FILES:
            for path in self.path.glob(f"step-*/{name}"):
                if path.parent.name != last:
                    path.unlink(missing_ok=True)

    def _remove(self, path: Path) -> None:
        """Remove a checkpoint atomically: rename it, then delete the files."""
        with contextlib.suppress(OSError):  # the checkpoint then remains intact
            path.rename(temp_path := path.with_name(f".{path.name}.old"))
            shutil.rmtree(temp_path, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        for path in self.path.glob(".*"):
            if path.is_symlink() or path.is_file():
                with contextlib.suppress(OSError):
                    path.unlink()
            else:
                shutil.rmtree(path, ignore_errors=True)


class _StoredArrays(dict[str, Array]):
    """The arrays of a checkpoint by name."""

    def __init__(self, path: Path, arrays: Mapping[str, Array]) -> None:
        super().__init__(arrays)
        self._path = path

    def __missing__(self, name: str) -> Array:
        raise CheckpointError(
            f"the checkpoint {self._path} has no array `{name}`: it is of another algorithm, "
            "network or version, or was changed; use another one with `--checkpoint`"
        )


def _seal(state: Mapping[str, Any]) -> bytes:
    return (json.dumps(documents.sealed(dict(state)), indent=2) + "\n").encode()


def to_safetensors(arrays: Mapping[str, Array]) -> bytes:
    """Return the content of a safetensors file with these arrays."""
    # safetensors ignores strides.
    contiguous = {name: np.asarray(x, order="C") for name, x in arrays.items()}
    return _safetensors().numpy.save(contiguous)


def _read_verified(
    folder: Path, files: Sequence[str]
) -> tuple[_State, dict[str, Any], dict[str, bytes]]:
    """Return header, state and files, or raise _Damaged if one is missing or has another digest."""
    state = _read_state(folder)
    try:
        header = documents.record(_State, state, ignore_unknown=True)
    except ValueError as error:
        raise _Damaged(f"state.json: {error}") from error
    contents: dict[str, bytes] = {}
    for name in files:
        if name not in header.files:
            raise _Damaged(f"it lacks {name}, like a policy that `hotloop push` has published")
        contents[name] = _read(folder / name)
        if _digest(contents[name]) != header.files[name]:
            raise _Damaged(f"{name} has a wrong digest")
        if name == _POLICY and (bad := unusable_array(_safetensors().numpy.load(contents[name]))):
            raise _Damaged(f"`{bad}` of the policy has NaN, infinite or huge numbers")
    return header, state, contents


def _read_state(folder: Path) -> dict[str, Any]:
    """Return `state.json`, without digest before version 4, or raise _Damaged."""
    try:
        state = documents.parse(_read(folder / "state.json"))
        if not isinstance(state, dict):
            raise _Damaged("state.json must be an object")
        is_older = state.get("checkpoint_version") in range(1, CHECKPOINT_VERSION)
        if is_older or state.get("digest") == documents.digest(state):
            return state
    except (ValueError, RecursionError) as error:
        raise _Damaged(f"state.json: {error}") from error
    raise _Damaged("state.json has a wrong digest")


def _read(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise _Damaged(f"{path.name}: {error.strerror or error}") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _folder_name(timesteps: int) -> str:
    return f"step-{timesteps:012}"


def _step_order(name: str) -> tuple[int, str]:
    """Return a key that sorts checkpoints by step, also those of 10¹² steps and more."""
    return len(name), name


def _safetensors() -> Any:
    with requires_extra("checkpoints need safetensors", "train"):
        import safetensors
        import safetensors.numpy
    return safetensors
