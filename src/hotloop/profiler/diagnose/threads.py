"""Rules on threads and cores: too many threads, busy cores, or only one core in use."""

from __future__ import annotations

import shlex

from hotloop.base.crowding import Crowding
from hotloop.profiler.collect.samples import THREAD_PREFIX
from hotloop.profiler.diagnose.causes import Explanation
from hotloop.profiler.diagnose.evidence import Evidence, total_time
from hotloop.profiler.diagnose.limits import LIMITS
from hotloop.profiler.session import ProfiledProcess, ThreadTotals
from hotloop.timing.table import duration

# Operations over several threads.
_OPERATIONS = ("backward", "optimizer_step")


def _native(process: ProfiledProcess) -> list[ThreadTotals]:
    """Return the threads created by libraries: those that ran no Python, except the main one."""
    python = {sample.thread for sample in process.samples} | {process.pid}
    return [
        thread
        for thread in process.threads
        if thread.number not in python and not thread.name.startswith(THREAD_PREFIX)
    ]


def crowded_cores(evidence: Evidence) -> Explanation | None:
    """Detect a hotloop training with more threads, workers or other programs than cores.

    Its threads wait for a core for 15 % of their runnable time. The training records this itself,
    so no samples are needed.
    """
    crowding = crowding_of(evidence)
    if crowding is None:
        return None
    causes = crowding.causes
    evidences = [
        f"threads waited for a core for {crowding.share:.0%} of their runnable time, "
        f"{crowding.queued_s:.1f} s in total, one thread up to {crowding.longest_s:.1f} s of "
        f"{crowding.seconds:.1f} s",
        f"they were on a core for {crowding.on_core_s:.1f} s in total, "
        f"{crowding.on_core_s / crowding.seconds:.1f} of {crowding.cores} cores on average",
    ]
    if crowding.workers:
        part = crowding.workers_queued_s / crowding.queued_s
        evidences.append(f"{crowding.workers} workers account for {part:.0%} of the wait")
    if crowding.threads > 1:
        evidences.append(f"{crowding.threads} threads of the learner were working")
    before = shlex.quote(evidence.session.directory or "RUN")
    after = shlex.quote(f"{evidence.session.directory or 'RUN'}-after")
    texts = {
        "cores": f"{crowding.cores} core{'s' * (crowding.cores > 1)}",
        "causes": " and ".join(cause for cause, _ in causes),
        "cures": ", and ".join(f"{cure} (now with {cause})" for cause, cure in causes),
        "before": before,
        "after": after,
    }
    saved_ns = evidence.duration_ns * (1.0 - 1.0 / crowding.gain)
    return Explanation(saved_ns, tuple(evidences), texts=texts)


def crowding_of(evidence: Evidence) -> Crowding | None:
    """Return the crowding that a hotloop training recorded, None if there were enough cores."""
    crowding = Crowding.from_json(evidence.session.metadata.get("crowding"))
    return crowding if crowding is not None and crowding.is_crowded else None


