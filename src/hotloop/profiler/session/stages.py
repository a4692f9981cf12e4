"""Stages of a program, from the functions in its samples, for code without spans of its own.

A sample contains the open spans and the running functions. The innermost known function or span
determines the stage: an environment step, a forward or backward pass, sampling from a replay
buffer, logging, importing. Other samples are attributed to the script's own function.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

from hotloop.profiler.session import Frame, ProfiledProcess, Sample, Stack, is_library
from hotloop.profiler.session.catalogues import FramePattern, frame_patterns, read_catalogue
from hotloop.profiler.session.purpose import PurposeClassifier, is_environment
from hotloop.profiler.session.sums import sums

STAGES = {
    "env": "stepping and resetting environments",
    "act": "choosing actions",
    "update": "learning",
    "replay": "storing and drawing transitions",
    "logging": "logging and formatting",
    "config": "reading configuration objects",
    "import": "importing and starting",
    "wait": "waiting for other processes",
    "other": "everything else",
}
_CATALOGUE = read_catalogue(Path(__file__).with_name("stages.json"))
STAGE_BY_SPAN: dict[str, str] = {
    span: stage for stage, spans in _CATALOGUE["spans"].items() for span in spans
}


def _by_stage(rows: list[dict[str, str]]) -> tuple[tuple[str, FramePattern], ...]:
    stages = (row["stage"] for row in rows)
    return tuple(zip(stages, frame_patterns(rows), strict=True))


# The first pattern that matches a frame determines its stage. "forward" and "compiled" are acting
# or learning, as `stage_by_key` decides.
_FRAME_STAGES = _by_stage(_CATALOGUE["frames"])
# Names of user functions, for samples that no other pattern matches.
_NAME_STAGES = _by_stage(_CATALOGUE["names"])


@lru_cache(maxsize=65536)
def _stage_of_frame(frame: Frame) -> str | None:
    return next((stage for stage, known in _FRAME_STAGES if known.matches(frame)), None)


def sample_stage(path: tuple[str, ...], stack: Stack) -> str:
    """Return the stage of the innermost known span of a sample, or of its innermost known function.

    A forward pass has the stage of the span around it. Without a span it is "forward", and
    `stage_by_key` decides whether it acts or learns.
    """
    return _with_spans(path, _stage_of_frames(stack))


def _stage_of_frames(stack: Stack) -> str:
    """Return the stage of the innermost known function, which spans may override."""
    calls_user = False
    for frame in reversed(stack.frames):
        # Code that runs during the import of a library counts as importing.
        stage = None if frame.function == "<module>" else _stage_of_frame(frame)
        # Hydra calls the whole program, whose time does not belong to Hydra's stage.
        if stage is not None and not (calls_user and stage in ("config", "logging")):
            return stage
        calls_user = calls_user or not is_library(frame)
    return "other"


def _with_spans(path: tuple[str, ...], by_frame: str) -> str:
    if by_frame in ("import", "config", "logging"):
        return by_frame
    for name in reversed(path):
        if name in STAGE_BY_SPAN:
            return STAGE_BY_SPAN[name]
    return by_frame


class CodeLine(NamedTuple):
    """A line of code in a function."""

    function: str
    file: str
    line: int


@dataclass
class TimeSum:
    """Sums of elapsed, on-core and queued time.

    Attributes:
        elapsed_ns, on_core_ns, queued_ns: sums; other elapsed time is blocked.
        samples: number of samples.
    """

    elapsed_ns: int = 0
    on_core_ns: int = 0
    queued_ns: int = 0
    samples: int = 0

    @property
    def blocked_ns(self) -> int:
        """Nanoseconds neither on a core nor queued for one."""
        return max(0, self.elapsed_ns - self.on_core_ns - self.queued_ns)

    @classmethod
    def of(cls, sample: Sample, weight: float = 1.0) -> TimeSum:
        """Return the times of a sample, scaled by a weight."""
        return cls(
            round(weight * sample.elapsed_ns),
            round(weight * sample.on_core_ns),
            round(weight * sample.queued_ns),
            sample.count,
        )

    def add(self, other: TimeSum) -> None:
        """Add other times to these."""
        self.elapsed_ns += other.elapsed_ns
        self.on_core_ns += other.on_core_ns
        self.queued_ns += other.queued_ns
        self.samples += other.samples


@dataclass
class StageTimes:
    """Times of one thread, by stage.

    Attributes:
        total: time of all stages.
        by_stage: time by name in `STAGES`.
    """

    total: TimeSum = field(default_factory=TimeSum)
    by_stage: dict[str, TimeSum] = field(default_factory=dict)

    def share(self, stage: str) -> float:
        """Return the fraction of the thread's time that a stage takes."""
        time = self.by_stage.get(stage)
        return time.elapsed_ns / self.total.elapsed_ns if time and self.total.elapsed_ns else 0.0


def stage_times(process: ProfiledProcess) -> StageTimes:
    """Return the times by stage of a process's main thread."""
    times = StageTimes()
    stages, weights = stage_by_key(process), path_weights(process, process.pid)
    for sample in process.samples:
        if sample.thread == process.pid:
            spent = TimeSum.of(sample, weights.get(sample.path, 1.0))
            stage = stages[sample.path, sample.stack]
            times.total.add(spent)
            times.by_stage.setdefault(stage, TimeSum()).add(spent)
    for path, self_ns in unsampled_spans(process).items():
        # Without samples, their on-core and queued times are unknown.
        times.total.elapsed_ns += self_ns
        stage = sample_stage(path, Stack((), ()))
        times.by_stage.setdefault(stage, TimeSum()).elapsed_ns += self_ns
    return times


