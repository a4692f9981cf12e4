"""Files of known libraries, and the samples that lie in them."""

from __future__ import annotations

import re
from functools import lru_cache

from hotloop.profiler.diagnose.evidence import Row, below
from hotloop.profiler.session import Frame, Stack, is_library

ENVIRONMENTS = re.compile(
    r"/(gymnasium|gym)/envs/|/(mujoco|ale_py|envpool|dm_control|pybullet|pettingzoo|minigrid|vizdoom"
    r"|procgen|nle|crafter|metaworld|Box2D|pygame|highway_env|gym_\w+)/"
)
WRAPPERS = re.compile(
    r"/(gymnasium|gym)/wrappers/|/stable_baselines3/common/(atari_wrappers|monitor)"
)
NETWORKS = re.compile(
    r"/torch/(nn/|optim/|autograd/|distributions/|_ops\.py|_functorch/|_compile\.py)|"
    r"/(jax|jaxlib|optax|flax|equinox|haiku|chex|distrax|tensorflow|keras)/"
)
LEARNS = re.compile(r"/torch/(optim|autograd)/|/optax/|/jax/_src/api")
BUFFERS = re.compile(
    r"/stable_baselines3/common/buffers\.py$|/torchrl/data/|/tianshou/data/|/cpprb/|/hotloop/replay/"
)
_CALLS_WRAPPERS = re.compile(r"(^|\.)(Observation|Reward|Action|Vector\w*)Wrapper\.(step|reset)$")
# No loop of a program's is in NumPy, or in Python's own modules but for those that run what they
# are given.
_ONLY_CALLED = re.compile(
    r"/numpy/|/lib/python3[^/]*/(?!(site|dist)-packages/)"
    r"(?!(asyncio|concurrent|multiprocessing|unittest)/)"
    r"(?!(threading|runpy|queue|selectors|socketserver|sched|timeit|trace|profile|cProfile|bdb"
    r"|contextlib|functools)\.py)"
)
STEPS = re.compile(r"(^|\.)(step|reset|step_wait)$")


def reaches(row: Row, files: re.Pattern[str]) -> bool:
    """Whether the user's innermost line calls, however far below, some files."""
    return any(files.search(one.file) for one in below(row.stack))


def is_core(row: Row) -> bool:
    """Whether it is a library's environment's or a network's."""
    return reaches(row, ENVIRONMENTS) or reaches(row, NETWORKS)


def is_step(row: Row) -> bool:
    return row.stage == "env" or reaches(row, ENVIRONMENTS)


def is_learning(row: Row) -> bool:
    return reaches(row, LEARNS)


def may_drive(row: Row) -> bool:
    """Whether the library that the user's innermost line calls may be what runs the program."""
    inner = below(row.stack)
    return bool(inner) and not _ONLY_CALLED.search(inner[0].file)


def is_wrapping(frame: Frame) -> bool:
    """Whether a function of JAX's only calls another one."""
    return frame.file.endswith(("traceback_util.py", "api_util.py", "/util.py", "config.py"))


@lru_cache(maxsize=65536)
def is_of_module(stack: Stack) -> bool:
    """Whether the innermost function of the user's is what torch calls of a module: `forward`."""
    own = len(stack.frames) - 1 - len(below(stack))
    return own > 0 and stack.frames[own - 1].file.endswith("/torch/nn/modules/module.py")


@lru_cache(maxsize=65536)
def adds_to_a_step(stack: Stack) -> bool:
    """Whether a wrapper's own part of a step runs: what Gymnasium's base classes call of it."""
    calls = [i for i, frame in enumerate(stack.frames) if _CALLS_WRAPPERS.search(frame.function)]
    inner = stack.frames[calls[-1] + 1 :] if calls else ()
    return bool(calls) and not any(STEPS.search(frame.function) for frame in inner)


@lru_cache(maxsize=65536)
def stepping_others(stack: Stack) -> tuple[Frame, ...]:
    """The user's functions in a stack that step another environment: wrappers."""
    steps = [frame for frame in stack.frames if STEPS.search(frame.function)]
    return tuple(frame for frame in steps[:-1] if not is_library(frame) and "." in frame.function)
