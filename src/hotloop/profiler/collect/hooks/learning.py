"""Hooks for torch optimizers and backward passes, replay buffers and loggers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from hotloop.profiler.collect.hooks import wrapping
from hotloop.profiler.collect.hooks.wrapping import facts, wrap
from hotloop.timing import span
from hotloop.timing._span import Span


class _OpenSteps(threading.local):
    """Steps of optimizers that a thread is in, by the frame of the call.

    A step may call that of another optimizer or of its base class. Only the outermost is a span.
    torch does not report a step that raises an exception: its frame is no longer running.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[FrameType, Span | None]] = []

    def begin(self, frame: FrameType) -> None:
        """Open a span, unless another step is running."""
        self._drop_failed(frame)
        # Keep the object: the Python recorder creates one span per call site.
        opened = None if self._steps else span("optimizer_step")
        self._steps.append((frame, opened))
        if opened is not None:
            opened.__enter__()

    def end(self, frame: FrameType) -> None:
        """Close the span of the innermost step. A compiler may have continued it in a new frame."""
        if self._steps and self._steps[-1][0] is not frame:
            self._drop_failed(frame)
        if self._steps:
            self._pop()

    def _drop_failed(self, frame: FrameType) -> None:
        running: set[int] = set()
        outer = frame if self._steps else None
        while outer is not None:
            running.add(id(outer))
            outer = outer.f_back
        while self._steps and id(self._steps[-1][0]) not in running:
            self._pop()

    def _pop(self) -> None:
        _, opened = self._steps.pop()
        if opened is not None:
            opened.__exit__(None, None, None)


def _hook_torch(module: ModuleType) -> None:
    facts["torch_threads"] = float(module.get_num_threads())


def _hook_compiler(module: ModuleType) -> None:
    if hasattr(module, "is_compiling"):
        wrapping.is_compiling = module.is_compiling


def _hook_optimizers(module: ModuleType) -> None:
    """Time optimizer steps with torch's own hooks, if this version has them."""
    if not hasattr(module, "register_optimizer_step_pre_hook"):
        return
    torch = sys.modules["torch"]
    open_steps = _OpenSteps()

    def before(*_: Any) -> None:
        if wrapping.is_compiling():
            return
        # Read in the learning thread, because the number may differ between threads.
        facts["torch_threads"] = float(torch.get_num_threads())
        if "optimizer_step" in wrapping.delays.functions:
            wrapping.delays.functions["optimizer_step"]()
        open_steps.begin(sys._getframe(1))

    def after(*_: Any) -> None:
        if not wrapping.is_compiling():
            open_steps.end(sys._getframe(1))

    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def _hook_autograd(module: ModuleType) -> None:
    wrap(module, "backward", "backward")
    wrap(module, "grad", "backward")


def _method_hook(owner: str, attribute: str, name: str) -> Callable[[ModuleType], None]:
    def callback(module: ModuleType) -> None:
        wrap(getattr(module, owner), attribute, name)

    return callback


CALLBACKS: dict[str, Callable[[ModuleType], None]] = {
    "torch": _hook_torch,
    "torch.compiler": _hook_compiler,
    "torch.optim.optimizer": _hook_optimizers,
    "torch.autograd": _hook_autograd,
    "torch.utils.tensorboard.writer": _method_hook("SummaryWriter", "add_scalar", "logging"),
    "tensorboardX.writer": _method_hook("SummaryWriter", "add_scalar", "logging"),
    "wandb.sdk.wandb_run": _method_hook("Run", "log", "logging"),
    "torchrl.data.replay_buffers.replay_buffers": _method_hook(
        "ReplayBuffer", "sample", "replay_sample"
    ),
    "tianshou.data.buffer.buffer_base": _method_hook("ReplayBuffer", "sample", "replay_sample"),
}
