"""Reads what the processes of a program have left, and merges it on one clock.

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

from hotloop import documents, timing
from hotloop.errors import ProfileError
from hotloop.profiler.collect import samples as samples_file
from hotloop.profiler.session import STEPS, Process, Session, SpanThread, Uncovered
from hotloop.profiler.session.kineto import read_windows
from hotloop.profiler.session.sampled import Sampled, add_up
from hotloop.profiler.session.saving import FILE, load
from hotloop.system.crowding import Crowding
from hotloop.timing import Recording, RecordingError
from hotloop.timing.clocks import clocks_of
from hotloop.timing.reader import State, state_of

_One = TypeVar("_One")

ABOUT = "profile.json"
# A process that ends its recording itself and was sampled writes its last samples in its last
# moments; where they are older than this, it could not.
_SILENCE_NS = 10_000_000_000
# Of a program that has not ended: how long after the last line of samples a process of it may have
# begun. Lines come about once a second.
_UNTOLD_NS = 5_000_000_000
# How we start the script, whose forks have that command too.
_OUR_START = re.compile(r"^.*? -m hotloop\.profiler\.collect\.script \{.*?\} ")


def read(directory: str | os.PathLike[str]) -> Session:
    """Merge all that is in a profile's or a run's directory.

    Raises:
        ProfileError: there is no such directory, or nothing was recorded in it.
    """
    root = Path(directory)
    if root.is_file():
        return load(root)
    if not root.is_dir():
        raise ProfileError(
            f"expected a directory of a profile or a run, got {root}: there is none; "
            "`hotloop profile SCRIPT` makes one"
        )
    about = _about(root)
    recordings, problems = _recordings([root / "timing", root])
    sampled, torn = _samples([root / "timing", root])
    problems += torn
    # A program that records by itself, as `hotloop train` does, does so where it wants to.
    elsewhere = _elsewhere(root, recordings, sampled)
    more, others = _recordings(sorted(elsewhere))
    recordings = _once([*recordings, *_of_this_program(more, sampled, about)], _identity)
    problems += others
    if not recordings and not sampled and (root / FILE).is_file():
        return load(root / FILE)
    if not recordings and not sampled:
        raise ProfileError(
            f"expected recordings (*.hlt) in {root} or its `timing` directory, got none: profile "
            "again, or look at `hotloop runs`" + "".join(f"; {problem}" for problem in problems[:3])
        )
    problems += about.get("problems", [])
    about |= _crowding((root, *(place.parent for place in sorted(elsewhere))))
    session = merge(recordings, sampled, directory=str(root), about=about, problems=problems)
    for run in (root, *(place.parent for place in sorted(elsewhere))):
        _add_facts_of_run(session, run)
    _add_windows(session, [root / "timing", root, *sorted(elsewhere)])
    return session


def _add_windows(session: Session, directories: Sequence[Path]) -> None:
    """Windows on GPUs, of processes of this program."""
    windows, problems = read_windows(directories)
    lived = {process.pid: process for process in session.processes}
    session.problems += problems
    session.gpu = [
        one
        for one in windows
        if one.pid in lived and lived[one.pid].start_ns <= one.start_ns <= lived[one.pid].end_ns
    ]


def _elsewhere(
    root: Path, recordings: Sequence[Recording], sampled: Sequence[Sampled]
) -> set[Path]:
    """Other directories that the program recorded to, as far as they are there.

    Samples name them as they were then. What lay in the profile's own directory is taken from where
    the profile is now: it may have been copied, or moved, and its place may hold another one.
    """
    named = {
        Path(os.path.abspath(path)) for one in sampled for path in one.last.get("recordings", ())
    }
    own = {one.path.name: one for one in recordings if one.path is not None}
    homes: list[Path] = []
    for path in sorted(named):
        if path.name not in own or any(path.is_relative_to(home) for home in homes):
            continue
        # The profile, or its `timing` directory where that is read by itself.
        home = next(
            (home for home in path.parents[:2] if (root / path.relative_to(home)).is_file()), None
        )
        if home is not None and _is_copy(own[path.name], path):
            homes.append(home)
    found: set[Path] = set()
    for path in named:
        home = next((home for home in homes if path.is_relative_to(home)), None)
        if home is None:
            found.add(path.parent.resolve())
        elif (root / path.relative_to(home)).is_file():
            found.add((root / path.relative_to(home)).parent.resolve())
    return found - {root.resolve(), (root / "timing").resolve()}


def _is_copy(one: Recording, path: Path) -> bool:
    """Whether a recording was copied from a file, or is what was moved away from there."""
    try:
        if one.path is not None and path.samefile(one.path):
            return True
        return _identity(timing.read(path)) == _identity(one)
    except (OSError, RecordingError):
        return True


def _of_this_program(
    recordings: Iterable[Recording],
    sampled: Sequence[Sampled],
    about: Mapping[str, Any],
) -> list[Recording]:
    """Those of a directory that were made while the program ran, of all its runs."""
    if not sampled:
        return []
    boots = {one.about["boot_id"] for one in sampled}
    began_ns = min(one.about["start_ns"] for one in sampled)
    ended_ns = about.get("end_ns")
    if not isinstance(ended_ns, int):
        # It still runs, or nobody saw its end: a process that began after the last line is found
        # with the next one.
        ended_ns = max(one.end_ns or began_ns for one in sampled) + _UNTOLD_NS
    return [
        one
        for one in recordings
        if one.boot_id in boots and one.end_ns >= began_ns and one.start_ns <= ended_ns
    ]


def _identity(one: Recording) -> tuple[int, int, str, str]:
    """What is the same of one recording in two files."""
    return one.pid, one.start_ns, one.boot_id, one.component


def _once(found: Iterable[_One], identity: Callable[[_One], object]) -> list[_One]:
    """The first of each."""
    first: dict[object, _One] = {}
    for one in found:
        first.setdefault(identity(one), one)
    return list(first.values())


def _add_facts_of_run(session: Session, root: Path) -> None:
    """How many environments a run of hotloop's steps at once, which its spans don't say."""
    try:
        config = documents.read(root / "config.json")["config"]
        num_envs, workers = int(config["num_envs"]), int(config.get("workers") or 0)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return
    for process in session.processes:
        each = num_envs // workers if workers and process.role == "worker" else num_envs
        process.facts.setdefault("num_envs", float(each))


def _crowding(runs: Iterable[Path]) -> dict[str, Any]:
    """How long threads of a run of hotloop's waited for cores, as `about` has it."""
    for run in runs:
        try:
            found = Crowding.of(documents.read(run / "cores.json"))
        except (OSError, ValueError):
            continue
        if found is not None:
            return {"crowding": vars(found)}
    return {}


