"""Threads and cores: too many of the first; the second taken by others, or all but one idle."""

from __future__ import annotations

import shlex

from hotloop.profiler.collect.samples import OWN_THREADS
from hotloop.profiler.diagnose.diagnosis import Diagnosis
from hotloop.profiler.diagnose.evidence import Evidence, spent
from hotloop.profiler.session import Process, ThreadTimes
from hotloop.system.crowding import Crowding
from hotloop.timing.table import duration

# A backward pass below this gains nothing from a second thread: handing over a piece of work and
# waiting for it takes 5 to 20 µs an operation, of which it has dozens.
_TINY_NS = 2_000_000


def _native(process: Process) -> list[ThreadTimes]:
    """Threads that libraries have made: in which no Python was seen, the main one left out."""
    python = {sample.thread for sample in process.samples} | {process.pid}
    return [
        thread
        for thread in process.threads
        if thread.number not in python and not thread.name.startswith(OWN_THREADS)
    ]


def crowded_cores(evidence: Evidence) -> Diagnosis | None:
    """A training of hotloop's that has more threads, workers or neighbours than cores.

    Its threads wait for a core for 15 % of the time in which they could run, which it has written
    down by itself: no samples are needed.
    """
    found = crowding_of(evidence)
    if found is None:
        return None
    causes = found.causes
    evidences = [
        f"threads waited for a core for {found.share:.0%} of the time in which they could run, "
        f"{found.queued_s:.1f} s together, the longest of them {found.longest_s:.1f} s of "
        f"{found.seconds:.1f} s",
        f"they were on a core for {found.on_core_s:.1f} s together, "
        f"{found.on_core_s / found.seconds:.1f} of {found.cores} cores all the time",
    ]
    if found.workers:
        part = found.workers_queued_s / found.queued_s
        evidences.append(f"{found.workers} workers had {part:.0%} of the wait")
    if found.threads > 1:
        evidences.append(f"{found.threads} threads of the learner were at work")
    return Diagnosis(
        "too-many-for-the-cores",
        f"more than {found.cores} core{'s' * (found.cores > 1)} can run: "
        + " and ".join(cause for cause, _ in causes),
        0.8,
        found.gain,
        tuple(evidences),
        "; ".join(f"{cause}: {cure}" for cause, cure in causes) + ".",
        f"hotloop compare {shlex.quote(evidence.session.directory or 'RUN')} AGAIN",
        wait="queued",
    )


def crowding_of(evidence: Evidence) -> Crowding | None:
    """What a training of hotloop's says of its cores, if they were too few; else None."""
    found = Crowding.of(evidence.session.about.get("crowding"))
    return found if found is not None and found.is_crowded else None


