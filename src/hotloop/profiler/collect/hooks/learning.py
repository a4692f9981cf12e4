"""Hooks for torch optimizers and backward passes, replay buffers and loggers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from hotloop.profiler.collect.hooks import wrapping
from hotloop.profiler.collect.hooks.wrapping import facts, wrap
from hotloop.timing import span


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
    # `after` must exit the same object: the Python recorder creates one span per call site.
    entered = threading.local()

    def before(*_: Any) -> None:
        if wrapping.is_compiling():
            return
        # Read in the learning thread, because the number may differ between threads.
        facts["torch_threads"] = float(torch.get_num_threads())
        if "optimizer_step" in wrapping.delays.functions:
            wrapping.delays.functions["optimizer_step"]()
        entered.span = span("optimizer_step")
        entered.span.__enter__()

    def after(*_: Any) -> None:
        if hasattr(entered, "span") and not wrapping.is_compiling():
            entered.span.__exit__(None, None, None)

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
