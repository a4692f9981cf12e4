"""Stages of a program, by the functions it was seen in: for code without spans of its own.

A sample says which spans were open and which functions were running. The innermost of them that is
known decides: an environment's step, a forward or backward pass, drawing from a replay buffer,
logging, importing. Of what is in none of those, the script's own function is told.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from hotloop.profiler.session import Frame, Process, Stack, is_library
from hotloop.profiler.session.purpose import Purpose

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
OF_SPAN = {
    "env_step": "env",
    "env_reset": "env",
    "vector_step": "env",
    "vector_reset": "env",
    "make_envs": "import",
    "act": "act",
    "evaluate": "act",
    "draw_noise": "act",
    "update": "update",
    "backward": "update",
    "optimizer_step": "update",
    "replay_sample": "replay",
    "replay_add": "replay",
    "sample": "replay",
    "gather": "replay",
    "store": "replay",
    "logging": "logging",
    "report": "logging",
    "wait": "wait",
    "wait_for_workers": "wait",
    "wait_for_inference": "wait",
}
# Where installed libraries are; somebody's home may be called like one.
_SITE = r"/(site|dist)-packages/"
_PYTHON = r"/lib/python3[^/]*/"
# (stage, file, function): regular expressions, of which None matches anything; the first that fits
# a frame gives its stage.
_RULES: tuple[tuple[str, str, str | None], ...] = (
    # Modules are loaded; `from x import y` of one that is there only asks for it.
    ("import", r"<frozen importlib", r"^(_find_and_load|_load|_find_spec)|exec_module$"),
    ("logging", _SITE + r"(loguru|wandb|tensorboard|tensorboardX|rich|tqdm|absl/logging)/", None),
    ("logging", _SITE + r"torch/utils/tensorboard/", None),
    ("logging", _PYTHON + r"logging/", None),
    ("logging", r"/numpy/_?core/arrayprint\.py$", None),
    ("config", _SITE + r"(omegaconf|hydra|ml_collections|absl)/", None),
    ("env", r"/(gymnasium|gym)/(envs|wrappers|vector|core)", r"(^|\.)(step|reset|step_wait)$"),
    ("env", r"/stable_baselines3/common/vec_env/", r"(^|\.)(step|step_wait|step_async|reset)$"),
    # Not `no_grad`, which is there too, and around acting.
    ("update", r"/torch/(optim/|autograd/(__init__|graph)\.py$)", None),
    ("update", r"/torch/_tensor\.py$", r"backward$"),
    ("replay", r"", r"(?i)(replay|buffer|memory)\w*\._?(sample|add|push|store|get)\w*$"),
    ("forward", r"/torch/nn/functional", None),
    (
        "forward",
        r"/torch/nn/modules/",
        r"(^|\.)(forward|_call_impl|_wrapped_call_impl|_conv_forward)$",
    ),
    ("forward", r"/torch/distributions/", None),
    # Acts or learns: `stage_by_key` works it out.
    ("compiled", _SITE + r"(jax|jaxlib|optax|flax|equinox|haiku|distrax|rlax)/", None),
    (
        "wait",
        _PYTHON + r"(multiprocessing|concurrent/futures)/",
        r"(^|\.)_?(recv|recv_bytes|get|poll|wait|acquire|join|result|as_completed)$",
    ),
)
# What the user's own functions are called, where nothing else says what they do.
_NAMES: tuple[tuple[str, str], ...] = (
    ("env", r"(?i)\w*(env|world|bandit|game|maze|grid|simulator|task)\w*\.(step|reset|pull)$"),
    (
        "act",
        r"(^|\.)_?((select|choose|get|sample|pick)_actions?|act|policy|epsilon_greedy|predict|"
        r"greedy|choose)$",
    ),
    (
        "update",
        r"(^|\.)_?(update|learn|train_step|training_step|train_one_step|fit|optimi[sz]e|"
        r"gradient_step|train_batch|learn_from|td_update|update_\w+)$",
    ),
)
_COMPILED_NAMES = tuple((stage, re.compile(function)) for stage, function in _NAMES)
_COMPILED = tuple(
    (stage, re.compile(file), re.compile(function) if function else None)
    for stage, file, function in _RULES
)


@lru_cache(maxsize=65536)
def _stage_of_frame(frame: Frame) -> str | None:
    for stage, file, function in _COMPILED:
        if file.search(frame.file) and (function is None or function.search(frame.function)):
            return stage
    return None


def stage_of(path: tuple[str, ...], stack: Stack) -> str:
    """The stage of a sample: of its innermost known span, or of its innermost known function.

    A forward pass is what the span around it is. Where there is none it is "forward": whether it
    acts or learns, `stage_by_key` works out.
    """
    by_frame, calls_user = "other", False
    for frame in reversed(stack.frames):
        # What runs while a library is imported is the import's, whatever its files are for.
        stage = None if frame.function == "<module>" else _stage_of_frame(frame)
        # Hydra calls the whole program: what it calls is not its own.
        if stage is not None and not (calls_user and stage in ("config", "logging")):
            by_frame = stage
            break
        calls_user = calls_user or not is_library(frame)
    if by_frame in ("import", "config", "logging"):
        return by_frame
    for name in reversed(path):
        if name in OF_SPAN:
            return OF_SPAN[name]
    return by_frame


class Leaf(NamedTuple):
    """A line of code that time was spent at."""

    function: str
    file: str
    line: int


@dataclass
class Share:
    """Time of one kind.

    Attributes:
        elapsed_ns, on_core_ns, queued_ns: the rest of the elapsed time is blocked.
        samples: how many.
    """

    elapsed_ns: int = 0
    on_core_ns: int = 0
    queued_ns: int = 0
    samples: int = 0

    @property
    def blocked_ns(self) -> int:
        """Neither on a core nor queued for one."""
        return max(0, self.elapsed_ns - self.on_core_ns - self.queued_ns)

    def add(self, elapsed_ns: int, on_core_ns: int, queued_ns: int, samples: int) -> None:
        """Add a row."""
        self.elapsed_ns += elapsed_ns
        self.on_core_ns += on_core_ns
        self.queued_ns += queued_ns
        self.samples += samples


@dataclass
class Stages:
    """A process's main thread, by stage.

    Attributes:
        total: all of it.
        by_stage: by the names of `STAGES`.
        by_user_line: by the user's innermost line, within each stage.
    """

    total: Share = field(default_factory=Share)
    by_stage: dict[str, Share] = field(default_factory=dict)
    by_user_line: dict[tuple[str, Leaf], Share] = field(default_factory=dict)

    def share(self, stage: str) -> float:
        """Of the thread's time."""
        found = self.by_stage.get(stage)
        return found.elapsed_ns / self.total.elapsed_ns if found and self.total.elapsed_ns else 0.0


