"""Functions of arrays or tensors, called with both."""

import numpy as np
import pytest
import torch

KINDS = {"arrays": np.asarray, "tensors": torch.from_numpy}


@pytest.fixture(params=list(KINDS))
def call(request):
    """Return a function that calls another one with arrays or with tensors."""
    return caller(request.param)


def caller(kind):
    """Return `call` for one kind. Results are checked to be of it, and returned as arrays."""

    def call(function, *args, **kwargs):
        def convert(x):
            return KINDS[kind](x) if isinstance(x, np.ndarray) else x

        args, kwargs = map(convert, args), {name: convert(x) for name, x in kwargs.items()}
        result = function(*args, **kwargs)
        results = result if isinstance(result, tuple) else [result]
        for x in results:
            assert isinstance(x, float | (np.ndarray if kind == "arrays" else torch.Tensor))
        if isinstance(result, tuple):
            return type(result)(*map(np.asarray, result))
        return result if isinstance(result, float) else np.asarray(result)

    return call
