"""Rules about a GPU, by what was measured in windows on it.

A share of the windows is taken for one of the loop. Where the process was sampled all the time, the
windows are weighed: learning may have a third of their time and half of the loop's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hotloop.profiler.diagnose.diagnosis import Diagnosis
from hotloop.profiler.diagnose.evidence import Evidence, place
from hotloop.profiler.session.gpu import GpuUse
from hotloop.profiler.session.gpu_host import Host
from hotloop.profiler.session.stages import Leaf
from hotloop.timing.table import duration

# Less than this tells nothing.
_LEAST_NS = 50_000_000
# Rules that say less of the same, where the GPU was not looked at.
INSTEAD_OF = {
    "gpu-waits-for-launches": "launch-bound",
    "gpu-synchronisations": "host-sync",
    "gpu-idle-in-environments": "environment-bound",
}
# A busy GPU bounds what any change of the host can bring, from here on.
BOUNDS = 0.5
# What cannot bring more than this is not worth a change.
_LEAST_GAIN = 1.1
# Environments side by side, or overlapped with learning, at most.
_MOST_WORKERS = 8


def looked_at(evidence: Evidence) -> Host | None:
    """What windows say; None: there are none, or the device did nothing in any."""
    host = evidence.gpu
    return host if host is not None and host.use.ns >= _LEAST_NS and host.use.busy_ns else None


def waits_for_launches(evidence: Evidence) -> Diagnosis | None:
    """The GPU has nothing to do because the host launches more slowly than kernels run.

    Gaps of at most 100 µs between kernels, at whose beginning the next one was not launched yet,
    less what the host steps environments in: a quarter of the time and more, with 1,000 launches a
    second, and more of them than copies. Graphs leave a tenth of it.
    """
    host = looked_at(evidence)
    if host is None:
        return None
    use, by_stage = host.use, host.by_stage(host.use.in_gaps)
    stepping = sum(by_stage.get(stage, 0.0) for stage in ("env", "import", "wait"))
    gaps = [gap for gap in use.gaps if gap.why in ("launch", "sync")]
    short_ns = sum(gap.ns for gap in gaps)
    waited = min(short_ns, use.gaps_ns("launch", "sync", "host") - stepping)
    is_of_launches = use.num_launches > sum(one.count for one in use.copies)
    if waited < 0.25 * use.ns or use.launches_per_s < 1000 or not is_of_launches:
        return None
    updates = use.launches_per_update
    each = f", {updates:,.0f} an update" if updates else ""
    lines = list(host.by_line(use.in_gaps, without=("env", "import", "wait")))
    return Diagnosis(
        "gpu-waits-for-launches",
        "the GPU waits for the host to launch its next small kernel",
        0.8,
        evidence.gain(0.9 * _of_loop(evidence, host, waited, "update")),
        (
            f"the GPU is at work {use.busy:.0%} of the time; {waited / use.ns:.0%} of it, it waits "
            f"for the next launch, {len(gaps) / use.ns * 1e9:,.0f} times a second for "
            f"{duration(short_ns / len(gaps))} on average",
            f"{use.launches_per_s:,.0f} launches a second{each}; half of the kernels take less "
            f"than {duration(use.median_kernel_ns)}",
            told_windows(use),
        ),
        "Capture the whole update as one CUDA graph (torch.cuda.graph; of a compiled one, where "
        "compiling pays): `hotloop train … --device cuda --execution cudagraph`. Without: "
        "fused=True for Adam, twin critics as one batched network.",
        evidence.profile_again,
        tuple(lines[:4]),
        is_rebuild=True,
    )


def synchronisations(evidence: Evidence) -> Diagnosis | None:
    """The host waits for the GPU, where it could go on and launch what comes next.

    A twelfth of the time in calls that wait, less those that an action is fetched by, and a gain of
    1.1. It brings no more than the GPU is idle: a host that runs ahead of a busy GPU waits later.
    """
    host = looked_at(evidence)
    if host is None or not len(host.use.syncs_ns):
        return None
    use = host.use
    waited = float(use.syncs_ns.sum())
    by_stage = host.by_stage(use.in_syncs)
    acting = sum(by_stage.get(stage, 0.0) for stage in ("act", "env"))
    in_update = waited - acting
    saved = min(in_update, use.ns - use.busy_ns - use.gaps_ns("device"))
    gain = evidence.gain(_of_loop(evidence, host, saved, "update"))
    if in_update < use.ns / 12 or gain < _LEAST_GAIN:
        return None
    lines = host.by_line(use.in_syncs, without=("act", "env"))
    where = told_lines(use, lines)
    return Diagnosis(
        "gpu-synchronisations",
        "the host waits for the GPU in the middle of the update",
        0.7 if lines else 0.5,
        gain,
        (
            f"{in_update / use.ns:.0%} of the time in {len(use.syncs_ns) / use.ns * 1e9:,.0f} "
            f"synchronisations a second" + (f": {where}" if where else ""),
            f"meanwhile nothing is launched, and the GPU is at work {use.busy:.0%} of the time",
            told_windows(use),
        ),
        "Keep losses, metrics and conditions tensors on the device (no .item(), .cpu(), .tolist(), "
        "float() or `if tensor:` between two updates), and fetch them once, at a report.",
        evidence.profile_again,
        tuple(lines)[:6],
        wait="something",
    )


def pageable_copies(evidence: Evidence) -> Diagnosis | None:
    """Copies to the GPU from memory that may be paged out, which the host has to wait for.

    From a gain of 1.1 on: the driver copies the bytes into memory of its own first, by the host.
    """
    host = looked_at(evidence)
    if host is None:
        return None
    use = host.use
    kind = next((one for one in use.copies if one[:2] == ("to the device", "pageable")), None)
    if kind is None:
        return None
    lines = host.by_line(use.in_copies)
    where = told_lines(use, lines)
    # What is pinned has to be filled by the host, too: about half of it stays.
    gain = evidence.gain(0.5 * _of_loop(evidence, host, kind.host_ns, "update"))
    if gain < _LEAST_GAIN:
        return None
    return Diagnosis(
        "pageable-copies",
        "copies to the GPU from pageable memory hold up the host",
        0.6 if lines else 0.4,
        gain,
        (
            f"{kind.host_ns / use.ns:.0%} of the time in {kind.count / use.ns * 1e9:,.0f} copies a "
            f"second of {told_bytes(kind.size_bytes / kind.count)} each"
            + (f": {where}" if where else ""),
            f"the copies themselves take the GPU {kind.device_ns / use.ns:.0%} of the time",
            told_windows(use),
        ),
        "Write batches into pinned memory that is kept (torch.empty(…, pin_memory=True)) and copy "
        "with non_blocking=True, one copy for all fields; or keep replay on the device "
        "(`hotloop train … --device cuda --replay-device device`).",
        evidence.profile_again,
        tuple(lines)[:6],
        wait="something",
    )


def idle_in_environments(evidence: Evidence) -> Diagnosis | None:
    """The GPU is idle while environments step: they are what limits.

    A third of the time. The gain is that of stepping them side by side on this machine's cores, at
    most eight, while the learner goes on.
    """
    host = looked_at(evidence)
    if host is None:
        return None
    use = host.use
    stepping = host.by_stage(use.in_gaps).get("env", 0.0)
    if stepping < use.ns / 3:
        return None
    share = _of_loop(evidence, host, stepping, "env") / loop_ns(evidence)
    side_by_side = min(_MOST_WORKERS, max(2, evidence.main.cores - 1))
    left = max(1.0 - share, share / side_by_side)
    lines = host.by_line(use.in_gaps, without=_ALL_BUT_ENV)
    return Diagnosis(
        "gpu-idle-in-environments",
        "environments are what limits: the GPU is idle while they step",
        0.7,
        evidence.gain((1.0 - left) * loop_ns(evidence)),
        (
            f"{stepping / use.ns:.0%} of the time the GPU does nothing and the host steps "
            f"environments; it is at work {use.busy:.0%} of the time",
            f"{side_by_side} processes would step them while the learner learns",
            told_windows(use),
        ),
        f"Step them in workers and learn meanwhile (`hotloop train … --workers {side_by_side}`), "
        "or take an environment that runs on the device: a faster GPU changes nothing.",
        evidence.profile_again,
        tuple(lines)[:4],
        is_rebuild=True,
    )


_ALL_BUT_ENV = ("act", "update", "replay", "logging", "config", "import", "wait", "other")


def gpu_bound(evidence: Evidence) -> Diagnosis | None:
    """The GPU has work nearly all the time: its kernels are what limits. From 85 % on.

    What passes between kernels that were launched already is part of it.
    """
    host = looked_at(evidence)
    if host is None or has_work(host.use) < 0.85:
        return None
    use = host.use
    whole = sum(use.kernels.values()) or 1
    dearest = sorted(use.kernels.items(), key=lambda item: -item[1])[:3]
    told = ", ".join(f"{ns / whole:.0%} {short_kernel(name)}" for name, ns in dearest)
    return Diagnosis(
        "gpu-bound",
        f"the GPU has work {has_work(use):.0%} of the time, its kernels are what limits",
        0.8,
        None,
        (f"of its kernels' time {told}",),
        "Less Python changes nothing: take a lower precision (bfloat16, TF32), let a compiler fuse "
        "operations, or compute less.",
        evidence.profile_again,
    )


def bounded(evidence: Evidence, found: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Diagnoses of the host, none of which promises more than a busy GPU allows."""
    host = looked_at(evidence)
    if host is None or has_work(host.use) < BOUNDS:
        return list(found)
    share = has_work(host.use)
    most = evidence.gain((1.0 - share) * loop_ns(evidence))
    kept: list[Diagnosis] = []
    for one in found:
        if one.gain is None or one.gain <= most:
            kept.append(one)
        elif most >= _LEAST_GAIN:
            told = f"the GPU has work {share:.0%} of the time, which bounds what this brings"
            kept.append(replace(one, gain=most, loop_gain=None, evidence=(*one.evidence, told)))
    return kept


