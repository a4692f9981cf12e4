"""The run directory: created by a training, written during the run, read by other commands."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import shlex
import shutil
import sys
import time
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hotloop.base import documents
from hotloop.base.files import atomic_write, sync
from hotloop.base.line_checksums import LineChecksums
from hotloop.base.redaction import redacted
from hotloop.errors import (
    HotloopError,
    OutputError,
    RunDirectoryError,
    nearest,
)
from hotloop.runs import file_schemas, module_digests, trust
from hotloop.runs.checkpoints import Checkpoints, to_safetensors
from hotloop.runs.library_versions import library_versions
from hotloop.runs.new_directory import create_directory, default_name
from hotloop.runs.policies import check_one_policy
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.policies import Network, PolicySnapshot


# Directories locked by this process. The file locks exclude other processes only.
_LOCKED: set[Path] = set()


class RunDirectory:
    """The directory of a run. Use `create` for a new one and `open` for an existing one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoints")
        self._content: dict[str, Any] = {}
        self._metrics: IO[str] | None = None
        self._checksums = LineChecksums()
        self._lock: IO[bytes] | None = None
        # Device and inode of the locked directory, which reveal that it was moved or deleted.
        self._identity: tuple[int, int] | None = None

    def _repr_html_(self) -> str:
        """Return a table and the learning curve for notebooks."""
        from hotloop.runs.notebook import run_html

        return run_html(self.path)

    # --- creating and opening ---------------------------------------------------------------------

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
        defaults: Mapping[str, Any] | None = None,
        network: str | None = None,
    ) -> RunDirectory:
        """Create a new run directory, lock it and write its `config.json`.

        Args:
            path: the directory, or None for `<runs_dir>/<env>__<algorithm>__<seed>__<time>`.
            runs_dir: parent of run directories without an explicit path.
            env_id: the environment's name.
            algorithm: the algorithm's name.
            reference: name of the algorithm for `hotloop.algorithms.find`.
            seed: the run's seed.
            config: the algorithm's configuration, as JSON values.
            may_change: options that do not influence the learned policy.
            defaults: default of each option that has another value, as JSON values.
            network: name of the user's own network, or None for a built-in one.

        Raises:
            RunDirectoryError: the directory exists already, or cannot be written.
        """
        if path is not None:
            new_path = create_directory(Path(path), may_rename=False)
        else:
            name = default_name(env_id, algorithm, str(seed))
            new_path = create_directory(Path(runs_dir) / name, may_rename=True)
        run = cls(new_path)
        try:
            run.lock()
            run._write_content(
                algorithm=reference,
                env_id=env_id,
                network=network,
                config=dict(config),
                may_change=sorted(may_change),
                defaults=None if defaults is None else dict(defaults),
                versions=library_versions(),
                command=redacted(sys.argv),
                started_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            )
        except BaseException:
            run.remove()
            raise
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """Return an existing run directory.

        Raises:
            RunDirectoryError: `path` is not a run directory, or its `config.json` is damaged.
        """
        directory = Path(path)
        if not (directory / "config.json").exists():
            inner = sorted(directory.glob("*/config.json"))
            siblings = [file.parent.name for file in directory.parent.glob("*/config.json")]
            advice = nearest(directory.name, siblings, prefix=str(directory.parent / "_")[:-1])
            if inner:
                advice = f": choose a run in it, such as {inner[0].parent}"
            advice = advice or ": `hotloop runs` lists those made here"
            problem = "has no config.json" if directory.is_dir() else "does not exist"
            message = f"expected a run directory, got {directory}, which {problem}{advice}"
            raise RunDirectoryError(message)
        run = cls(directory)
        run._content = run._read_content()
        return run

    # --- trust ------------------------------------------------------------------------------------

    @property
    def is_signed(self) -> bool:
        """Whether this user wrote its `config.json`, see `hotloop.runs.trust`."""
        return trust.is_signed(self._content)

    @property
    def is_changed(self) -> bool:
        """Whether its `config.json` was changed after this user's training had signed it."""
        return trust.is_changed(self._content)

    def sign(self) -> None:
        """Sign the present content of `config.json`, which the user trusts."""
        self.replace_config(self._content["config"])

    def may_import(self, *, is_trusted: bool) -> bool:
        """Whether the run names objects to import, and the user trained or trusts the run."""
        return bool(trust.imported_objects(self._content)) and (is_trusted or self.is_signed)

    def check_trusted(
        self,
        *,
        is_trusted: bool,
        only_environment: bool = False,
        untrusted_options: Collection[str] = (),
    ) -> None:
        """Raise an error if the run may run code and another user may have written it.

        Args:
            is_trusted: whether the user explicitly trusts the run.
            only_environment: whether only the environment will be created.
            untrusted_options: descriptions of options that are not only data.

        Raises:
            UntrustedError: the run is neither trusted nor signed. The message lists the objects.
        """
        if is_trusted:
            return
        self.check_signature()
        if not self.is_signed:
            names = trust.imported_environment if only_environment else trust.imported_objects
            trust.reject(self.path, dict.fromkeys([*names(self._content), *untrusted_options]))

    def check_signature(self) -> None:
        """Check that a run of this user has the content and the modules that it was trained with.

        Raises:
            UntrustedError: `config.json` or one of the modules was changed.
        """
        trust.check_unchanged(self.path, self._content)
        if self.is_signed:
            trust.check_modules(self.path, self._content)

    # --- writing ----------------------------------------------------------------------------------

    def lock(self) -> None:
        """Exclude other writers until `close` or until this process ends.

        Raises:
            RunDirectoryError: another process holds the lock, or the directory cannot be written.
        """
        in_use = RunDirectoryError(
            f"{self.path} is in use by another training: wait until it ends, or stop it first"
        )
        if self.path.resolve() in _LOCKED:
            raise in_use
        try:
            trust.check_links(self.path, is_own_run=self.is_signed)
            # Do not follow links or truncate: the user may have a file of this name.
            access = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = open(os.open(self.path / ".lock", access, 0o666), "r+b", buffering=0)  # noqa: SIM115
            status = os.stat(self.path)
        except OSError as error:
            if isinstance(error, HotloopError):
                raise
            raise self._write_error(".lock", error) from error
        try:
            # A POSIX lock belongs to one process: after a kill, its children do not keep the lock.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise in_use from error
            raise self._write_error(".lock", error) from error
        self._lock = file
        self._identity = status.st_dev, status.st_ino
        _LOCKED.add(self.path.resolve())

    def check_present(self) -> None:
        """Check that the locked directory is at its path. Otherwise, nothing may be created there.

        Raises:
            RunDirectoryError: the directory was deleted or moved.
        """
        if self._identity is None:
            return
        with contextlib.suppress(OSError):
            status = os.stat(self.path)
            if (status.st_dev, status.st_ino) == self._identity:
                return
        problem = "deleted: the run cannot continue"
        with contextlib.suppress(OSError, AttributeError):  # not locked, or a system without /proc
            descriptor = self._lock.fileno()  # pyright: ignore[reportOptionalMemberAccess]
            moved = Path(os.readlink(f"/proc/self/fd/{descriptor}")).parent
            status = os.stat(moved)
            if (status.st_dev, status.st_ino) == self._identity:
                command = f"hotloop resume {shlex.quote(str(moved))}"
                problem = f"moved to {moved}: `{command}` continues from its last checkpoint"
        raise RunDirectoryError(f"during the run, the directory {self.path} was {problem}")

    def resume(
        self,
        config: Mapping[str, Any],
        *,
        timesteps: int,
        iteration: int,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """Store the new configuration, and truncate the metrics to a checkpoint.

        Args:
            config: the algorithm's configuration, as JSON values.
            timesteps: transitions of the checkpoint.
            iteration: iteration of the checkpoint. Metrics of later iterations are removed.
            defaults: see `create`. None if they are unknown.

        Raises:
            RunDirectoryError: the directory cannot be written, or is damaged.
        """
        resumed_at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        entry = {"at": resumed_at, "timesteps": timesteps, "versions": library_versions()}
        self._checksums = LineChecksums()
        lines = [self._metrics_text(line) for line in self._iter_metrics(until=iteration)]
        if iteration and not lines:
            warnings.warn(
                f"{self.path / 'metrics.jsonl'} has no lines: the learning curve begins at "
                f"{timesteps:,} steps",
                RuntimeWarning,
                stacklevel=2,
            )
        self._write_text("metrics.jsonl", "".join(lines))
        self._write_content(
            config=dict(config),
            defaults=None if defaults is None else dict(defaults),
            resumed=[*self._content["resumed"], entry],
        )

    def replace_config(self, config: Mapping[str, Any]) -> None:
        """Store another configuration, as JSON values."""
        self._write_content(config=dict(config))

    def add_versions(self, versions: Mapping[str, str]) -> None:
        """Add versions of libraries to `config.json`."""
        self._write_content(versions={**self._content["versions"], **versions})

    def save_auto_choice(self, options: Mapping[str, Any], details: Mapping[str, Any]) -> None:
        """Store the values chosen for automatic options, so that a resumed run uses them too.

        Args:
            options: chosen values, by field of the configuration.
            details: further entries of `auto`, such as the reason.

        Raises:
            RunDirectoryError: `config.json` cannot be written.
        """
        config = self._content["config"]
        requested = {name: config[name] for name in options}
        self._write_content(
            config={**config, **options},
            auto={"asked": requested, "chosen": dict(options), **details},
        )

    @property
    def auto_choice(self) -> dict[str, Any] | None:
        """The entry of `save_auto_choice` (`asked`, `chosen`, `summary`, …), or None."""
        return self._content["auto"]

    def log(self, line: dict[str, Any]) -> None:
        """Append one line to `metrics.jsonl`. NaN and infinity become null."""
        text = self._metrics_text({name: _finite(value) for name, value in line.items()})
        try:
            if self._metrics is None:
                self.check_present()
                path = self.path / "metrics.jsonl"
                access = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                # Line-buffered, so that a killed run loses no line.
                descriptor = os.open(path, access, 0o666)
                self._metrics = open(descriptor, "a", buffering=1, encoding="utf-8")  # noqa: SIM115
            self._metrics.write(text)
        except OSError as error:
            if isinstance(error, HotloopError):
                raise
            raise self._write_error("metrics.jsonl", error) from error

    def _metrics_text(self, line: Mapping[str, Any]) -> str:
        return self._checksums.add(json.dumps(line)) + "\n"

    def sync_metrics(self) -> None:
        """Write the logged metrics to disk, so that they survive a crash of the machine.

        Raises:
            RunDirectoryError: `metrics.jsonl` cannot be written.
        """
        if self._metrics is None:
            return
        try:
            sync(self.path / "metrics.jsonl", self.path)
        except OSError as error:
            self.check_present()
            raise self._write_error("metrics.jsonl", error) from error

    def close(self) -> None:
        """Close `metrics.jsonl` and unlock."""
        if self._metrics is not None:
            with contextlib.suppress(OSError):  # disk full: `log` has raised an error already
                self._metrics.close()
            self._metrics = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None
            _LOCKED.discard(self.path.resolve())

    def remove(self) -> None:
        """Delete the directory of a run that failed to start, unless another one replaced it."""
        with contextlib.suppress(RunDirectoryError):
            self.check_present()
            shutil.rmtree(self.path, ignore_errors=True)
        self.close()

    def _write_error(self, name: str, error: BaseException) -> RunDirectoryError:
        reason = getattr(error, "strerror", None) or error
        return RunDirectoryError(
            f"{self.path / name} can't be written ({reason}): free some space, or choose a "
            "--run-dir elsewhere"
        )

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file with a digest atomically: write a temporary file, then rename it.

        Raises:
            RunDirectoryError: the file cannot be written, or the directory is gone.
        """
        self._write_text(name, _json(documents.sealed(value)))

    def _write_content(self, **changed: Any) -> None:
        """Rewrite `config.json` with a signature."""
        # Sign the content in the form in which a reader parses it.
        content = file_schemas.storable_config({**self._content, **changed})
        content = file_schemas.parse_config(documents.parse(_json(content)))
        if "config" in changed:
            content["modules"] = module_digests.digests(trust.named_modules(content))
        content["signature"] = trust.signature(content)
        self._write_text("config.json", _json(content))
        self._content = content

    def _write_text(self, name: str, text: str) -> None:
        self.check_present()
        try:
            with atomic_write(self.path / name, durable=True) as temp_path:
                temp_path.write_text(text, encoding="utf-8")
        except OutputError as error:
            raise self._write_error(name, error.__cause__ or error) from error

    def save_arrays(self, name: str, arrays: Mapping[str, Array]) -> Path:
        """Write arrays to `<name>.safetensors` and return its path.

        Raises:
            RunDirectoryError: the file cannot be written.
        """
        path = self.path / f"{name}.safetensors"
        self.check_present()
        try:
            path.unlink(missing_ok=True)
            path.write_bytes(to_safetensors(arrays))
        except OSError as error:
            raise self._write_error(path.name, error) from error
        return path

    # --- reading ----------------------------------------------------------------------------------

    @property
    def config(self) -> dict[str, Any]:
        """Content of `config.json`: algorithm, env_id, network, config, may_change, versions and
        started_at. Its `config` has at least seed and total_timesteps."""
        return self._content

    def _read_content(self) -> dict[str, Any]:
        path = self.path / "config.json"
        try:
            return file_schemas.parse_config(documents.read(path))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise RunDirectoryError(
                f"{path} is damaged ({reason}): restore the file, or start a new training"
            ) from error

    @property
    def has_metrics(self) -> bool:
        """Whether `metrics.jsonl` exists."""
        return (self.path / "metrics.jsonl").exists()

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of `metrics.jsonl`, without an incomplete last line.

        Raises:
            RunDirectoryError: a line is damaged.
        """
        return list(self._iter_metrics())

    def intact_metrics(self) -> tuple[list[dict[str, Any]], str]:
        """Return the lines before the first damaged one, and its error message, else ""."""
        lines: list[dict[str, Any]] = []
        try:
            lines.extend(self._iter_metrics())  # keeps the lines before an error
        except RunDirectoryError as error:
            return lines, str(error)
        return lines, ""

    def _iter_metrics(self, until: int | None = None) -> Iterator[dict[str, Any]]:
        if self.has_metrics:
            yield from file_schemas.read_metrics(self.path / "metrics.jsonl", until)

    def load_policy(
        self, name: str = "last", *, is_trusted: bool = False
    ) -> tuple[Network, PolicySnapshot, dict[str, Any]]:
        """Load the network, its parameters and the state of a checkpoint.

        Args:
            name: see `Checkpoints.load`.
            is_trusted: whether a custom network or head is imported even if another user trained
                the run.

        Raises:
            CheckpointError, MissingExtraError: see `Checkpoints.load_policy`.
            ConfigError: see `check_one_policy`.
            UntrustedError: the checkpoint needs a custom network or head, and the run is not
                trusted.
        """

        def check(part: str, name: str) -> None:
            if not (is_trusted or (self.is_signed and trust.names(self._content, part, name))):
                trust.reject(self.path, [f"a {part} '{name}'"])

        check_one_policy(self.path)
        if not is_trusted:
            self.check_signature()
        return self.checkpoints.load_policy(name, check_import=check)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, default=str) + "\n"


def _finite(value: Any) -> Any:
    """Return `value`, or None for NaN and infinity, which JSON lacks."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
