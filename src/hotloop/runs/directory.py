"""The run directory: made once, written as the run goes, read back for evaluation."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import json
import math
import platform
import re
import shutil
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hotloop.errors import OutputError, RunDirectoryError, nearest
from hotloop.files import written_whole
from hotloop.runs.checkpoints import Checkpoints, write_arrays
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.policies import Network, PolicySnapshot


# Directories that this process has locked: the lock itself keeps out other processes only.
_LOCKED: set[Path] = set()
# `may_change` of runs whose config.json does not say it: older ones.
_MAY_CHANGE_UNSAID = (
    *("total_timesteps", "runs_dir", "run_dir", "track"),
    *("checkpoint_interval", "keep_checkpoints", "save_replay", "report_interval"),
    *("eval_interval", "eval_episodes", "eval_videos"),
    *("backend", "step_timeout_s", "max_failures"),
)


class RunDirectory:
    """One run's directory. Make one with `create`, read one with `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoints")
        self._metrics: IO[str] | None = None
        self._lock: IO[str] | None = None

    # --- making and opening -----------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | Path | None,
        *,
        runs_dir: str | Path,
        env_id: str,
        algorithm: str,
        reference: str,
        seed: int,
        config: Mapping[str, Any],
        may_change: Collection[str] = (),
        network: str | None = None,
    ) -> RunDirectory:
        """Make a new run directory, lock it and write its `config.json`.

        Args:
            path: the directory; None for `<runs_dir>/<env>__<algorithm>__<seed>__<time>`.
            runs_dir: where run directories without a path of their own are made.
            env_id: the environment's name.
            algorithm: the algorithm's name.
            reference: what the algorithm is found again by, see `hotloop.algorithms.find`.
            seed: the run's seed.
            config: the algorithm's configuration, as JSON holds it.
            may_change: its options that change nothing that is learned.
            network: the name of the user's own network; None for one of ours.

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
        try:
            run.lock()
            run.write_json(
                "config.json",
                {
                    "algorithm": reference,
                    "env_id": env_id,
                    "network": network,
                    "config": dict(config),
                    "may_change": sorted(may_change),
                    "versions": _versions(),
                    "command": sys.argv,
                    "started_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                },
            )
        except BaseException:
            run.remove()
            raise
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
                + (nearest(str(directory), siblings) or ": `hotloop runs` lists those made here")
            )
        return cls(directory)

    # --- writing ----------------------------------------------------------------------------------

    def lock(self) -> None:
        """Keep other processes from writing here, until `close` or until this process ends.

        Raises:
            RunDirectoryError: another process has it locked, or it can't be written.
        """
        in_use = RunDirectoryError(
            f"{self.path} is being trained already: wait for that to end, or stop it first"
        )
        if self.path.resolve() in _LOCKED:
            raise in_use
        try:
            file = open(self.path / ".lock", "w")  # noqa: SIM115
        except OSError as error:
            raise self._unwritable(".lock", error) from error
        try:
            # Of this process alone: a child of a killed one must not hold it.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise in_use from error
        self._lock = file
        _LOCKED.add(self.path.resolve())

    def resume(self, config: Mapping[str, Any], *, timesteps: int, iteration: int) -> None:
        """Go on from a checkpoint: write down the new configuration, cut the metrics back to it.

        Args:
            config: the algorithm's configuration, as JSON holds it.
            timesteps: of the checkpoint.
            iteration: of the checkpoint; metrics of later ones are removed.

        Raises:
            RunDirectoryError: it can't be written, or is damaged.
        """
        content = self._read_config()
        again = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "timesteps": timesteps,
            "versions": _versions(),
        }
        content["config"] = dict(config)
        content["resumed"] = [*content.get("resumed", []), again]
        kept = [line for line in self.metrics() if line["iteration"] <= iteration]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        self._write_text("metrics.jsonl", text)
        self.write_json("config.json", content)

    def keep_choice(self, options: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Write down what was chosen where the configuration leaves a choice: a resumed run must
        not choose again.

        Args:
            options: fields of the configuration, and what they are from now on.
            about: why so.

        Raises:
            RunDirectoryError: it can't be written, or is damaged.
        """
        content = self._read_config()
        asked = {name: content["config"][name] for name in options}
        content["config"].update(options)
        content["auto"] = {"asked": asked, "chosen": dict(options), **about}
        self.write_json("config.json", content)

    @property
    def choice(self) -> dict[str, Any] | None:
        """What `keep_choice` has written: `asked`, `chosen` and why; None: nothing."""
        return self._read_config().get("auto")

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
        """Close `metrics.jsonl` and unlock."""
        if self._metrics is not None:
            with contextlib.suppress(OSError):  # a full disk: the line that it cut short was said
                self._metrics.close()
            self._metrics = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None
            _LOCKED.discard(self.path.resolve())

    def remove(self) -> None:
        """Delete the directory of a run that did not begin."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def _unwritable(self, name: str, error: BaseException) -> RunDirectoryError:
        why = getattr(error, "strerror", None) or error
        return RunDirectoryError(
            f"{self.path / name} can't be written ({why}): free some space, or choose a --run-dir "
            "elsewhere"
        )

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file aside, then rename it, so that no reader sees half of it."""
        self._write_text(name, json.dumps(value, indent=2, default=str) + "\n")

    def _write_text(self, name: str, text: str) -> None:
        try:
            with written_whole(self.path / name) as aside:
                aside.write_text(text)
        except OutputError as error:
            raise self._unwritable(name, error.__cause__ or error) from error

    def save_arrays(self, name: str, arrays: Mapping[str, Array]) -> Path:
        """Write arrays as `<name>.safetensors`.

        Raises:
            RunDirectoryError: the file can't be written.
        """
        path = self.path / f"{name}.safetensors"
        try:
            write_arrays(arrays, path)
        except OSError as error:
            raise self._unwritable(path.name, error) from error
        return path

    # --- reading ----------------------------------------------------------------------------------

    @property
    def config(self) -> dict[str, Any]:
        """What `config.json` says of the run: algorithm, env_id, network, config, versions."""
        content = self._read_config()
        content = {"network": None, "may_change": [*_MAY_CHANGE_UNSAID], **content}
        try:
            names = ("algorithm", "env_id", "network", "config", "may_change", "versions")
            return {name: content[name] for name in names}
        except KeyError as error:
            raise self._damaged_config(error) from error

    def _read_config(self) -> dict[str, Any]:
        try:
            content = json.loads((self.path / "config.json").read_text())
        except ValueError as error:
            raise self._damaged_config(error) from error
        if not isinstance(content, dict):
            raise self._damaged_config("no JSON object")
        return content

    def _damaged_config(self, why: Any) -> RunDirectoryError:
        return RunDirectoryError(
            f"{self.path / 'config.json'} is damaged ({why}): restore the file, or train anew"
        )

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
        parsed: list[dict[str, Any]] = []
        for number, line in enumerate(lines, 1):
            try:
                parsed += [json.loads(line)] if line else []
            except ValueError as error:
                raise RunDirectoryError(
                    f"{path} is damaged in line {number} ({error}): remove that line"
                ) from error
        return parsed

    def load_policy(self, name: str = "last") -> tuple[Network, PolicySnapshot, dict[str, Any]]:
        """See `Checkpoints.load_policy`."""
        return self.checkpoints.load_policy(name)


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
