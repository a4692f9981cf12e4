"""Rules about a GPU, based on measurement windows.

A share of the windows stands for a share of the loop. If the process was sampled all the time, the
windows are weighted by stage: learning may take a third of the windows and half of the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hotloop.profiler.diagnose.causes import Explanation
from hotloop.profiler.diagnose.diagnosis import Diagnosis
from hotloop.profiler.diagnose.evidence import Evidence, describe_place
from hotloop.profiler.diagnose.limits import LIMITS
from hotloop.profiler.session.gpu import GpuUse
from hotloop.profiler.session.gpu_host import Host
from hotloop.profiler.session.stages import STAGES, CodeLine
from hotloop.timing.table import duration

# Causes based on measured waits of the GPU, whose gains need no further limit.
_MEASURED = {"gpu-waits-for-launches", "gpu-synchronisations", "gpu-idle-in-environments"}
_MEASURED |= {"pageable-copies"}


def observed_host(evidence: Evidence) -> Host | None:
    """Return the host's GPU windows, None if they are too short or the device was always idle."""
    host = evidence.gpu
    return (
        host
        if host is not None and host.use.ns >= LIMITS.gpu_window_ns and host.use.busy_ns
        else None
    )


def waits_for_launches(evidence: Evidence) -> Explanation | None:
    """Detect a GPU that idles because the host launches kernels more slowly than they run.

    Gaps of at most 100 µs between kernels before the launch of the next kernel count, minus the
    host's environment steps. There must be more launches than copies.
    """
    host = observed_host(evidence)
    if host is None or "cudagraph" in evidence.training.get("execution", ""):
        return None
    use, by_stage = host.use, host.by_stage(host.use.host_in_gaps)
    stepping = sum(by_stage.get(stage, 0.0) for stage in ("env", "import", "wait"))
    gaps = [gap for gap in use.gaps if gap.cause in ("launch", "sync")]
    short_ns = sum(gap.ns for gap in gaps)
    waited = min(short_ns, use.gaps_ns("launch", "sync", "host") - stepping)
    is_of_launches = use.num_launches > sum(copy.count for copy in use.copies)
    is_small = waited < LIMITS.launch_gap_share * use.ns
    if is_small or use.launches_per_s < LIMITS.launches_per_s or not is_of_launches:
        return None
    updates = use.launches_per_update
    each = f", {updates:,.0f} per update" if updates else ""
    lines = list(host.by_line(use.host_in_gaps, without=("env", "import", "wait")))
    return Explanation(
        LIMITS.graph_saving * _loop_part_ns(evidence, host, waited, "update"),
        (
            f"the GPU is busy {use.busy_share:.0%} of the time and waits {waited / use.ns:.0%} "
            f"of it for the next launch, {len(gaps) / use.ns * 1e9:,.0f} times per second for "
            f"{duration(short_ns / len(gaps))} on average",
            f"{use.launches_per_s:,.0f} launches per second{each}, half of the kernels take less "
            f"than {duration(use.median_kernel_ns)}",
            describe_windows(use),
        ),
        places=tuple(lines[:4]),
    )


def synchronizations(evidence: Evidence) -> Explanation | None:
    """Detect a host that waits for the GPU during updates instead of launching more work.

    Calls that fetch actions do not count. The GPU's idle time limits the gain, since a host that
    runs ahead of a busy GPU waits later.
    """
    host = observed_host(evidence)
    if host is None or not len(host.use.syncs_ns):
        return None
    use = host.use
    waited = float(use.syncs_ns.sum())
    by_stage = host.by_stage(use.host_in_syncs)
    acting = sum(by_stage.get(stage, 0.0) for stage in ("act", "env"))
    in_update = waited - acting
    saved = min(in_update, use.ns - use.busy_ns - use.gaps_ns("device"))
    saved_ns = _loop_part_ns(evidence, host, saved, "update")
    if in_update < LIMITS.gpu_sync_share * use.ns or evidence.gain(saved_ns) < LIMITS.gpu_gain:
        return None
    lines = host.by_line(use.host_in_syncs, without=("act", "env"))
    locations = describe_lines(use, lines)
    return Explanation(
        saved_ns,
        (
            f"{in_update / use.ns:.0%} of the time is spent in "
            f"{len(use.syncs_ns) / use.ns * 1e9:,.0f} synchronizations per second"
            + (f": {locations}" if locations else ""),
            f"meanwhile nothing is launched, and the GPU is busy {use.busy_share:.0%} of the time",
            describe_windows(use),
        ),
        places=tuple(lines)[:6],
        confidence=0.7 if lines else 0.5,
    )