def _recordings(directories: Iterable[Path]) -> tuple[list[Recording], list[str]]:
    found: list[Recording] = []
    problems: list[str] = []
    for directory in directories:
        try:
            more, errors = timing.read_directory(directory)
        except RecordingError:
            continue
        found += more
        problems += [str(error) for error in errors]
    return found, problems


def _samples(directories: Iterable[Path]) -> tuple[list[Sampled], list[str]]:
    found: list[Sampled] = []
    problems: list[str] = []
    for directory in directories:
        clocks = clocks_of(directory)
        for path in sorted(directory.glob(f"*{samples_file.SUFFIX}")):
            try:
                one = samples_file.told_by(clocks, samples_file.read(path))
            except (OSError, ValueError) as error:
                problems.append(str(error))
                continue
            found.append(add_up(one))
            if one.is_torn:
                problems.append(f"{path} ends in the middle of a line, which is left out")
    return _once(found, lambda one: one.identity), problems


def _about(root: Path) -> dict[str, Any]:
    try:
        about = documents.read(root / ABOUT)
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


# --- merging --------------------------------------------------------------------------------------


def merge(
    recordings: Sequence[Recording],
    files: Iterable[samples_file.Samples | Sampled],
    *,
    directory: str = "",
    about: Mapping[str, Any] | None = None,
    problems: Iterable[str] = (),
) -> Session:
    """One session of the recordings and samples of a program's processes.

    All times are CLOCK_MONOTONIC's, which processes of one boot share; what is of another machine
    or boot than most is left out and named.

    Raises:
        ProfileError: nothing is left.
    """
    problems = list(problems)
    sampled = [one if isinstance(one, Sampled) else add_up(one) for one in files]
    boots = [one.boot_id for one in recordings] + [one.about["boot_id"] for one in sampled]
    boot = max(sorted(set(boots)), key=boots.count, default="")
    by_pid: dict[int, list[Recording]] = {}
    for one in recordings:
        if one.boot_id != boot:
            problems.append(f"{one.path} is of another machine or boot and is left out")
            continue
        by_pid.setdefault(one.pid, []).append(one)
    samples_by_pid: dict[int, list[Sampled]] = {}
    for one in sampled:
        pid = one.about["pid"]
        if one.about["boot_id"] != boot:
            problems.append(
                f"samples of process {pid} are of another machine or boot and are left out"
            )
            continue
        samples_by_pid.setdefault(pid, []).append(one)
    processes: list[Process] = []
    for pid in sorted({*by_pid, *samples_by_pid}):
        own = sorted(samples_by_pid.get(pid, []), key=lambda one: one.about["start_ns"])
        process = _process(by_pid.get(pid, []), own)
        processes.append(process)
        for one in own:
            one.add_to(process)
            if one.damage:
                problems.append(
                    f"samples of process {pid} are damaged ({one.damage}) and are left out from "
                    "there on"
                )
        hooks = {name: text for one in own for name, text in one.last.get("problems", {}).items()}
        problems += [
            f"process {pid}: {name} is another one than was thought of, and has no spans: {text}"
            for name, text in hooks.items()
        ]
        silent_ns = process.end_ns - process.periods[-1].end_ns if process.periods else 0
        if silent_ns > _SILENCE_NS and process.state == "complete":
            problems.append(
                f"process {pid} left no samples of its last {silent_ns / 1e9:.0f} s: was the disk "
                "full?"
            )
    if not processes:
        raise ProfileError("expected recordings of a program, got none of one machine and boot")
    if any("knows_no_times" in process.facts for process in processes):
        problems.append(
            "this system does not say when a thread is on a core: all time is shown as on a core, "
            "and waiting is not told from computing"
        )
    _order_and_name(processes)
    main, pids = processes[0], {process.pid for process in processes}
    again = [
        str(process.pid)
        for process in processes[1:]
        if process.parent_pid not in pids and process.start_ns >= main.end_ns
    ]
    if again:
        problems.append(
            f"process {', '.join(again)} began after {main.name} had ended, as a resumed run's "
            "does: shares are each process's own"
        )
    return Session(
        directory, dict(about or {}), processes, _uncovered(processes, sampled), problems
    )