def unsampled_spans(process: ProfiledProcess) -> dict[tuple[str, ...], int]:
    """Return the self time in ns of spans without a sample, by path."""
    sampled_paths = {sample.path for sample in process.samples}
    if not sampled_paths:
        return {}
    return {path: ns for path, ns in _self_ns(process).items() if ns and path not in sampled_paths}


def _self_ns(process: ProfiledProcess) -> dict[tuple[str, ...], int]:
    """Return the ns in spans of each path without their inner spans, up to the last sample."""
    spans = process.periods[-1].spans if process.periods else {}
    inner = sums((path[:-1], total_ns) for path, (_, total_ns) in spans.items())
    return {path: max(0, total_ns - inner.get(path, 0)) for path, (_, total_ns) in spans.items()}


def path_weights(process: ProfiledProcess, thread: int) -> dict[tuple[str, ...], float]:
    """Return the weight of a thread's samples, by path of open spans.

    A sampler in Python waits until it gets the GIL, which is soonest where code releases it, as in
    torch operations. Such code is sampled too often. The durations of spans are exact. Therefore
    the samples of each path are scaled to the time of its spans, and samples outside of spans to
    the remaining time.
    """
    self_ns = _self_ns(process)
    sampled_ns = sums((sample.path, sample.elapsed_ns) for sample in process.samples)
    in_thread = (sample for sample in process.samples if sample.thread == thread)
    thread_ns = sums((sample.path, sample.elapsed_ns) for sample in in_thread)
    weights: dict[tuple[str, ...], float] = {}
    remaining_ns = float(sum(thread_ns.values()))
    if thread == process.pid:
        remaining_ns -= sum(unsampled_spans(process).values())
    for path, ns in thread_ns.items():
        if path in self_ns and sampled_ns[path]:
            weights[path] = self_ns[path] / sampled_ns[path]
        if path:
            remaining_ns -= weights.get(path, 1.0) * ns
    if self_ns and thread_ns.get(()):
        weights[()] = max(0.0, remaining_ns) / thread_ns[()]
    return weights


StageByKey = dict[tuple[tuple[str, ...], int], str]
_stages_by_process: WeakKeyDictionary[ProfiledProcess, dict[bool, StageByKey]] = WeakKeyDictionary()


def stage_by_key(process: ProfiledProcess, *, by_name: bool = True) -> StageByKey:
    """Return the stage of every (path, stack). See `PurposeClassifier` for forward passes.

    Args:
        process: the process.
        by_name: whether function names and kinds of statement classify otherwise unknown code.
    """
    known = _stages_by_process.setdefault(process, {})
    if by_name not in known:
        known[by_name] = _stage_by_key(process, by_name=by_name)
    return known[by_name]


def _stage_by_key(process: ProfiledProcess, *, by_name: bool) -> StageByKey:
    by_frames = list(map(_stage_or_environment, process.stacks))
    stages = {
        (sample.path, sample.stack): _with_spans(sample.path, by_frames[sample.stack])
        for sample in process.samples
    }
    # A stack has few stages, and may be in many paths.
    pairs = {(number, stage) for (_, number), stage in stages.items()}
    purpose = PurposeClassifier((process.stacks[number], stage) for number, stage in pairs)

    def resolve(stack: Stack, stage: str) -> str:
        if stage == "forward":
            # A forward pass in a constructor is part of starting.
            is_constructor = any(
                frame.function.endswith("__init__") and "/torch/" not in frame.file
                for frame in stack.frames
            )
            return "import" if is_constructor else purpose.classify_forward(stack)
        if stage == "compiled":
            return "act" if purpose.is_acting(stack) else "update"
        if stage == "other" and by_name:
            stage = purpose.classify_statement(stack) or stage
        if stage == "other":
            stage = purpose.classify_user_lines(stack) or stage
        return stage_by_name(stack) if stage == "other" and by_name else stage

    resolved = {pair: resolve(process.stacks[pair[0]], pair[1]) for pair in pairs}
    return {key: resolved[key[1], stage] for key, stage in stages.items()}


def _stage_or_environment(stack: Stack) -> str:
    """Return the stage by functions, with steps of environments that have no known base class."""
    stage = _stage_of_frames(stack)
    return "env" if stage == "other" and any(map(is_environment, stack.frames)) else stage


def stage_by_name(stack: Stack) -> str:
    """Return the stage by the name of the innermost user function that matches a rule."""
    for frame in reversed(stack.frames):
        if not is_library(frame):
            for stage, known in _NAME_STAGES:
                if known.matches(frame):
                    return stage
    return "other"


def innermost_user_line(stack: Stack) -> CodeLine:
    """Return the innermost user line of a stack, or else its innermost line."""
    for frame, line in zip(reversed(stack.frames), reversed(stack.lines), strict=True):
        if not is_library(frame):
            return CodeLine(frame.function, frame.file, line or frame.first_line)
    frame = stack.frames[-1]
    return CodeLine(frame.function, frame.file, stack.lines[-1] or frame.first_line)