def too_many_threads(evidence: Evidence) -> Explanation | None:
    """Detect library threads that compete for the cores.

    They work for at least half as long as the program's own threads and queue for the cores. Either
    working threads wait for 15 % of their time, or there are more library threads than cores and
    their operations are too small to share. If no other program runs, one thread per core is
    10 % faster than a single thread even on small networks.

    Beside a busy neighbor, each operation waits for its thread whose core is taken (`_stalled_ns`).
    """
    if (known := crowding_of(evidence)) is not None and known.has_many_threads:
        return None  # `crowded_cores` reports this with hotloop's own option
    whole, cores = evidence.duration_ns, max(evidence.main.cores, 1)
    native = [thread for process in evidence.session.processes for thread in _native(process)]
    extra = sum(thread.on_core_ns for thread in native)
    waiting = sum(map(_waiting_ns, evidence.session.processes))
    numbers = total_time(evidence.rows)
    # With more threads than cores, they queue for longer than they run.
    is_queue = waiting > extra > 0.2 * numbers.on_core_ns
    stalled = _stalled_ns(evidence)
    if not evidence.has_enough_samples or not (
        extra > LIMITS.library_thread_share * numbers.on_core_ns or is_queue or stalled
    ):
        return None
    if any("/jax/" in frame.file for row in evidence.rows for frame in row.stack.frames):
        return None  # JAX threads do the work that the main thread waits for
    at_work = [thread for thread in native if sum(_runnable(thread)) > 0.02 * whole]
    running = len(at_work) + 1 + evidence.num_side_by_side
    queued = numbers.queued_ns / numbers.ns if numbers.ns else 0.0
    mean_ns = evidence.mean_ns("backward")
    networks = evidence.stage_ns("act", "update")
    # If other programs use the cores, library threads are not the cause of the wait.
    at_work_ns = extra + numbers.on_core_ns
    fills_cores = at_work_ns > LIMITS.filled_cores_share * cores * whole or running > 2 * cores
    is_crowded = (
        running >= cores
        and fills_cores
        and (queued > LIMITS.queued_share or (is_queue and running > cores))
    )
    has_networks = networks > LIMITS.shared_networks_share * whole
    is_tiny = running > cores and mean_ns < LIMITS.tiny_backward_ns and has_networks
    if not (is_crowded or is_tiny or stalled):
        return None
    threads = int(evidence.fact("torch_threads"))
    evidences = [
        f"library threads ({len(at_work)}) were on a core for {extra / 1e9:.1f} s in total, "
        f"{extra / whole:.1f} cores on average, while the program may use {cores} cores",
        f"working threads waited for a core for {queued:.0%} of their time",
    ]
    if stalled:
        evidences += _describe_stalls(evidence)
    elif mean_ns < float("inf"):
        evidences.append(f"a backward pass takes {duration(mean_ns)} on average")
    if threads:
        evidences.append(f"torch uses {threads} threads per operation")
    # Library threads block the cores while they run. Other programs cause the remaining wait.
    # An operation ends when its last thread ends.
    shared = (row for row in evidence.rows if row.stage in ("act", "update"))
    locked = sum(row.weight * row.sample.waits.get("lock", 0) for row in shared)
    saved = max(stalled, min(numbers.queued_ns, extra) + (locked if is_queue else 0.0))
    title = "operations wait for library threads whose cores other programs use"
    return Explanation(
        saved if saved > 0.05 * whole else None,
        tuple(evidences),
        places=evidence.lines_calling(frozenset({"set_num_threads"})),
        texts={"title": title} if stalled else {},
        confidence=0.8 if is_crowded and is_tiny else 0.6 if is_crowded or stalled else 0.5,
    )


def _runnable(thread: ThreadTotals) -> tuple[int, int]:
    return thread.on_core_ns, thread.queued_ns


def _waiting_ns(process: ProfiledProcess) -> int:
    """Return the time for which the library threads of a process were queued for a core."""
    return sum(thread.queued_ns for thread in _native(process))


