"""Seeds of the global generators, and their return to the caller."""

import contextlib
import random
import subprocess
import sys

import numpy as np
import torch

from hotloop.envs import kept_global_generators, seed_global_generators


def draw():
    return random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002


def test_equal_keys_give_equal_draws():
    with kept_global_generators():
        draws = []
        for key in [(5, 0, 0), (5, 0, 0), (6, 0, 0), (5, 1, 0), (5, 0, 1), (5, "evaluation")]:
            seed_global_generators(*key)
            draws.append(draw())
    assert draws[0] == draws[1]
    for column in zip(*draws, strict=True):
        assert len(set(column)) == 5


def test_the_caller_continues_with_its_own_draws():
    seed_global_generators("caller")
    expected = draw(), draw()
    seed_global_generators("caller")
    first = draw()
    with contextlib.suppress(KeyError), kept_global_generators():
        seed_global_generators(1)
        draw()
        raise KeyError
    assert (first, draw()) == expected


def test_torch_that_is_loaded_later_is_seeded_too():
    """The last seed counts, and the same one gives the draws of a process that had torch."""
    code = (
        "from hotloop.envs import seed_global_generators as seed; import sys; seed(4); seed(5, 0)"
    )
    code += "; assert 'torch' not in sys.modules; import torch; print(torch.rand(1).item())"
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    with kept_global_generators():
        seed_global_generators(5, 0)
        assert float(output.stdout) == torch.rand(1).item()