def stages(process: Process, thread: int | None = None) -> Stages:
    """Where the time of a process's main thread, or of another one, went, by its samples."""
    found = Stages()
    own = process.pid if thread is None else thread
    resolved, weights = stage_by_key(process), path_weights(process, own)
    for sample in process.samples:
        if sample.thread != own:
            continue
        weight = weights.get(sample.path, 1.0)
        row = (
            round(weight * sample.elapsed_ns),
            round(weight * sample.on_core_ns),
            round(weight * sample.queued_ns),
            sample.count,
        )
        stage = resolved[sample.path, sample.stack]
        found.total.add(*row)
        found.by_stage.setdefault(stage, Share()).add(*row)
        leaf = user_leaf(process.stacks[sample.stack])
        found.by_user_line.setdefault((stage, leaf), Share()).add(*row)
    if own == process.pid:
        for path, self_ns in unseen_spans(process).items():
            # Of these no sample says what they did, on a core or not.
            found.total.elapsed_ns += self_ns
            stage = stage_of(path, Stack((), ()))
            found.by_stage.setdefault(stage, Share()).elapsed_ns += self_ns
    return found


def unseen_spans(process: Process) -> dict[tuple[str, ...], int]:
    """Nanoseconds of spans that no sample was taken in, by path; what is within them left out."""
    seen = {sample.path for sample in process.samples}
    if not seen:
        return {}
    return {path: ns for path, ns in _self_ns(process).items() if ns and path not in seen}