def _stalled_ns(evidence: Evidence) -> float:
    """Return the time that one thread would save beside a busy neighbor, 0 without such stalls.

    An operation over several threads ends when the last one has got a core. If a neighbor has it,
    the main thread spins (on a core, or queued) and then sleeps on a lock. Networks are stalled for
    a third of their time, library threads are queued for a sixth of it, and some operations take
    much longer than most.
    """
    inside = [row for row in evidence.rows_of(evidence.main) if row.stage in ("act", "update")]
    networks, waiting_ns = total_time(inside), _waiting_ns(evidence.main)
    locked_ns = sum(row.sample.waits.get("lock", 0) for row in inside)
    medians_ns = totals_ns = tail_ns = 0.0
    for _, node in evidence.main.tree.walk():
        if node.name in _OPERATIONS and node.count >= LIMITS.min_operations:
            median_ns = node.count * node.percentile(50)
            medians_ns, totals_ns = medians_ns + median_ns, totals_ns + node.total_ns
            tail_ns += max(0.0, node.total_ns - LIMITS.usual_tail * median_ns)
    has_tail = totals_ns > LIMITS.heavy_tail * medians_ns > 0
    if (
        networks.ns < LIMITS.stalled_share * evidence.duration_ns
        or locked_ns + networks.queued_ns < networks.ns / 3
        or waiting_ns < networks.ns / 6
        or not (has_tail or locked_ns > networks.ns / 10)
    ):
        return 0.0
    # A single thread needs at most the main thread's time on a core, which includes its spinning,
    # and gets the same share of a core as the rest of the program.
    outside = total_time(
        row for row in evidence.rows_of(evidence.main) if row.stage not in ("act", "update")
    )
    queue_ratio = min(
        times.queued_ns / times.on_core_ns
        for times in (outside, networks)
        if times.on_core_ns > 0.1 * networks.on_core_ns
    )
    single_ns = networks.on_core_ns * (1.0 + queue_ratio)
    return min(max(networks.ns - single_ns, tail_ns), networks.ns - networks.on_core_ns)


def _describe_stalls(evidence: Evidence) -> list[str]:
    texts = [f"they were queued for a core for {_waiting_ns(evidence.main) / 1e9:.1f} s"]
    nodes = [node for _, node in evidence.main.tree.walk() if node.name == "backward"]
    slowest = max(nodes, key=lambda node: node.total_ns, default=None)
    if slowest is not None and slowest.count:
        median, high = duration(slowest.percentile(50)), duration(slowest.percentile(99))
        texts.append(f"half of the backward passes take up to {median}, one in a hundred {high}")
    return texts


def cores_taken(evidence: Evidence) -> Explanation | None:
    """Detect other programs that use the cores: this one waits for cores without filling them."""
    whole, cores = evidence.duration_ns, max(evidence.main.cores, 1)
    numbers = total_time(evidence.rows)
    cpu = evidence.cpu_ns
    if crowding_of(evidence) is not None:
        return None  # `crowded_cores` reports this in more detail
    if (
        not evidence.has_enough_samples
        or numbers.queued_ns < LIMITS.taken_queued_share * whole
        or cpu > LIMITS.taken_cores_share * cores * whole
    ):
        return None
    return Explanation(
        numbers.queued_ns,
        (
            f"working threads were queued for a core for {numbers.queued_ns / numbers.ns:.0%} of "
            "their time",
            f"all processes together used {cpu / whole:.1f} of {cores} cores",
        ),
    )


def pegged_core(evidence: Evidence) -> Explanation | None:
    """Detect collecting and learning that alternate on one core while other cores are idle."""
    main, whole = evidence.main, evidence.duration_ns
    training = evidence.training
    if not evidence.has_enough_samples or main.cores < 2 or training.get("has_auto_workers"):
        return None  # `--workers auto` measured that workers are slower in a run of this length
    numbers = total_time(evidence.rows_of(main))
    cpu = evidence.cpu_ns
    is_pegged = numbers.on_core_ns >= LIMITS.pegged_share * whole
    if not is_pegged or cpu > LIMITS.pegged_cores * whole:
        return None
    collecting = evidence.stage_ns("env", "act")
    learning = evidence.stage_ns("update", "replay")
    both = min(collecting, learning)
    if both < LIMITS.alternating_share * whole:
        return None
    texts: dict[str, str] = {}
    if training:
        option = "--schedule async" if training["has_replay"] else "--overlap"
        texts["advice"] = f"Collect while learning, in another process: `--workers 1 {option}`."
    return Explanation(
        LIMITS.overlap_saving * both,
        (
            f"the main thread was on a core for {numbers.on_core_ns / whole:.0%} of the time, all "
            f"processes together used {cpu / whole:.1f} of {main.cores} cores",
            f"collecting takes {evidence.share(collecting):.0%} of the time, learning "
            f"{evidence.share(learning):.0%}, one after the other",
        ),
        texts=texts,
    )