def _process(recordings: list[Recording], sampled: list[Sampled]) -> Process:
    """One process; a program may have begun more than one recording, one after another."""
    recordings = sorted(recordings, key=lambda one: one.start_ns)
    starts = [one.start_ns for one in recordings] + [one.about["start_ns"] for one in sampled]
    ends = [one.end_ns for one in recordings]
    ends += [one.end_ns for one in sampled if one.end_ns is not None]
    if recordings:
        # What a program calls itself says more than what its profile began it as.
        own = [one for one in recordings if one.component not in ("main", "process")]
        name = max(own or recordings, key=lambda one: one.duration_ns).component
        pid, parent_pid = recordings[0].pid, recordings[0].parent_pid
    else:
        about = sampled[0].about
        name, pid, parent_pid = about["component"], about["pid"], about["parent_pid"]
    process = Process(
        name=name,
        role="helper",
        pid=pid,
        parent_pid=parent_pid,
        state=recordings[-1].state if recordings else _state(sampled[-1]),
        start_ns=min(starts),
        end_ns=max(ends, default=min(starts)),
        tree=timing.merge((one.tree() for one in recordings), name),
    )
    for one in recordings:
        _add_spans(process, one)
    process.events = process.events[np.argsort(process.events["end_ns"], kind="stable")]
    return process


