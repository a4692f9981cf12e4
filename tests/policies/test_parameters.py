"""Parameters in one vector: packed, unpacked, and seen as arrays."""

import numpy as np

from hotloop.policies.parameters import ParameterLayout

LAYOUT = ParameterLayout({"a": (2, 3), "b": (), "c": (4,)})


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    return {k: rng.standard_normal(s).astype(np.float32) for k, s in LAYOUT.shapes.items()}


def test_pack_and_unpack_are_inverse():
    given = arrays()
    flat = LAYOUT.pack(given)
    assert flat.shape == (11,)
    for name, part in LAYOUT.unpack(flat).items():
        np.testing.assert_array_equal(part.numpy(), given[name])
    assert LAYOUT.sizes == [6, 1, 4]
    assert flat[6] == given["b"]


def test_views_change_with_the_parameters():
    """They are the tensor's own memory, both ways, whatever their shapes."""
    flat = LAYOUT.pack(arrays())
    views = LAYOUT.views(flat)
    assert {name: x.shape for name, x in views.items()} == LAYOUT.shapes
    for name, x in views.items():
        np.testing.assert_array_equal(x, arrays()[name])
    flat.mul_(2.0)
    for name, x in views.items():
        np.testing.assert_array_equal(x, 2.0 * arrays()[name])
    views["a"][0, 0] = 77.0
    assert LAYOUT.unpack(flat)["a"][0, 0] == 77.0
    # Of what is being differentiated, too.
    of_leaf = LAYOUT.views(flat.requires_grad_())
    assert of_leaf["a"].ctypes.data == views["a"].ctypes.data