def _self_ns(process: Process) -> dict[tuple[str, ...], int]:
    """Time in spans of each path and in no other within, up to the last samples."""
    spans = process.periods[-1].spans if process.periods else {}
    inner: dict[tuple[str, ...], int] = {}
    for path, (_, total_ns) in spans.items():
        inner[path[:-1]] = inner.get(path[:-1], 0) + total_ns
    return {path: max(0, total_ns - inner.get(path, 0)) for path, (_, total_ns) in spans.items()}


def path_weights(process: Process, thread: int) -> dict[tuple[str, ...], float]:
    """What a nanosecond of a thread's samples stands for, by the path of open spans.

    A sampler in Python has to wait until the interpreter lets it run, which is soonest where code
    releases the lock, as torch's operations do: that is seen too often. How long spans took is
    known exactly, so each path's samples are given the time of its spans, and what is left to those
    outside of any.
    """
    self_ns = _self_ns(process)
    seen: dict[tuple[str, ...], int] = {}
    own: dict[tuple[str, ...], int] = {}
    for sample in process.samples:
        seen[sample.path] = seen.get(sample.path, 0) + sample.elapsed_ns
        if sample.thread == thread:
            own[sample.path] = own.get(sample.path, 0) + sample.elapsed_ns
    weights: dict[tuple[str, ...], float] = {}
    left_ns = float(sum(own.values()))
    if thread == process.pid:
        left_ns -= sum(unseen_spans(process).values())
    for path, ns in own.items():
        if path in self_ns and seen[path]:
            weights[path] = self_ns[path] / seen[path]
        if path:
            left_ns -= weights.get(path, 1.0) * ns
    if self_ns and own.get(()):
        weights[()] = max(0.0, left_ns) / own[()]
    return weights


def stage_by_key(
    process: Process, *, by_name: bool = True
) -> dict[tuple[tuple[str, ...], int], str]:
    """The stage of every (path, stack); of what its place alone says, see `Purpose`.

    Args:
        process: the process.
        by_name: where nothing else says what the user's functions do, their names may, and what
            kind of statement a line is.
    """
    raw = {
        (sample.path, sample.stack): stage_of(sample.path, process.stacks[sample.stack])
        for sample in process.samples
    }
    purpose = Purpose((process.stacks[stack], stage) for (_, stack), stage in raw.items())

    def resolved(stack: Stack, stage: str) -> str:
        if stage == "forward":
            # What a network is asked while it is made is part of starting.
            is_made = any(
                frame.function.endswith("__init__") and "/torch/" not in frame.file
                for frame in stack.frames
            )
            return "import" if is_made else purpose.of(stack)
        if stage == "compiled":
            return "act" if purpose.acts(stack) else "update"
        if stage == "other" and by_name:
            stage = purpose.of_statement(stack) or stage
        if stage == "other":
            stage = purpose.of_own_lines(stack) or stage
        return stage_by_name(stack) if stage == "other" and by_name else stage

    return {key: resolved(process.stacks[key[1]], stage) for key, stage in raw.items()}


def stage_by_name(stack: Stack) -> str:
    """By what the innermost function of the user's is called that says something."""
    for frame in reversed(stack.frames):
        if not is_library(frame):
            for stage, function in _COMPILED_NAMES:
                if function.search(frame.function):
                    return stage
    return "other"


def user_leaf(stack: Stack) -> Leaf:
    """The innermost line of a stack that is the user's; else the one that ran."""
    for frame, line in zip(reversed(stack.frames), reversed(stack.lines), strict=True):
        if not is_library(frame):
            return Leaf(frame.function, frame.file, line or frame.first_line)
    frame = stack.frames[-1]
    return Leaf(frame.function, frame.file, stack.lines[-1] or frame.first_line)
