"""Reading of the files of a program's processes, merged on one clock.

session = read("profiles/train__20260101-120000")
for process in session.processes:
    print(process.name, process.tree.total_ns)
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hotloop import timing
from hotloop.base import documents
from hotloop.errors import ProfileError
from hotloop.profiler.collect import samples as samples_file
from hotloop.profiler.collect.attach import ATTACHED_FILE
from hotloop.profiler.session import (
    STEP_SPANS,
    ProfiledProcess,
    Session,
    SpanThread,
    UnrecordedProcess,
    other_profilers,
)
from hotloop.profiler.session.executed import note_executed_programs
from hotloop.profiler.session.kineto import read_windows
from hotloop.profiler.session.reused_pids import separate_reused_pids
from hotloop.profiler.session.run_facts import add_run_facts, read_crowding
from hotloop.profiler.session.sample_totals import SampleTotals, sum_samples
from hotloop.profiler.session.saving import SESSION_FILE, is_saved_session, load
from hotloop.profiler.session.syntax import forget_changed_files
from hotloop.profiler.session.validation import check_metadata, check_session
from hotloop.timing import Recording, RecordingError
from hotloop.timing.clocks import read_clocks
from hotloop.timing.recording_state import RecordingState, recording_state

_Item = TypeVar("_Item")

METADATA_FILE = "profile.json"
# A sampled process that ends its own recording writes its last samples just before its end. If they
# are older than this, it could not write them.
_SILENCE_NS = 10_000_000_000
# Time after the last line of samples in which a process of a running program may have started.
_UNLISTED_NS = 5_000_000_000
# The command that starts the script. Forks of the script have it too.
_SCRIPT_COMMAND = re.compile(r"^.*? hotloop\.profiler\.collect\.script \{.*?\} ")


def read(directory: str | os.PathLike[str]) -> Session:
    """Return the session in the directory of a profile or a run, or in a file.

    A file is a saved session, or a recording of another profiler.

    Raises:
        ProfileError: The directory or file does not exist, or has no recordings.
    """
    forget_changed_files()
    root = Path(directory)
    if root.is_file():
        return load(root) if is_saved_session(root) else other_profilers.read(root)
    if not root.is_dir():
        problem = "is neither a directory nor a regular file" if root.exists() else "does not exist"
        raise ProfileError(
            f"expected a directory of a profile or a run, got {root}: it {problem}; "
            "`hotloop profile SCRIPT` creates one"
        )
    # Read the files of the profile's own directory, then those of other directories.
    metadata, problems = _read_metadata(root)
    recordings, recording_problems = _read_recordings([root / "timing", root])
    problems += recording_problems
    totals, sample_problems = _read_samples([root / "timing", root])
    problems += sample_problems
    # A program with its own recording, such as `hotloop train`, may use another directory.
    directories = _other_directories(root, recordings, totals)
    more, other_problems = _read_recordings(sorted(directories))
    recordings = _unique([*recordings, *_during_program(more, totals, metadata)], _identity)
    problems += other_problems
    if not recordings and not totals and (root / SESSION_FILE).is_file():
        return load(root / SESSION_FILE)
    if not recordings and not totals and (root / ATTACHED_FILE).is_file():
        session = other_profilers.read(root / ATTACHED_FILE)
        session.metadata |= metadata
        session.directory, session.problems = str(root), problems
        return session
    if not recordings and not totals:
        inner = sorted(path.parent for path in root.glob("*/timing"))
        advice = f"choose a run in it, such as {inner[0]}" if inner else ""
        raise ProfileError(
            f"expected recordings (*.hlt) in {root} or its `timing` directory, got none: "
            f"{advice or 'profile again, or see `hotloop runs`'}"
            + "".join(f"; {problem}" for problem in problems[:3])
        )
    # Merge, and add the facts of runs and the GPU windows.
    run_directories = (root, *(folder.parent for folder in sorted(directories)))
    metadata |= read_crowding(run_directories, problems)
    session = merge(recordings, totals, directory=str(root), metadata=metadata, problems=problems)
    for run_directory in run_directories:
        add_run_facts(session, run_directory)
    _add_windows(session, [root / "timing", root, *sorted(directories)])
    try:
        check_session(session)
    except ValueError as error:
        raise ProfileError(
            f"the files of {root} contradict each other or are damaged ({error}): profile again"
        ) from error
    return session


def _add_windows(session: Session, directories: Sequence[Path]) -> None:
    windows, problems = read_windows(directories)
    processes = {process.pid: process for process in session.processes}
    session.problems += problems
    session.gpu = [
        window
        for window in windows
        if window.pid in processes
        and processes[window.pid].start_ns <= window.start_ns <= processes[window.pid].end_ns
    ]


def _other_directories(
    root: Path, recordings: Sequence[Recording], totals: Sequence[SampleTotals]
) -> set[Path]:
    """Return the other directories with recordings of the program."""
    # Samples contain the paths at the time of recording. Files of the profile's own directory are
    # read from its present path: it may have been moved, and another may be at the old one.
    paths = {
        Path(os.path.abspath(path))
        for file in totals
        for path in file.last_period.get("recordings", ())
    }
    by_name = {item.path.name: item for item in recordings if item.path is not None}
    roots: list[Path] = []
    for path in sorted(paths):
        if path.name not in by_name or any(path.is_relative_to(top) for top in roots):
            continue
        # The profile, or its `timing` directory if that is read by itself.
        top = next(
            (top for top in path.parents[:2] if (root / path.relative_to(top)).is_file()),
            None,
        )
        if top is not None and _is_copy(by_name[path.name], path):
            roots.append(top)
    directories: set[Path] = set()
    for path in paths:
        top = next((top for top in roots if path.is_relative_to(top)), None)
        if top is None:
            directories.add(path.parent.resolve())
        elif (root / path.relative_to(top)).is_file():
            directories.add((root / path.relative_to(top)).parent.resolve())
    return directories - {root.resolve(), (root / "timing").resolve()}


def _is_copy(recording: Recording, path: Path) -> bool:
    """Return whether a recording is a copy of a file, or was moved from there."""
    try:
        if recording.path is not None and path.samefile(recording.path):
            return True
        return _identity(timing.read(path)) == _identity(recording)
    except (OSError, RecordingError):
        return True


def _during_program(
    recordings: Iterable[Recording],
    totals: Sequence[SampleTotals],
    metadata: Mapping[str, Any],
) -> list[Recording]:
    """Return the recordings that were made while the program ran."""
    if not totals:
        return []
    boot_ids = {item.header["boot_id"] for item in totals}
    start_ns = min(item.header["start_ns"] for item in totals)
    end_ns = metadata.get("end_ns")
    if not isinstance(end_ns, int):
        # The program still runs, or its end is unknown. A process that started after the last line
        # is found once the next line is written.
        end_ns = max(item.end_ns or start_ns for item in totals) + _UNLISTED_NS
    return [
        item
        for item in recordings
        if item.boot_id in boot_ids and item.end_ns >= start_ns and item.start_ns <= end_ns
    ]


def _identity(recording: Recording) -> tuple[int, int, str, str]:
    """Return a key that copies of one recording share."""
    return recording.pid, recording.start_ns, recording.boot_id, recording.component


def _unique(items: Iterable[_Item], identity: Callable[[_Item], object]) -> list[_Item]:
    first: dict[object, _Item] = {}
    for item in items:
        first.setdefault(identity(item), item)
    return list(first.values())


def _read_recordings(directories: Iterable[Path]) -> tuple[list[Recording], list[str]]:
    recordings: list[Recording] = []
    problems: list[str] = []
    for directory in directories:
        try:
            new_recordings, errors = timing.read_directory(directory)
        except RecordingError:
            continue
        recordings += new_recordings
        problems += [str(error) for error in errors]
    return recordings, problems


def _read_samples(directories: Iterable[Path]) -> tuple[list[SampleTotals], list[str]]:
    totals: list[SampleTotals] = []
    problems: list[str] = []
    for directory in directories:
        clocks = read_clocks(directory)
        for path in sorted(directory.glob(f"*{samples_file.SUFFIX}")):
            try:
                samples = samples_file.align_clocks(clocks, samples_file.read(path))
            except (OSError, ValueError) as error:
                problems.append(str(error))
                continue
            totals.append(sum_samples(samples))
            if samples.damage:
                problems.append(
                    f"{path} is damaged in {samples.damage}; this and later lines are ignored"
                )
            if samples.is_torn:
                problems.append(f"{path} ends in the middle of a line, which is ignored")
    return _unique(totals, lambda file: file.identity), problems


def _read_metadata(root: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the content of `profile.json`, and the problems that it names or has."""
    path = root / METADATA_FILE
    try:
        metadata = documents.read(path)
        check_metadata(metadata)
    except FileNotFoundError:
        return {}, []
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return {}, [f"{path} is damaged ({reason}) and is ignored: remove it"]
    return metadata, metadata.pop("problems", [])