def too_many_threads(evidence: Evidence) -> Diagnosis | None:
    """Libraries' threads that get in each other's way.

    They are at work for half as long as the program's own and more, and queue for the cores: what
    works waits for one for a seventh of its time, or there are more of them than cores, and what
    they work on is too small to be shared out. As many as cores, and nobody else there, are quicker
    than one by a tenth even on small networks.
    """
    if (known := crowding_of(evidence)) is not None and known.has_many_threads:
        return None  # `crowded_cores` says so, with hotloop's own option
    whole, cores = evidence.whole_ns, max(evidence.main.cores, 1)
    native = [thread for one in evidence.session.processes for thread in _native(one)]
    extra = sum(thread.on_core_ns for thread in native)
    waiting = sum(thread.queued_ns for thread in native)
    numbers = spent(evidence.rows)
    # More than there are cores for, they are in a queue for longer than on one.
    is_queue = waiting > extra > 0.2 * numbers.on_core_ns
    if not evidence.is_sampled or not (extra > 0.5 * numbers.on_core_ns or is_queue):
        return None
    if any("/jax/" in frame.file for row in evidence.rows for frame in row.stack.frames):
        return None  # its threads do what the main one waits for
    at_work = [thread for thread in native if thread.on_core_ns > 0.02 * whole]
    running = len(at_work) + 1 + len(evidence.working)
    queued = numbers.queued_ns / numbers.ns if numbers.ns else 0.0
    mean_ns = evidence.mean_ns("backward")
    networks = evidence.stage_ns("act", "update")
    # Where other programs have the cores, these are not what it waits for.
    at_work_ns = extra + numbers.on_core_ns
    own = at_work_ns > 0.6 * cores * whole or running > 2 * cores
    crowded = running >= cores and own and (queued > 0.15 or (is_queue and running > cores))
    tiny = running > cores and mean_ns < _TINY_NS and networks > 0.3 * whole
    if not (crowded or tiny):
        return None
    threads = int(evidence.fact("torch_threads"))
    evidences = [
        f"{len(at_work)} threads of libraries were on a core for {extra / 1e9:.1f} s together, "
        f"{extra / whole:.1f} cores all the time; {cores} cores are allowed",
        f"what works waited for a core for {queued:.0%} of its time",
    ]
    if mean_ns < float("inf"):
        evidences.append(f"a backward pass takes {duration(mean_ns)} on average")
    if threads:
        evidences.append(f"torch uses {threads} threads an operation")
    # They keep it from a core for as long as they are on one, the rest is other programs; and an
    # operation ends with the last of them.
    shared = (row for row in evidence.rows if row.stage in ("act", "update"))
    locked = sum(row.weight * row.sample.waits.get("lock", 0) for row in shared)
    saved = min(numbers.queued_ns, extra) + (locked if is_queue else 0.0)
    return Diagnosis(
        "too-many-threads",
        "libraries' threads get in each other's way",
        0.8 if crowded and tiny else 0.6 if crowded else 0.5,
        evidence.gain(saved) if saved > 0.05 * whole else None,
        tuple(evidences),
        "Give every process one thread: torch.set_num_threads(1), or OMP_NUM_THREADS=1 "
        "MKL_NUM_THREADS=1 in the environment.",
        f"OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 {evidence.profile_again}",
        evidence.lines_calling(frozenset({"set_num_threads"})),
    )


def cores_taken(evidence: Evidence) -> Diagnosis | None:
    """Other programs have the cores.

    What the program waits for is queued for a core for a third of the time and more, while all its
    processes together use less than two thirds of those that they are allowed.
    """
    whole, cores = evidence.whole_ns, max(evidence.main.cores, 1)
    numbers = spent(evidence.rows)
    cpu = evidence.cpu_ns
    if crowding_of(evidence) is not None:
        return None  # `crowded_cores` says so, and knows more
    if not evidence.is_sampled or numbers.queued_ns < 0.33 * whole or cpu > 0.67 * cores * whole:
        return None
    return Diagnosis(
        "cores-taken",
        "other programs have the cores",
        0.8,
        evidence.gain(numbers.queued_ns),
        (
            f"what works was queued for a core for {numbers.queued_ns / numbers.ns:.0%} of its "
            "time",
            f"all processes together used {cpu / whole:.1f} of {cores} cores",
        ),
        "Run it on a machine of its own, or give the others less (nice, taskset); in a container, "
        "look at its limit of CPU time. What else this report says holds on a crowded machine.",
        "top",
    )


def pegged_core(evidence: Evidence) -> Diagnosis | None:
    """One core works all the time, the others don't, and there are two things to do at a time.

    Environments and learning have to be a quarter of the time each at least: with less, running
    them at the same time saves less than a fifth.
    """
    main, whole = evidence.main, evidence.whole_ns
    if not evidence.is_sampled or main.cores < 2:
        return None
    numbers = spent(evidence.rows_of(main))
    cpu = evidence.cpu_ns
    if numbers.on_core_ns < 0.85 * whole or cpu > 1.3 * whole:
        return None
    collecting = evidence.stage_ns("env", "act")
    learning = evidence.stage_ns("update", "replay")
    both = min(collecting, learning)
    if both < 0.25 * whole:
        return None
    # Handing over fragments and weights takes some of it.
    saved = 0.8 * both
    return Diagnosis(
        "pegged-core",
        "one core does all the work, one thing after another",
        0.4,
        evidence.gain(saved),
        (
            f"the main thread was on a core for {numbers.on_core_ns / whole:.0%} of the time; all "
            f"processes together used {cpu / whole:.1f} of {main.cores} cores",
            f"collecting takes {evidence.share(collecting):.0%} of the time, learning "
            f"{evidence.share(learning):.0%}, one after the other",
        ),
        "Collect while learning, in another process: `hotloop train … --workers 1 --overlap` "
        "(ppo), or --schedule async.",
        evidence.profile_again,
        is_rebuild=True,
    )
