"""The run directory: made once, written as the run goes, read back for evaluation."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.metadata
import json
import math
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hotloop import documents
from hotloop.errors import (
    HotloopError,
    OutputError,
    RunDirectoryError,
    UntrustedError,
    nearest,
    shortened,
)
from hotloop.runs import contents, trust
from hotloop.runs.checkpoints import Checkpoints, write_arrays
from hotloop.system.files import sync, written_whole
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.policies import Network, PolicySnapshot


# Directories that this process has locked: the lock itself keeps out other processes only.
_LOCKED: set[Path] = set()


def default_name(*parts: str) -> str:
    """Return the name of a directory that begins now: `<env>__<algorithm>__<seed>__<time>`."""
    stem = re.sub(r"[^\w.+-]+", "-", "__".join(parts))
    return f"{stem}__{time.strftime('%Y%m%d-%H%M%S')}"


class RunDirectory:
    """One run's directory. Make one with `create`, read one with `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoints")
        self._content: dict[str, Any] = {}
        self._metrics: IO[str] | None = None
        self._lock: IO[bytes] | None = None
        # Which directory it is, as soon as something is written: others may move it.
        self._identity: tuple[int, int] | None = None

    def _repr_html_(self) -> str:
        """Return a table and the learning curve, for notebooks."""
        from hotloop.runs.notebook import run_html

        return run_html(self.path)

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
        defaults: Mapping[str, Any] | None = None,
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
            defaults: of its options that have another value, the default, as JSON holds it.
            network: the name of the user's own network; None for one of ours.

        Raises:
            RunDirectoryError: it exists already, or can't be written.
        """
        if path is None:
            directory = Path(runs_dir) / default_name(env_id, algorithm, str(seed))
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
            run._write_content(
                algorithm=reference,
                env_id=env_id,
                network=network,
                config=dict(config),
                may_change=sorted(may_change),
                defaults=None if defaults is None else dict(defaults),
                versions=_versions(),
                command=sys.argv,
                started_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            )
        except BaseException:
            run.remove()
            raise
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """An existing run directory.

        Raises:
            RunDirectoryError: there is none at `path`, or its `config.json` is damaged.
        """
        directory = Path(path)
        if not (directory / "config.json").exists():
            parent = directory.parent
            siblings = [str(p.parent) for p in parent.glob("*/config.json")]
            raise RunDirectoryError(
                f"expected a run directory (one with a config.json), got {directory}"
                + (nearest(str(directory), siblings) or ": `hotloop runs` lists those made here")
            )
        run = cls(directory)
        run._content = run._read_content()
        return run

    # --- trust ------------------------------------------------------------------------------------

    @property
    def is_own(self) -> bool:
        """Whether this user has written its `config.json`, see `hotloop.runs.trust`."""
        return trust.is_signed(self._content)

    def may_import(self, *, is_trusted: bool) -> bool:
        """Whether it names something to import, and the user has trained it or trusts it."""
        return bool(trust.named_objects(self._content)) and (is_trusted or self.is_own)

    def check_trusted(self, *, is_trusted: bool, only_environment: bool = False) -> None:
        """Refuse to import what this run names if somebody else may have written the names.

        Args:
            is_trusted: whether the user trusts it anyhow.
            only_environment: whether the environment alone is going to be made.

        Raises:
            UntrustedError: says what would be imported.
        """
        names = trust.named_environment if only_environment else trust.named_objects
        if not (is_trusted or self.is_own):
            self._refuse_names([*names(self._content)])

    def _refuse_names(self, names: Collection[str]) -> None:
        if names:
            raise UntrustedError(
                f"{self.path} was not trained by you on this machine, or was changed since, and "
                f"names what would be imported and run: {shortened(', '.join(names))}; look at it, "
                "and pass --trust if you trust who wrote it"
            )

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
            trust.refuse_ways_out(self.path, is_own=self.is_own)
            # No link is followed and nothing is cut: whatever else has that name is left alone.
            access = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = open(os.open(self.path / ".lock", access, 0o666), "r+b", buffering=0)  # noqa: SIM115
            about = os.stat(self.path)
        except OSError as error:
            if isinstance(error, HotloopError):
                raise
            raise self._unwritable(".lock", error) from error
        try:
            # Of this process alone: a child of a killed one must not hold it.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise in_use from error
            raise self._unwritable(".lock", error) from error
        self._lock = file
        self._identity = about.st_dev, about.st_ino
        _LOCKED.add(self.path.resolve())

    def check_present(self) -> None:
        """Make sure that it still is where it was when it was locked.

        Raises:
            RunDirectoryError: it was deleted or moved; nothing is to be made in its place.
        """
        if self._identity is None:
            return
        with contextlib.suppress(OSError):
            about = os.stat(self.path)
            if (about.st_dev, about.st_ino) == self._identity:
                return
        where = "deleted: there is nowhere to write to"
        with contextlib.suppress(OSError, AttributeError):  # unlocked again, or it can't be known
            number = self._lock.fileno()  # pyright: ignore[reportOptionalMemberAccess]
            moved = Path(os.readlink(f"/proc/self/fd/{number}")).parent
            about = os.stat(moved)
            if (about.st_dev, about.st_ino) == self._identity:
                where = (
                    f"moved to {moved}: `hotloop resume {moved}` goes on from its last checkpoint"
                )
        raise RunDirectoryError(f"while {self.path} was written, the directory was {where}")

    def resume(
        self,
        config: Mapping[str, Any],
        *,
        timesteps: int,
        iteration: int,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """Go on from a checkpoint: write down the new configuration, cut the metrics back to it.

        Args:
            config: the algorithm's configuration, as JSON holds it.
            timesteps: of the checkpoint.
            iteration: of the checkpoint; metrics of later ones are removed.
            defaults: see `create`; None: they are not known.

        Raises:
            RunDirectoryError: it can't be written, or is damaged.
        """
        at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        again = {"at": at, "timesteps": timesteps, "versions": _versions()}
        lines = [json.dumps(line) + "\n" for line in self._lines(until=iteration)]
        self._write_text("metrics.jsonl", "".join(lines))
        self._write_content(
            config=dict(config),
            defaults=None if defaults is None else dict(defaults),
            resumed=[*self._content["resumed"], again],
        )

    def replace_config(self, config: Mapping[str, Any]) -> None:
        """Write down another configuration to go on with, as JSON holds it."""
        self._write_content(config=dict(config))

    def add_versions(self, versions: Mapping[str, str]) -> None:
        """Add what the run runs on to the versions in `config.json`."""
        self._write_content(versions={**self._content["versions"], **versions})

    def keep_choice(self, options: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Write down what was chosen where the configuration leaves a choice: a resumed run must
        not choose again.

        Args:
            options: fields of the configuration, and what they are from now on.
            about: why so.

        Raises:
            RunDirectoryError: it can't be written.
        """
        config = self._content["config"]
        asked = {name: config[name] for name in options}
        self._write_content(
            config={**config, **options}, auto={"asked": asked, "chosen": dict(options), **about}
        )

    @property
    def choice(self) -> dict[str, Any] | None:
        """What `keep_choice` has written: `asked`, `chosen` and why; None: nothing."""
        return self._content["auto"]

    def log(self, line: dict[str, Any]) -> None:
        """Append one line to `metrics.jsonl`; numbers that are not finite become null."""
        text = json.dumps({name: _finite(value) for name, value in line.items()}) + "\n"
        try:
            if self._metrics is None:
                self.check_present()
                path = self.path / "metrics.jsonl"
                access = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                # Line-buffered: what a killed run had logged is on disk.
                descriptor = os.open(path, access, 0o666)
                self._metrics = open(descriptor, "a", buffering=1, encoding="utf-8")  # noqa: SIM115
            self._metrics.write(text)
        except OSError as error:
            if isinstance(error, HotloopError):
                raise
            raise self._unwritable("metrics.jsonl", error) from error

    def sync_metrics(self) -> None:
        """Return when all that was logged outlasts a crash of the machine: before a checkpoint.

        Raises:
            RunDirectoryError: it can't be written.
        """
        if self._metrics is None:
            return
        try:
            sync(self.path / "metrics.jsonl", self.path)
        except OSError as error:
            self.check_present()
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
        """Delete the directory of a run that did not begin; not one that has taken its place."""
        with contextlib.suppress(RunDirectoryError):
            self.check_present()
            shutil.rmtree(self.path, ignore_errors=True)
        self.close()

    def _unwritable(self, name: str, error: BaseException) -> RunDirectoryError:
        why = getattr(error, "strerror", None) or error
        return RunDirectoryError(
            f"{self.path / name} can't be written ({why}): free some space, or choose a --run-dir "
            "elsewhere"
        )

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file aside, then rename it, so that no reader sees half of it.

        Raises:
            RunDirectoryError: it can't be written, or the directory is not there any more.
        """
        self._write_text(name, _json(value))

    def _write_content(self, **changed: Any) -> None:
        """Write `config.json` anew, signed."""
        # As it will be read: signed is what others find there.
        content = contents.run_of(documents.parse(_json({**self._content, **changed})))
        content["signature"] = trust.signature(content)
        self.write_json("config.json", content)
        self._content = content

    def _write_text(self, name: str, text: str) -> None:
        self.check_present()
        try:
            with written_whole(self.path / name, durable=True) as aside:
                aside.write_text(text, encoding="utf-8")
        except OutputError as error:
            raise self._unwritable(name, error.__cause__ or error) from error

    def save_arrays(self, name: str, arrays: Mapping[str, Array]) -> Path:
        """Write arrays as `<name>.safetensors`.

        Raises:
            RunDirectoryError: the file can't be written.
        """
        path = self.path / f"{name}.safetensors"
        self.check_present()
        try:
            path.unlink(missing_ok=True)
            write_arrays(arrays, path)
        except OSError as error:
            raise self._unwritable(path.name, error) from error
        return path

    # --- reading ----------------------------------------------------------------------------------

    @property
    def config(self) -> dict[str, Any]:
        """What `config.json` says of the run: algorithm, env_id, network, config, may_change,
        versions, started_at, and in `config` at least seed and total_timesteps."""
        return self._content

    def _read_content(self) -> dict[str, Any]:
        path = self.path / "config.json"
        try:
            return contents.run_of(documents.read(path))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise RunDirectoryError(
                f"{path} is damaged ({why}): restore the file, or train anew"
            ) from error

    @property
    def has_metrics(self) -> bool:
        """Whether an iteration was logged."""
        return (self.path / "metrics.jsonl").exists()

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`; a last line that was cut short is left out.

        Raises:
            RunDirectoryError: a line is damaged.
        """
        return list(self._lines())

    def sound_metrics(self) -> tuple[list[dict[str, Any]], str]:
        """The same up to the first line that is damaged, and what is wrong with it; empty: none."""
        lines: list[dict[str, Any]] = []
        try:
            lines.extend(self._lines())  # what came before an error stays
        except RunDirectoryError as error:
            return lines, str(error)
        return lines, ""

    def _lines(self, until: int | None = None) -> Iterator[dict[str, Any]]:
        """The same up to an iteration, whatever follows."""
        if self.has_metrics:
            yield from contents.lines_in(self.path / "metrics.jsonl", until)

    def load_policy(
        self, name: str = "last", *, is_trusted: bool = False
    ) -> tuple[Network, PolicySnapshot, dict[str, Any]]:
        """Load the network, its parameters and the state of a checkpoint.

        Args:
            name: see `Checkpoints.load`.
            is_trusted: whether a network of somebody's own is imported even if this user has not
                trained this run.

        Raises:
            CheckpointError, MissingExtraError: see `Checkpoints.load_policy`.
            UntrustedError: it is of a network that would have to be imported.
        """
        allowed = {self._content["network"]} if self.is_own else set()

        def check(module: str) -> None:
            if not is_trusted and module not in allowed:
                self._refuse_names([f"a network '{module}'"])

        return self.checkpoints.load_policy(name, check_module=check)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, default=str) + "\n"


def _make(directory: Path) -> bool:
    """Make a directory that outlasts a crash; False where it exists."""
    try:
        missing = [one for one in directory.parents if not one.exists()]
        directory.mkdir(parents=True)
        sync(*(one.parent for one in (directory, *missing)))
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
    for library in ("numpy", "torch", "gymnasium", "mujoco", "envpool", "vizdoom"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[library] = importlib.metadata.version(library)
    versions["platform"] = platform.platform()
    return versions