# --- merging --------------------------------------------------------------------------------------


def merge(
    recordings: Sequence[Recording],
    samples: Iterable[samples_file.Samples | SampleTotals],
    *,
    directory: str = "",
    metadata: Mapping[str, Any] | None = None,
    problems: Iterable[str] = (),
) -> Session:
    """Return one session of the recordings and samples of a program's processes.

    All times are CLOCK_MONOTONIC, which the processes of one boot share. Files from another machine
    or boot than most files are ignored and reported.

    Raises:
        ProfileError: There are no recordings or samples.
    """
    problems = list(problems)
    # Group the recordings and samples of one machine and boot by process.
    totals = [item if isinstance(item, SampleTotals) else sum_samples(item) for item in samples]
    boots = [item.boot_id for item in recordings] + [item.header["boot_id"] for item in totals]
    boot = max(sorted(set(boots)), key=boots.count, default="")
    by_pid: dict[int, list[Recording]] = {}
    for recording in recordings:
        if recording.boot_id != boot:
            problems.append(f"{recording.path} is from another machine or boot and is ignored")
            continue
        by_pid.setdefault(recording.pid, []).append(recording)
    samples_by_pid: dict[int, list[SampleTotals]] = {}
    for file in totals:
        pid = file.header["pid"]
        if file.header["boot_id"] != boot:
            problems.append(
                f"samples of process {pid} are from another machine or boot and are ignored"
            )
            continue
        samples_by_pid.setdefault(pid, []).append(file)
    separate_reused_pids(by_pid, samples_by_pid)
    # Merge the files of each process.
    processes: list[ProfiledProcess] = []
    for pid in sorted({*by_pid, *samples_by_pid}):
        files = sorted(samples_by_pid.get(pid, []), key=lambda file: file.header["start_ns"])
        process = _merge_process(by_pid.get(pid, []), files)
        processes.append(process)
        for file in files:
            file.add_to(process)
            if file.damage:
                problems.append(
                    f"samples of process {pid} are damaged ({file.damage}) and are ignored "
                    "from there on"
                )
        problems += note_executed_programs(process, files, metadata or {})
        hooks = {
            name: text
            for file in files
            for name, text in file.last_period.get("problems", {}).items()
        }
        problems += [
            f"process {pid}: {name} has an unexpected version, and no spans: {text}"
            for name, text in hooks.items()
        ]
        silent_ns = process.end_ns - process.periods[-1].end_ns if process.periods else 0
        if silent_ns > _SILENCE_NS and process.state == "complete":
            problems.append(
                f"process {pid} wrote no samples in its last {silent_ns / 1e9:.0f} s: was the disk "
                "full, or did it close all descriptors?"
            )
    if not processes:
        raise ProfileError("expected recordings of a program from one machine and boot, got none")
    if any("knows_no_times" in process.facts for process in processes):
        problems.append(
            "this system does not report when a thread is on a core: all time is shown as on a "
            "core, and waiting cannot be distinguished from computing"
        )
    _order_and_name(processes)
    # Report processes of resumed runs.
    main, pids = processes[0], {process.pid for process in processes}
    late_pids = [
        str(process.pid)
        for process in processes[1:]
        if process.parent_pid not in pids and process.start_ns >= main.end_ns
    ]
    if late_pids:
        problems.append(
            f"process {', '.join(late_pids)} started after {main.name} had ended, as in a "
            "resumed run: shares are relative to each process"
        )
    return Session(
        directory, dict(metadata or {}), processes, _unrecorded(processes, totals), problems
    )