def _state(sampled: Sampled) -> State:
    """How a process ended, by its samples alone."""
    about = sampled.about
    if sampled.last.get("last"):
        return "complete"
    if "ticks" not in about:  # of an earlier version
        return "unknown"
    return state_of(about["pid"], about["ticks"], about.get("host", ""), about["boot_id"])


def _add_spans(process: Process, recording: Recording) -> None:
    """A recording's events and open spans; its threads are those of the recordings before it."""
    threads: list[int] = []
    for thread in recording.threads:
        same = (
            number
            for number, known in enumerate(process.span_threads)
            if known.number == thread.ident and number not in threads
        )
        number = next(same, len(process.span_threads))
        if number == len(process.span_threads):
            process.span_threads.append(SpanThread(thread.ident, thread.name))
        threads.append(number)
    events = recording.events.copy()
    events["span"] += len(process.spans)
    events["thread"] = np.array(threads, np.int32)[events["thread"]]
    process.events = np.concatenate((process.events, events))
    process.spans += [one._replace(thread=threads[one.thread]) for one in recording.spans]
    process.open_spans += [one._replace(thread=threads[one.thread]) for one in recording.open_spans]


def _order_and_name(processes: list[Process]) -> None:
    """Main first; roles; names that are unique."""
    pids = {process.pid for process in processes}

    def key(process: Process) -> tuple[bool, int]:
        return process.parent_pid in pids, process.start_ns

    processes.sort(key=key)
    main = processes[0]
    whole = main.duration_ns or 1
    commands = {process.pid: process.command for process in processes}
    makers = {main.pid}
    for process in processes[1:]:
        # What a fork server forks has its command too.
        is_fork = process.command == commands.get(process.parent_pid)
        if _is_fork_server(process.command) and not is_fork:
            process.name = "forkserver"
            makers.add(process.pid)
    for process in processes:
        names = {path[-1] for path, _ in process.tree.walk()}
        if process is main:
            process.role = "main"
        elif process.name == "forkserver":
            process.role = "helper"
        else:
            is_named = process.name.startswith("worker-")
            computes = process.cpu_ns > 0.01 * whole and process.parent_pid in makers
            is_worker = is_named or computes or names.intersection(STEPS)
            process.role = "worker" if is_worker else "helper"
    taken = {process.name for process in processes}
    number = 0
    for process in processes[1:]:
        if process.role == "worker" and not process.name.startswith("worker-"):
            while f"worker-{number}" in taken:
                number += 1
            process.name = f"worker-{number}"
            taken.add(process.name)
        elif process.name == main.name and process.parent_pid in pids:
            process.name = "process"  # a fork, by the name of what it was forked from
    processes[1:] = sorted(processes[1:], key=lambda one: (one.role, _natural(one.name)))
    seen: dict[str, int] = {}
    for process in processes:
        seen[process.name] = seen.get(process.name, 0) + 1
        if seen[process.name] > 1:
            process.name = f"{process.name} ({process.pid})"


def _is_fork_server(command: Sequence[str]) -> bool:
    return any("multiprocessing.forkserver" in argument for argument in command)


def _natural(name: str) -> tuple[str, int]:
    stem, _, number = name.rpartition("-")
    return (stem, int(number)) if number.isdigit() else (name, 0)


def _uncovered(processes: Sequence[Process], sampled: Sequence[Sampled]) -> list[Uncovered]:
    covered = {process.pid for process in processes}
    found: dict[int, Uncovered] = {}
    for one in sampled:
        for pid, other in one.others.items():
            if pid not in covered and "multiprocessing.resource_tracker" not in other.command:
                command = _OUR_START.sub("fork of python ", other.command)
                found[pid] = other._replace(command=command)
    return [found[pid] for pid in sorted(found)]
