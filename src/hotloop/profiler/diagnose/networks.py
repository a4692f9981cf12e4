"""Networks: batches too small, operations too small, and waiting for numbers in mid-update."""

from __future__ import annotations

import re
from functools import lru_cache

from hotloop.profiler.diagnose import source
from hotloop.profiler.diagnose.diagnosis import Diagnosis
from hotloop.profiler.diagnose.evidence import (
    Evidence,
    Row,
    by_line,
    places_of,
    positions,
    runs_user_code,
    spent,
    told_lines,
)
from hotloop.profiler.session import Frame, is_library
from hotloop.timing.table import duration

# Functions in which a sample means Python and its way into torch, and no arithmetic to speak of.
_DISPATCH = re.compile(
    r"/torch/(nn/modules/(module|container)|nn/parameter|optim/|autograd/(graph|grad_mode|function)"
    r"|utils/|_tensor|overrides|_jit_internal|distributions/|_utils|_compile|_dynamo/)"
)


# Stages in which a program may work on tensors by itself.
_AT_WORK = ("other", "update", "act", "replay")


def tiny_batches(evidence: Evidence) -> Diagnosis | None:
    """Actions are chosen for one or two environments at a time.

    A third of the time at least. Eight observations cost a network hardly more than one, as long as
    the way into it costs more than the arithmetic: 28 µs against 21 through 64×64.
    """
    main, whole = evidence.main, evidence.whole_ns
    # Blocked, it waits for what was begun before, as JAX's functions do.
    chosen = spent(row for row in evidence.rows if row.stage == "act")
    acting = chosen.on_core_ns + chosen.queued_ns
    if not evidence.is_sampled or acting < 0.33 * whole:
        return None
    calls, calls_ns = evidence.spans(main, "act")
    steps = evidence.spans_of_all("env_step")[0]
    batch = steps / calls if calls and steps else (evidence.fact("num_envs") or 1.0)
    if batch > 2.5 or (calls and calls_ns / calls > 10e6):
        return None  # ten milliseconds are arithmetic
    side_by_side = 8
    # Eight at once take 1.3 times as long as one.
    saved = acting * (1 - 1.3 * max(batch, 1.0) / side_by_side)
    told = f"; a call takes {duration(calls_ns / calls)}" if calls else ""
    return Diagnosis(
        "tiny-batches",
        "the policy is asked for one or two actions at a time",
        0.5,
        evidence.gain(saved),
        (
            f"choosing actions takes {evidence.share(acting):.0%} of the time",
            f"{batch:.1f} environments a call{told}",
        ),
        f"Step {side_by_side} environments side by side and choose their actions in one call "
        f"(`hotloop train … --num-envs {side_by_side}`); small networks act faster without torch.",
        evidence.profile_again,
        is_rebuild=True,
    )


def host_syncs(evidence: Evidence) -> Diagnosis | None:
    """Numbers are taken out of tensors in mid-update, one by one, or while a device computes.

    Only the time in the line itself counts: samples whose innermost frame is the user's. In a loop
    over elements that is the call; elsewhere the line's arithmetic counts as well, and on a CPU,
    where nothing computes meanwhile, no gain is promised. What is fetched to act on is left out,
    since it has to be.
    """
    if not evidence.is_sampled:
        return None
    rows = [row for row in evidence.rows if _is_sync(row) and evidence.purpose(row) == "update"]
    taken = spent(rows)
    if taken.ns < 0.08 * evidence.whole_ns:
        return None
    dearest = by_line(rows)[0][0]
    call = source.sync_lines(dearest.file)[dearest.line]
    loop = source.loop_around(dearest.file, dearest.line)
    on_device = any("cuda" in thread.name.lower() for thread in evidence.main.threads)
    if loop is not None and not on_device:
        confidence, gain = 0.9, evidence.gain(0.95 * taken.ns)
    elif on_device:
        # Part of the waiting is for arithmetic that has to be done anyway.
        confidence, gain = 0.6, evidence.gain(0.5 * taken.ns)
    else:
        confidence, gain = 0.4, None
    return Diagnosis(
        "host-sync",
        f"{call} in the middle of the update",
        confidence,
        gain,
        (
            f"{evidence.share(taken.ns):.0%} of the time: {told_lines(evidence, rows)}",
            f"`{source.text_at(dearest.file, dearest.line)}`"
            + (f", in the loop from line {loop.first} on" if loop else ""),
        ),
        "Keep metrics and priorities tensors until they are reported, and take them out once, as "
        "a whole: .cpu().numpy() of all, after the optimizer's step.",
        evidence.profile_again,
        places_of(rows),
    )


def _is_sync(row: Row) -> bool:
    return (
        row.stage in ("other", "update", "replay")
        and runs_user_code(row.stack)
        and row.leaf.line in source.sync_lines(row.leaf.file)
    )