def _merge_process(recordings: list[Recording], totals: list[SampleTotals]) -> ProfiledProcess:
    """Return one process, from one or several consecutive recordings and files of samples."""
    recordings = sorted(recordings, key=lambda item: item.start_ns)
    starts = [item.start_ns for item in recordings] + [item.header["start_ns"] for item in totals]
    ends = [item.end_ns for item in recordings]
    ends += [item.end_ns for item in totals if item.end_ns is not None]
    if recordings:
        # A name chosen by the program is more informative than one chosen by the profiler.
        named = [item for item in recordings if item.component not in ("main", "process")]
        name = max(named or recordings[:1], key=lambda item: item.duration_ns).component
        pid, parent_pid = recordings[0].pid, recordings[0].parent_pid
    else:
        header = totals[0].header
        name, pid, parent_pid = header["component"], header["pid"], header["parent_pid"]
    process = ProfiledProcess(
        name=name,
        role="helper",
        pid=pid,
        parent_pid=parent_pid,
        state=recordings[-1].state if recordings else _state_from_samples(totals[-1]),
        start_ns=min(starts),
        end_ns=max(ends, default=min(starts)),
        tree=timing.merge((item.tree() for item in recordings), name),
    )
    for recording in recordings:
        _add_spans(process, recording)
    process.events = process.events[np.argsort(process.events["end_ns"], kind="stable")]
    return process


