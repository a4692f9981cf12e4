"""Parameters packed in one vector, unpacked, and viewed as arrays."""

import numpy as np

from hotloop.policies.parameters import ParameterLayout

LAYOUT = ParameterLayout({"a": (2, 3), "b": (), "c": (4,)})


def random_arrays(seed=0):
    rng = np.random.default_rng(seed)
    return {k: rng.standard_normal(s).astype(np.float32) for k, s in LAYOUT.shapes.items()}


def test_pack_and_unpack_are_inverse():
    arrays = random_arrays()
    flat = LAYOUT.pack(arrays)
    assert flat.shape == (11,)
    for name, part in LAYOUT.unpack(flat).items():
        np.testing.assert_array_equal(part.numpy(), arrays[name])
    assert LAYOUT.sizes == [6, 1, 4]
    assert flat[6] == arrays["b"]


def test_views_share_the_parameters_memory():
    """Writes through a view or the tensor are visible in both."""
    flat = LAYOUT.pack(random_arrays())
    views = LAYOUT.views(flat)
    assert {name: view.shape for name, view in views.items()} == LAYOUT.shapes
    for name, view in views.items():
        np.testing.assert_array_equal(view, random_arrays()[name])
    flat.mul_(2.0)
    for name, view in views.items():
        np.testing.assert_array_equal(view, 2.0 * random_arrays()[name])
    views["a"][0, 0] = 77.0
    assert LAYOUT.unpack(flat)["a"][0, 0] == 77.0
    # Leaves of a differentiated computation have views too.
    leaf_views = LAYOUT.views(flat.requires_grad_())
    assert leaf_views["a"].ctypes.data == views["a"].ctypes.data