def pageable_copies(evidence: Evidence) -> Explanation | None:
    """Detect copies to the GPU from pageable memory, which block the host.

    The driver first copies the bytes into its own memory, on the host.
    """
    host = observed_host(evidence)
    if host is None:
        return None
    use = host.use
    copies = next((x for x in use.copies if x[:2] == ("to the device", "pageable")), None)
    if copies is None:
        return None
    lines = host.by_line(use.host_in_copies)
    locations = describe_lines(use, lines)
    saved_ns = LIMITS.pinned_saving * _loop_part_ns(evidence, host, copies.host_ns, "update")
    if evidence.gain(saved_ns) < LIMITS.gpu_gain:
        return None
    return Explanation(
        saved_ns,
        (
            f"{copies.host_ns / use.ns:.0%} of the time is spent in "
            f"{copies.count / use.ns * 1e9:,.0f} copies per second of "
            f"{describe_bytes(copies.size_bytes / copies.count)} each"
            + (f": {locations}" if locations else ""),
            f"the copies themselves take {copies.device_ns / use.ns:.0%} of the GPU's time",
            describe_windows(use),
        ),
        places=tuple(lines)[:6],
        confidence=0.6 if lines else 0.4,
    )


def idle_in_environments(evidence: Evidence) -> Explanation | None:
    """Detect a GPU that is idle for a third of the time while environments step.

    The gain assumes that up to eight of this machine's cores step them in parallel while the
    learner trains.
    """
    host = observed_host(evidence)
    if host is None:
        return None
    use = host.use
    stepping = host.by_stage(use.host_in_gaps).get("env", 0.0)
    if stepping < LIMITS.gpu_idle_share * use.ns:
        return None
    share = _loop_part_ns(evidence, host, stepping, "env") / loop_ns(evidence)
    side_by_side = min(LIMITS.gpu_workers, max(2, evidence.main.cores - 1))
    remaining = max(1.0 - share, share / side_by_side)
    lines = host.by_line(use.host_in_gaps, without=_ALL_BUT_ENV)
    return Explanation(
        (1.0 - remaining) * loop_ns(evidence),
        (
            f"for {stepping / use.ns:.0%} of the time the GPU is idle and the host steps "
            f"environments, the GPU is busy {use.busy_share:.0%} of the time",
            f"{side_by_side} processes could step them while the learner trains",
            describe_windows(use),
        ),
        places=tuple(lines)[:4],
        texts={"workers": side_by_side},
    )


_ALL_BUT_ENV = ("act", "update", "replay", "logging", "config", "import", "wait", "other")


def gpu_bound(evidence: Evidence) -> Explanation | None:
    """Detect a GPU with work for at least 85 % of the time, so that its kernels limit the speed.

    Gaps between kernels that are already launched count as work.
    """
    host = observed_host(evidence)
    if host is None or work_share(evidence, host) < LIMITS.gpu_full_share:
        return None
    use, share = host.use, work_share(evidence, host)
    kernel_ns = sum(use.kernels.values()) or 1
    longest = sorted(use.kernels.items(), key=lambda item: -item[1])[:3]
    kernels = ", ".join(f"{ns / kernel_ns:.0%} {short_kernel_name(name)}" for name, ns in longest)
    text = f"share of the kernel time: {kernels}"
    return Explanation(None, (text,), texts={"share": f"{share:.0%}"})


