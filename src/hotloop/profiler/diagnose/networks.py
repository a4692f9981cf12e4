"""Rules on networks: small batches, small operations, and synchronization during updates."""

from __future__ import annotations

import re
from math import inf

from hotloop.profiler.diagnose import source
from hotloop.profiler.diagnose.causes import Explanation
from hotloop.profiler.diagnose.evidence import (
    Evidence,
    SampleRow,
    describe_lines,
    runs_user_code,
    time_by_line,
    top_places,
    total_time,
    user_positions,
)
from hotloop.profiler.diagnose.libraries import is_core
from hotloop.profiler.diagnose.limits import LIMITS
from hotloop.profiler.session import is_library
from hotloop.profiler.session.catalogues import is_in
from hotloop.timing.table import duration

# Stages in which a program may process tensors itself.
_OPERATION_STAGES = ("other", "update", "act", "replay")


def tiny_batches(evidence: Evidence) -> Explanation | None:
    """Detect policies that choose actions for only one or two environments at a time."""
    main, whole = evidence.main, evidence.duration_ns
    # Blocked time is a wait for earlier work, as in JAX, and does not count.
    chosen = total_time(row for row in evidence.rows if row.stage == "act")
    acting = chosen.on_core_ns + chosen.queued_ns
    if not evidence.has_enough_samples or acting < LIMITS.acting_share * whole:
        return None
    calls, calls_ns = evidence.span_totals(main, "act")
    steps = evidence.span_totals_of_all("env_step")[0]
    batch = steps / calls if calls and steps else (evidence.fact("num_envs") or 1.0)
    if batch > LIMITS.small_batch or (calls and calls_ns / calls > LIMITS.arithmetic_call_ns):
        return None
    side_by_side = 8
    saved = acting * (1 - LIMITS.batch_of_eight_cost * max(batch, 1.0) / side_by_side)
    call_time = f", a call takes {duration(calls_ns / calls)}" if calls else ""
    return Explanation(
        saved,
        (
            f"choosing actions takes {evidence.share(acting):.0%} of the time",
            f"{batch:.1f} environments per call{call_time}",
        ),
        texts={"num_envs": side_by_side},
    )


def host_syncs(evidence: Evidence) -> Explanation | None:
    """Detect numbers extracted from tensors during updates, singly or while a device computes.

    Samples in functions that the line calls do not count. In a loop over elements the rest is the
    call and the iteration. Elsewhere it includes the line's arithmetic, so no gain is promised on a
    CPU, where nothing computes meanwhile. Fetching actions is necessary and does not count.
    """
    if not evidence.has_enough_samples:
        return None
    rows = [row for row in evidence.rows if _is_sync(row) and evidence.purpose(row) == "update"]
    totals = total_time(rows)
    if totals.ns < LIMITS.sync_share * evidence.duration_ns:
        return None
    top = time_by_line(rows)[0][0]
    call = source.sync_lines(top.file)[top.line]
    loop = source.loop_around(top.file, top.line)
    on_device = any("cuda" in thread.name.lower() for thread in evidence.main.threads)
    if loop is not None and not on_device:
        confidence, saved = 0.9, LIMITS.operation_saving * totals.ns
    elif on_device:
        confidence, saved = 0.6, LIMITS.device_sync_saving * totals.ns
    else:
        confidence, saved = 0.4, None
    return Explanation(
        saved,
        (
            f"{evidence.share(totals.ns):.0%} of the time: {describe_lines(evidence, rows)}",
            f"`{source.source_line(top.file, top.line)}`"
            + (f" in the loop that starts at line {loop.first}" if loop else ""),
        ),
        rows,
        top_places(rows),
        {"call": call},
        confidence,
    )


def _is_sync(row: SampleRow) -> bool:
    file, line = row.leaf.file, row.leaf.line
    if row.stage not in ("other", "update", "replay") or line not in source.sync_lines(file):
        return False
    # A comprehension also spends time on the iteration over a tensor.
    loop = source.loop_around(file, line)
    is_iteration = loop is not None and source.is_comprehension(file, loop)
    return runs_user_code(row.stack) or (is_iteration and not is_core(row))


