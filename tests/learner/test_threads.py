"""Threads of torch, given back."""

import pytest
import torch

from hotloop.learner import torch_threads


def test_threads_are_given_back():
    before = torch.get_num_threads()

    def fail():
        with torch_threads(before + 1):
            assert torch.get_num_threads() == before + 1
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert torch.get_num_threads() == before
