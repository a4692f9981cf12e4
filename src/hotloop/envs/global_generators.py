"""Seeds of the global generators of Python, NumPy and torch, from which some environments draw.

Environments should draw from `self.np_random`, which each reset seeds: their episodes then depend
on nothing else. Even if one draws from a global generator, a run with the same seed repeats,
because every process that steps environments seeds these generators before it makes them. The same
holds for an environment that samples from its spaces, which are seeded once it is made.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hotloop.base.import_hooks import ImportHooks

# Seeds torch as soon as it is loaded, which gives its generator a random seed.
_hooks: ImportHooks | None = None


def seed_global_generators(*key: int | str) -> None:
    """Seed the global generators of Python, of NumPy and of torch on the CPU.

    Args:
        key: the run's seed and what else distinguishes the process, such as its environments.
    """
    seed = _derive_seed(key)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    seed_torch_generator(*key)


def seed_torch_generator(*key: int | str) -> None:
    """Seed torch's global generator on the CPU, at once or when an environment loads torch."""
    global _hooks
    seed = _derive_seed(key) >> 1
    if _hooks is not None:
        _hooks.remove()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(seed)
        return
    _hooks = ImportHooks({"torch": lambda torch: torch.default_generator.manual_seed(seed)})
    _hooks.install()


def seed_spaces(env: Any, *key: int | str) -> None:
    """Seed the spaces of an environment and its wrappers, from which some environments sample."""
    from gymnasium import Wrapper

    spaces = {id(space): space for space in (env.observation_space, env.action_space)}
    while isinstance(env, Wrapper):
        env = env.env
        spaces |= {id(space): space for space in (env.observation_space, env.action_space)}
    for number, space in enumerate(spaces.values()):
        space.seed(_derive_seed(("space", number, *key)))


def _derive_seed(key: tuple[int | str, ...]) -> int:
    text = "/".join(map(str, ("global", *key)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


@contextmanager
def kept_global_generators(*key: int | str) -> Iterator[None]:
    """Seed the global generators if there is a key, and restore the caller's states at the end."""
    state, numpy_state = random.getstate(), np.random.get_state(legacy=False)  # noqa: NPY002
    torch = sys.modules.get("torch")
    torch_state = None if torch is None else torch.get_rng_state()
    try:
        if key:
            seed_global_generators(*key)
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(torch_state)