def tiny_operations(evidence: Evidence) -> Explanation | None:
    """Detect Python loops that process the elements of tensors one by one.

    The loop is the user's, in a function that uses tensors. 90 % of its samples are on its own
    lines, so it calls no network, no environment and no other function of the user's.
    """
    if not evidence.has_enough_samples:
        return None
    # Group the samples by loop, with and without calls of other functions.
    inclusive: dict[tuple[str, source.CodeBlock], list[SampleRow]] = {}
    direct: dict[tuple[str, source.CodeBlock], list[SampleRow]] = {}
    for row in evidence.rows:
        for frame, line in zip(row.stack.frames, row.stack.lines, strict=True):
            if not line or is_library(frame) or not source.handles_tensors(frame.file, line):
                continue
            loop = source.loop_around(frame.file, line)
            if loop is None:
                continue
            inclusive.setdefault((frame.file, loop), []).append(row)
        leaf = row.leaf
        loop = source.loop_around(leaf.file, leaf.line) if user_positions(row.stack) else None
        block = source.statement_at(leaf.file, leaf.line)
        # A matrix product may be a large operation, and samples do not show its size.
        is_product = source.multiplies_matrices(leaf.file, block)
        if loop is None or row.is_blocked or is_product:
            continue
        if row.stage in _OPERATION_STAGES:
            direct.setdefault((leaf.file, loop), []).append(row)
    # Select the loops that consist of operations on tensors.
    chosen: list[SampleRow] = []
    for key, rows in direct.items():
        if key in inclusive and _consists_of_operations(rows, inclusive[key]):
            syncs = source.sync_lines(key[0])
            chosen += [row for row in rows if row.leaf.line not in syncs]
    totals = total_time(chosen)
    if totals.ns < LIMITS.structure_share * evidence.duration_ns:
        return None
    top = time_by_line(chosen)[0][0]
    return Explanation(
        LIMITS.operation_saving * totals.ns,
        (
            f"{evidence.share(totals.ns):.0%} of the time: {describe_lines(evidence, chosen)}",
            f"`{source.source_line(top.file, top.line)}` is a small operation: it has some "
            "microseconds of overhead for nanoseconds of arithmetic",
        ),
        chosen,
        top_places(chosen),
    )


def _consists_of_operations(direct: list[SampleRow], inclusive: list[SampleRow]) -> bool:
    """Return whether a loop's samples are on its own lines, in C or in torch's thin wrappers."""
    count = sum(row.sample.count for row in direct if _is_operation(row))
    return count >= LIMITS.operations_share * sum(row.sample.count for row in inclusive)


def _is_operation(row: SampleRow) -> bool:
    """Return whether a row is on a user's line or in torch functions that are no network."""
    if {"backward", "optimizer_step"}.intersection(row.sample.path):
        return False
    for frame in reversed(row.stack.frames):
        if frame.function == row.leaf.function and frame.file == row.leaf.file:
            return True
        if "/torch/" not in frame.file or re.search(r"/torch/(nn|optim|autograd)/", frame.file):
            return False
    return False


def stable_baselines3(evidence: Evidence) -> Explanation | None:
    """Detect on-policy classes of Stable-Baselines3 on small networks: hotloop has faster ones."""
    names: dict[str, float] = {}
    for row in evidence.rows:
        frames = row.stack.frames
        if any("/hotloop/accelerate/" in frame.file for frame in frames):
            return None
        known = next((frame for frame in frames if is_in("accelerated", frame)), None)
        if known is not None and row.stage in ("update", "act"):
            name = known.function.split(".")[0]
            names[name] = names.get(name, 0.0) + row.ns
    name = max(names, key=lambda name: names[name], default="")
    mean_ns = evidence.mean_ns("backward")
    # RecurrentPPO calls its LSTM for each step of a sequence, so that large ones waste time too.
    is_large = mean_ns > LIMITS.launch_bound_ns and name != "RecurrentPPO"
    if not name or is_large or evidence.gpu is not None or not evidence.has_enough_samples:
        return None
    return Explanation(
        LIMITS.accelerated_saving * names[name],
        (
            f"its updates and acting take {evidence.share(names[name]):.0%} of the time"
            + (f", a backward pass {duration(mean_ns)} on average" if mean_ns < inf else ""),
        ),
        places=evidence.lines_calling(frozenset({name})),
        texts={"name": name},
    )


def launch_bound(evidence: Evidence) -> Explanation | None:
    """Detect updates of small networks that spend more time on overhead than on arithmetic.

    A profile of Python frames does not show kernel times, so the conditions are strict.
    """
    if evidence.training.get("execution", "eager") != "eager":
        return None  # the training already uses compiled updates or CUDA graphs
    updating = evidence.stage_ns("update")
    is_small = updating < LIMITS.launch_bound_share * evidence.duration_ns
    if not evidence.has_enough_samples or is_small:
        return None
    mean_ns = evidence.mean_ns("backward")
    rows = [row for row in evidence.rows if row.stage == "update"]
    dispatch = total_time(row for row in rows if is_in("dispatch", row.stack.frames[-1]))
    share = dispatch.ns / updating
    if mean_ns > LIMITS.launch_bound_ns or share < LIMITS.dispatch_share:
        return None
    places = {(row.stack.frames[-1].file, row.stack.lines[-1]) for row in rows}
    return Explanation(
        dispatch.ns,  # a compiled update saves at least the Python overhead
        (
            f"updates take {evidence.share(updating):.0%} of the time, a backward pass "
            f"{duration(mean_ns)} on average",
            f"{share:.0%} of the updates' samples are in torch's Python code around operations, "
            f"at {len(places)} places",
        ),
    )
