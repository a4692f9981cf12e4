"""The run directory: made once, written as the run goes, read back for evaluation."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import math
import os
import platform
import re
import shutil
import sys
import time
from pathlib import Path
from typing import IO, Any

import numpy as np

from hotloop.errors import CheckpointError, MissingExtraError, RunDirectoryError, nearest
from hotloop.policies import ActorCritic, PolicySnapshot

CHECKPOINT_VERSION = 1


class RunDirectory:
    """One run's directory. Make one with `create`, read one with `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._metrics: IO[str] | None = None

    # --- making and opening -----------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | Path | None,
        *,
        runs_dir: str | Path,
        env_id: str,
        algorithm: str,
        seed: int,
        config: Any,
    ) -> RunDirectory:
        """Make a new run directory and write its `config.json`.

        Args:
            path: the directory; None for `<runs_dir>/<env>__<algorithm>__<seed>__<time>`.
            runs_dir: where run directories without a path of their own are made.
            env_id: the environment's name.
            algorithm: the algorithm's name.
            seed: the run's seed.
            config: the algorithm's configuration, a dataclass.

        Raises:
            RunDirectoryError: it exists already, or can't be written.
        """
        if path is None:
            stem = re.sub(r"[^\w.+-]+", "-", f"{env_id}__{algorithm}__{seed}")
            directory = Path(runs_dir) / f"{stem}__{time.strftime('%Y%m%d-%H%M%S')}"
        else:
            directory = Path(path)
        made, count = directory, 1
        while not _make(made):
            if path is not None:
                raise RunDirectoryError(
                    f"the run directory {directory} must be new, but it exists: give another "
                    "--run-dir, or remove it first"
                )
            count += 1  # another run of the same second
            made = directory.with_name(f"{directory.name}-{count}")
        run = cls(made)
        run.write_json(
            "config.json",
            {
                "algorithm": algorithm,
                "env_id": env_id,
                "config": dataclasses.asdict(config),
                "versions": _versions(),
                "command": sys.argv,
                "started_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            },
        )
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """An existing run directory.

        Raises:
            RunDirectoryError: there is none at `path`.
        """
        directory = Path(path)
        if not (directory / "config.json").is_file():
            parent = directory.parent
            siblings = [str(p.parent) for p in parent.glob("*/config.json")]
            raise RunDirectoryError(
                f"expected a run directory (one with a config.json), got {directory}"
                + (nearest(str(directory), siblings) or ": `ls runs` shows the runs made here")
            )
        return cls(directory)

    # --- writing ----------------------------------------------------------------------------------

    def log(self, line: dict[str, Any]) -> None:
        """Append one line to `metrics.jsonl`; numbers that are not finite become null."""
        text = json.dumps({name: _finite(value) for name, value in line.items()}) + "\n"
        try:
            if self._metrics is None:
                # Line-buffered: what a killed run had logged is on disk.
                self._metrics = open(self.path / "metrics.jsonl", "a", buffering=1)  # noqa: SIM115
            self._metrics.write(text)
        except OSError as error:
            raise self._unwritable("metrics.jsonl", error) from error

    def close(self) -> None:
        """Close `metrics.jsonl`."""
        if self._metrics is not None:
            with contextlib.suppress(OSError):  # a full disk: the line that it cut short was said
                self._metrics.close()
            self._metrics = None

    def remove(self) -> None:
        """Delete the directory of a run that did not begin."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def _unwritable(self, name: str, error: Exception) -> RunDirectoryError:
        why = getattr(error, "strerror", None) or error
        return RunDirectoryError(
            f"{self.path / name} can't be written ({why}): free some space, or choose a --run-dir "
            "elsewhere"
        )

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file aside, then rename it, so that no reader sees half of it."""
        target = self.path / name
        aside = target.with_name(f".{target.name}.tmp")
        try:
            with open(aside, "w") as file:
                json.dump(value, file, indent=2, default=str)
                file.write("\n")
            os.replace(aside, target)
        except OSError as error:
            with contextlib.suppress(OSError):
                aside.unlink()
            raise self._unwritable(name, error) from error

    def save_policy(
        self, name: str, network: ActorCritic, snapshot: PolicySnapshot, state: dict[str, Any]
    ) -> Path:
        """Write a checkpoint of a policy: parameters as safetensors, the rest as JSON.

        Args:
            name: of the checkpoint, such as `last`; an older one of that name is replaced, and
                stays if this write fails.
            network: what the parameters are of.
            snapshot: the parameters.
            state: counters and the like, for `state.json`.

        Returns:
            The checkpoint's directory.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        target = self.path / "checkpoints" / name
        aside = target.with_name(f".{name}.tmp")
        replaced = target.with_name(f".{name}.old")
        try:
            for leftover in (aside, replaced):
                shutil.rmtree(leftover, ignore_errors=True)
            aside.mkdir(parents=True)
            # safetensors takes an array's memory as it lies, whatever its strides say.
            tensors = {name: np.ascontiguousarray(x) for name, x in snapshot.params.items()}
            save_file(tensors, aside / "tensors.safetensors")
            content = {
                "checkpoint_version": CHECKPOINT_VERSION,
                "network": network.to_json(),
                "policy_version": snapshot.version,
                **state,
            }
            (aside / "state.json").write_text(json.dumps(content, indent=2) + "\n")
            if target.exists():
                target.rename(replaced)
            aside.rename(target)
        except (OSError, SafetensorError) as error:
            raise self._unwritable(f"checkpoints/{name}", error) from error
        finally:
            if replaced.exists() and not target.exists():
                replaced.rename(target)
            for leftover in (aside, replaced):
                shutil.rmtree(leftover, ignore_errors=True)
        return target

    # --- reading ----------------------------------------------------------------------------------

    @property
    def config(self) -> dict[str, Any]:
        """`config.json`."""
        try:
            content = json.loads((self.path / "config.json").read_text())
            return {name: content[name] for name in ("algorithm", "env_id", "config", "versions")}
        except (ValueError, KeyError, TypeError) as error:
            raise RunDirectoryError(
                f"{self.path / 'config.json'} is damaged ({error}): restore the file, or train anew"
            ) from error

    @property
    def has_metrics(self) -> bool:
        """Whether an iteration was logged."""
        return (self.path / "metrics.jsonl").exists()

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`; a last line that was cut short is left out."""
        path = self.path / "metrics.jsonl"
        if not self.has_metrics:
            return []
        lines = path.read_text().split("\n")
        if lines[-1]:  # no newline at the end: the process died in mid-write
            lines.pop()
        try:
            return [json.loads(line) for line in lines if line]
        except ValueError as error:
            raise RunDirectoryError(
                f"{path} is damaged ({error}): remove the line that is not JSON"
            ) from error

    def load_policy(self, name: str = "last") -> tuple[ActorCritic, PolicySnapshot, dict[str, Any]]:
        """Read a checkpoint back.

        Returns:
            The network, its parameters and the rest of `state.json`.

        Raises:
            CheckpointError: there is none of that name, it is cut short, or newer than this code.
            MissingExtraError: safetensors is not installed.
        """
        try:
            from safetensors import SafetensorError
            from safetensors.numpy import load_file
        except ImportError as error:
            raise MissingExtraError(
                "reading a checkpoint needs safetensors: pip install 'hotloop[train]'"
            ) from error
        target = self.path / "checkpoints" / name
        if not (target / "state.json").is_file():
            present = [p.name for p in sorted((self.path / "checkpoints").glob("[!.]*"))]
            raise CheckpointError(
                f"{self.path} has no checkpoint '{name}'; it has "
                f"{', '.join(present) or 'none: the run ended before it saved one'}"
            )
        try:
            state = json.loads((target / "state.json").read_text())
            if state["checkpoint_version"] > CHECKPOINT_VERSION:
                raise CheckpointError(
                    f"{target} has checkpoint version {state['checkpoint_version']}, this hotloop "
                    f"reads up to {CHECKPOINT_VERSION}: upgrade hotloop"
                )
            network = ActorCritic.from_json(state.pop("network"))
            snapshot = PolicySnapshot(
                version=state["policy_version"], params=load_file(target / "tensors.safetensors")
            )
        except CheckpointError:
            raise
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise CheckpointError(
                f"the checkpoint {target} is cut short or damaged ({error}): take another one, or "
                "train anew"
            ) from error
        return network, snapshot, state


def _make(directory: Path) -> bool:
    """Make a directory; False where it exists."""
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        if isinstance(error, FileExistsError) and directory.exists():
            return False
        raise RunDirectoryError(
            f"the run directory {directory} can't be made ({error.strerror}): give a --run-dir "
            "or --runs-dir that can be written"
        ) from error
    return True


def _finite(value: Any) -> Any:
    """`value`, or None in place of a NaN or an infinity, for which JSON has no word."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _versions() -> dict[str, str]:
    """What the run ran on."""
    from hotloop import __version__

    versions = {"hotloop": __version__, "python": platform.python_version()}
    for library in ("numpy", "torch", "gymnasium", "mujoco", "envpool"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[library] = importlib.metadata.version(library)
    versions["platform"] = platform.platform()
    return versions