def tiny_operations(evidence: Evidence) -> Diagnosis | None:
    """A Python loop that goes through the elements of tensors one by one.

    A loop of the user's own, in a function that has to do with tensors. Nine tenths of its samples
    are in its own lines: it calls no network, no environment and no other function of the user's.
    """
    if not evidence.is_sampled:
        return None
    passing: dict[tuple[str, source.Block], list[Row]] = {}
    own: dict[tuple[str, source.Block], list[Row]] = {}
    for row in evidence.rows:
        for frame, line in zip(row.stack.frames, row.stack.lines, strict=True):
            if not line or is_library(frame) or not source.handles_tensors(frame.file, line):
                continue
            loop = source.loop_around(frame.file, line)
            if loop is None:
                continue
            passing.setdefault((frame.file, loop), []).append(row)
        leaf = row.leaf
        loop = source.loop_around(leaf.file, leaf.line) if positions(row.stack) else None
        is_blocked = row.sample.blocked_ns > 0.5 * row.sample.elapsed_ns
        if loop is not None and not is_blocked and row.stage in _AT_WORK:
            own.setdefault((leaf.file, loop), []).append(row)
    chosen: list[Row] = []
    for key, rows in own.items():
        if key in passing and _is_of_operations(rows, passing[key]):
            syncs = source.sync_lines(key[0])
            chosen += [row for row in rows if row.leaf.line not in syncs]
    taken = spent(chosen)
    if taken.ns < 0.15 * evidence.whole_ns:
        return None
    dearest = by_line(chosen)[0][0]
    return Diagnosis(
        "tiny-operations",
        "a Python loop goes through tensors element by element",
        0.9,
        evidence.gain(0.95 * taken.ns),
        (
            f"{evidence.share(taken.ns):.0%} of the time: {told_lines(evidence, chosen)}",
            f"`{source.text_at(dearest.file, dearest.line)}`, one small operation after another: "
            "each takes some microseconds to reach its arithmetic, which takes nanoseconds",
        ),
        "Write it as operations on whole tensors; over parameters, torch._foreach_… or the "
        "optimizer's fused form.",
        evidence.profile_again,
        places_of(chosen),
    )


def _is_of_operations(own: list[Row], passing: list[Row]) -> bool:
    """Whether a loop's samples are its own lines', and those in C or in torch's thin wrappers."""
    mine = sum(row.sample.count for row in own if _is_operation(row))
    return mine >= 0.9 * sum(row.sample.count for row in passing)


def _is_operation(row: Row) -> bool:
    """A line of the user's, or torch functions below it that are none of a network's."""
    if {"backward", "optimizer_step"}.intersection(row.sample.path):
        return False
    for frame in reversed(row.stack.frames):
        if frame.function == row.leaf.function and frame.file == row.leaf.file:
            return True
        if "/torch/" not in frame.file or re.search(r"/torch/(nn|optim|autograd)/", frame.file):
            return False
    return False


def launch_bound(evidence: Evidence) -> Diagnosis | None:
    """Updates of small networks, in which reaching the arithmetic takes longer than it.

    A profile of Python's frames can't see how long a kernel took, so this is told with care: much
    of the time in updates, backward passes below a millisecond, and samples that lie scattered over
    torch's Python (a quarter and more of an update's) instead of in a few large products.
    """
    updating = evidence.stage_ns("update")
    if not evidence.is_sampled or updating < 0.4 * evidence.whole_ns:
        return None
    mean_ns = evidence.mean_ns("backward")
    rows = [row for row in evidence.rows if row.stage == "update"]
    dispatch = spent(row for row in rows if _is_dispatch(row.stack.frames[-1]))
    share = dispatch.ns / updating
    if mean_ns > 1e6 or share < 0.25:
        return None
    # What a compiled update has no more of, at the least: the way to the arithmetic in Python.
    saved = dispatch.ns
    places = {(row.stack.frames[-1].file, row.stack.lines[-1]) for row in rows}
    return Diagnosis(
        "launch-bound",
        "updates of small networks: reaching the arithmetic takes longer than it",
        0.5,
        evidence.gain(saved),
        (
            f"updates take {evidence.share(updating):.0%} of the time, a backward pass "
            f"{duration(mean_ns)} on average",
            f"{share:.0%} of the updates' samples are in Python of torch's around its operations, "
            f"at {len(places)} places",
        ),
        "Compile the whole update (torch.compile of loss, gradient and optimizer as one; on a GPU "
        "a CUDA graph): `hotloop train … --execution compile`. Without: fused=True for Adam, twin "
        "critics as one batched network.",
        evidence.profile_again,
        is_rebuild=True,
    )


@lru_cache(maxsize=65536)
def _is_dispatch(frame: Frame) -> bool:
    if frame.function.endswith("_engine_run_backward"):
        return False
    return bool(_DISPATCH.search(frame.file))
