"""File patterns of known libraries, and tests for samples in their files."""

from __future__ import annotations

import re
from functools import lru_cache

from hotloop.profiler.diagnose.evidence import SampleRow, library_frames
from hotloop.profiler.session import Frame, Stack

ENVIRONMENTS = re.compile(
    r"/(gymnasium|gym)/envs/|/(mujoco|ale_py|envpool|dm_control|pybullet|pettingzoo|minigrid|vizdoom"
    r"|procgen|nle|crafter|metaworld|Box2D|pygame|highway_env|gym_\w+)/"
)
WRAPPERS = re.compile(
    r"/(gymnasium|gym)/wrappers/|/stable_baselines3/common/(atari_wrappers|monitor"
    r"|vec_env/(stacked_observations|vec_(frame_stack|normalize|transpose|monitor|check_nan)))"
    r"|/supersuit/"
)
NETWORKS = re.compile(
    r"/torch/(nn/|optim/|autograd/|distributions/|_ops\.py|_functorch/|_compile\.py)|"
    r"/(jax|jaxlib|optax|flax|equinox|haiku|chex|distrax|tensorflow|keras)/"
)
LEARNING = re.compile(r"/torch/(optim|autograd)/|/optax/|/jax/_src/api")
BUFFERS = re.compile(
    r"/stable_baselines3/common/buffers\.py$|/torchrl/data/|/tianshou/data/|/cpprb/|/hotloop/replay/"
)
# NumPy and most of Python's own modules contain no loop of a program. The exceptions are modules
# that run functions passed to them.
_ONLY_CALLED = re.compile(
    r"/numpy/|/lib/python3[^/]*/(?!(site|dist)-packages/)"
    r"(?!(asyncio|concurrent|multiprocessing|unittest)/)"
    r"(?!(threading|runpy|queue|selectors|socketserver|sched|timeit|trace|profile|cProfile|bdb"
    r"|contextlib|functools)\.py)"
)
STEPS = re.compile(r"(^|\.)(step|reset|step_wait)$")


def calls_into(row: SampleRow, files: re.Pattern[str]) -> bool:
    """Return whether the user's innermost line calls into some files, directly or indirectly."""
    return any(files.search(frame.file) for frame in library_frames(row.stack))


def is_core(row: SampleRow) -> bool:
    """Return whether a sample is in a library's environment or network."""
    return calls_into(row, ENVIRONMENTS) or calls_into(row, NETWORKS)


def is_step(row: SampleRow) -> bool:
    return row.stage == "env" or calls_into(row, ENVIRONMENTS)


def is_learning(row: SampleRow) -> bool:
    return calls_into(row, LEARNING)


def may_run_program(row: SampleRow) -> bool:
    """Return whether the library called by the user's innermost line may run the program's loop."""
    inner = library_frames(row.stack)
    return bool(inner) and not _ONLY_CALLED.search(inner[0].file)


def is_jax_wrapper(frame: Frame) -> bool:
    """Return whether a JAX function only calls another one."""
    return frame.file.endswith(("traceback_util.py", "api_util.py", "/util.py", "config.py"))


@lru_cache(maxsize=65536)
def is_in_module_forward(stack: Stack) -> bool:
    """Return whether torch calls the user's innermost function, as it calls `forward`."""
    index = len(stack.frames) - 1 - len(library_frames(stack))
    return index > 0 and stack.frames[index - 1].file.endswith("/torch/nn/modules/module.py")