def limit_gains(evidence: Evidence, found: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Return the diagnoses with gains limited to what a busy GPU allows."""
    host = observed_host(evidence)
    if host is None or work_share(evidence, host) < LIMITS.gpu_bound_share:
        return list(found)
    share = work_share(evidence, host)
    max_gain = evidence.gain((1.0 - share) * loop_ns(evidence))
    limited: list[Diagnosis] = []
    for item in found:
        if item.gain is None or item.gain <= max_gain or item.rule in _MEASURED:
            limited.append(item)
        elif max_gain >= LIMITS.gpu_gain:
            text = f"the GPU has work for {share:.0%} of the time, which limits the gain"
            limited.append(
                replace(item, gain=max_gain, loop_gain=None, evidence=(*item.evidence, text))
            )
    return limited


def work_share(evidence: Evidence, host: Host) -> float:
    """Return the share of the loop in which the device computes or the next work is launched.

    Copies from and to the host do not count, since they can be avoided or overlapped. If the
    process was sampled all the time, each stage is weighted by its share of the loop. A stage
    without windows counts as idle, since all windows may have fallen into updates.
    """
    use = host.use
    idle = use.gaps_ns("launch", "sync", "host") / use.ns
    if evidence.has_enough_samples and use.pid == evidence.main.pid:
        within, gaps = host.by_stage(use.host_in_windows), host.by_stage(use.host_in_gaps)
        idle = 0.0
        for stage in STAGES:
            total = within.get(stage, 0.0)
            part = min(1.0, gaps.get(stage, 0.0) / total) if total > 0.01 * use.ns else 1.0
            if stage != "import":
                idle += part * evidence.stage_ns(stage) / loop_ns(evidence)
    copied = sum(copy.device_ns for copy in use.copies if copy.memory) / use.ns
    return max(0.0, 1.0 - idle - copied)


def loop_ns(evidence: Evidence) -> float:
    """Return the program's duration without importing and starting."""
    starting = evidence.stage_ns("import") if evidence.has_enough_samples else 0.0
    return max(1.0, evidence.duration_ns - starting)


def _loop_part_ns(evidence: Evidence, host: Host, ns: float, stage: str) -> float:
    """Return the part of the loop that corresponds to a time in the windows, in a stage."""
    share, weight = ns / host.use.ns, 1.0
    if evidence.has_enough_samples and host.use.pid == evidence.main.pid:
        within, overall = host.share(stage), evidence.stage_ns(stage) / loop_ns(evidence)
        # Weight only stages that occur in both.
        weight = overall / within if min(within, overall) > 0.02 else 1.0
    # Limit the weight, since a few windows may all have fallen into one stage.
    return min(1.0, share * min(3.0, max(0.2, weight))) * loop_ns(evidence)


def describe_lines(use: GpuUse, lines: Mapping[CodeLine, float], at_most: int = 3) -> str:
    """Return the most expensive lines as text, with their share of the windows."""
    top = [(leaf, ns) for leaf, ns in lines.items() if ns >= 0.005 * use.ns][:at_most]
    return ", ".join(f"{ns / use.ns:.0%} at {describe_place(leaf)}" for leaf, ns in top)


def describe_windows(use: GpuUse) -> str:
    """Return a text on the measurement windows."""
    count = len(use.windows)
    each = f"{use.ns / count / 1e6:,.0f} ms"
    return f"measured in {count} window{'s' if count > 1 else ''} of {each} on {use.device}"


def describe_bytes(count: float) -> str:
    """Return a size as text: "3.4 MB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"


def short_kernel_name(name: str, width: int = 48) -> str:
    """Return a kernel's name without template arguments and parameters."""
    plain = name.removeprefix("void ").split("(")[0].split("<")[0] or name
    return plain if len(plain) <= width else f"…{plain[1 - width :]}"