def _state_from_samples(totals: SampleTotals) -> RecordingState:
    """Return how a process ended, given only its samples."""
    header = totals.header
    if totals.last_period.get("last"):
        return "complete"
    if "ticks" not in header:  # of an earlier version
        return "unknown"
    return recording_state(
        header["pid"], header["ticks"], header.get("host", ""), header["boot_id"]
    )


def _add_spans(process: ProfiledProcess, recording: Recording) -> None:
    """Add the events and spans of a recording. Threads of earlier recordings are reused."""
    threads: list[int] = []
    for thread in recording.threads:
        same = (
            index
            for index, span_thread in enumerate(process.span_threads)
            if span_thread.native_id == thread.ident and index not in threads
        )
        index = next(same, len(process.span_threads))
        if index == len(process.span_threads):
            process.span_threads.append(SpanThread(thread.ident, thread.name))
        threads.append(index)
    events = recording.events.copy()
    events["span"] += len(process.spans)
    events["thread"] = np.array(threads, np.int32)[events["thread"]]
    process.events = np.concatenate((process.events, events))
    process.spans += [span._replace(thread=threads[span.thread]) for span in recording.spans]
    process.open_spans += [
        span._replace(thread=threads[span.thread]) for span in recording.open_spans
    ]


def _order_and_name(processes: list[ProfiledProcess]) -> None:
    """Sort the processes, main first, and set their roles and unique names."""
    pids = {process.pid for process in processes}

    def key(process: ProfiledProcess) -> tuple[bool, int]:
        return process.parent_pid in pids, process.start_ns

    processes.sort(key=key)
    main = processes[0]
    main_ns = main.duration_ns or 1
    commands = {process.pid: process.command for process in processes}
    worker_parents = {main.pid}
    for process in processes[1:]:
        # Processes forked by a fork server have its command too.
        is_fork = process.command == commands.get(process.parent_pid)
        if _is_fork_server(process.command) and not is_fork:
            process.name = "forkserver"
            worker_parents.add(process.pid)
        elif any("ipykernel" in argument for argument in process.command) and not is_fork:
            process.name = "kernel"
    for process in processes:
        names = {path[-1] for path, _ in process.tree.walk()}
        if process is main:
            process.role = "main"
        elif process.name == "forkserver":
            process.role = "helper"
        else:
            is_named = process.name.startswith("worker-")
            computes = process.cpu_ns > 0.01 * main_ns and process.parent_pid in worker_parents
            is_worker = is_named or computes or names.intersection(STEP_SPANS)
            # A resumed run's learner has the same name as the first learner, which did not start
            # it.
            is_resumed = process.name == main.name and process.parent_pid not in pids
            process.role = "worker" if is_worker and not is_resumed else "helper"
    used_names = {process.name for process in processes}
    number = 0
    for process in processes[1:]:
        is_fork = process.name == main.name and process.parent_pid in pids
        if process.role == "worker" and (is_fork or process.name in ("main", "process")):
            while f"worker-{number}" in used_names:
                number += 1
            process.name = f"worker-{number}"
            used_names.add(process.name)
        elif is_fork:
            process.name = "process"  # a fork has the name of its parent
    processes[1:] = sorted(processes[1:], key=lambda item: (item.role, _natural_key(item.name)))
    counts: dict[str, int] = {}
    for process in processes:
        counts[process.name] = counts.get(process.name, 0) + 1
        if counts[process.name] > 1:
            process.name = f"{process.name} ({process.pid})"


def _is_fork_server(command: Sequence[str]) -> bool:
    return any("multiprocessing.forkserver" in argument for argument in command)


def _natural_key(name: str) -> tuple[str, int]:
    stem, _, number = name.rpartition("-")
    return (stem, int(number)) if number.isdecimal() and len(number) < 20 else (name, 0)


def _unrecorded(
    processes: Sequence[ProfiledProcess], sampled: Sequence[SampleTotals]
) -> list[UnrecordedProcess]:
    recorded_pids = {process.pid for process in processes}
    unrecorded: dict[int, UnrecordedProcess] = {}
    for totals in sampled:
        for pid, process in totals.descendants.items():
            if pid not in recorded_pids and ".resource_tracker import main" not in process.command:
                command = _SCRIPT_COMMAND.sub("fork of python ", process.command)
                unrecorded[pid] = process._replace(command=command)
    return [unrecorded[pid] for pid in sorted(unrecorded)]