def has_work(use: GpuUse) -> float:
    """The share of the time in which the device computes, or what is next was launched already.

    Copies from and to the host are left out: they can be done without, or beside.
    """
    copied = sum(one.device_ns for one in use.copies if one.memory)
    return max(0.0, use.busy_ns + use.gaps_ns("device") - copied) / use.ns


def loop_ns(evidence: Evidence) -> float:
    """The program's time without importing and starting."""
    starting = evidence.stage_ns("import") if evidence.is_sampled else 0.0
    return max(1.0, evidence.whole_ns - starting)


def _of_loop(evidence: Evidence, host: Host, ns: float, stage: str) -> float:
    """What some time of the windows, spent in a stage, is of the whole loop's."""
    share, weight = ns / host.use.ns, 1.0
    if evidence.is_sampled and host.use.pid == evidence.main.pid:
        within, overall = host.share(stage), evidence.stage_ns(stage) / loop_ns(evidence)
        # What one of them does not know the stage of tells nothing.
        weight = overall / within if min(within, overall) > 0.02 else 1.0
    # Of few windows, which may all have been of one stage, not everything is believed.
    return min(1.0, share * min(3.0, max(0.2, weight))) * loop_ns(evidence)


def told_lines(use: GpuUse, lines: Mapping[Leaf, float], at_most: int = 3) -> str:
    """The dearest lines in words, with their share of the windows."""
    dear = [(leaf, ns) for leaf, ns in lines.items() if ns >= 0.005 * use.ns][:at_most]
    return ", ".join(f"{ns / use.ns:.0%} at {place(leaf)}" for leaf, ns in dear)


def told_windows(use: GpuUse) -> str:
    """How it was measured."""
    count = len(use.windows)
    each = f"{use.ns / count / 1e6:,.0f} ms"
    return f"measured in {count} window{'s' if count > 1 else ''} of {each} on {use.device}"


def told_bytes(count: float) -> str:
    """A size in words: "3.4 MB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"


def short_kernel(name: str, width: int = 48) -> str:
    """A kernel's name without its template's arguments and parameters."""
    plain = name.removeprefix("void ").split("(")[0].split("<")[0] or name
    return plain if len(plain) <= width else f"…{plain[1 - width :]}"
