"""Acting on a device for host environments: staging, padding, synchronization and one graph."""

import numpy as np
import pytest
import torch

from hotloop.learner import Execution, ExecutionChoice
from hotloop.policies.torch_acting import DeviceCall
from tests.device_copies import FakePinning
from tests.learner.test_cuda_graphs import FakeCapturer

CPU, META = torch.device("cpu:0"), torch.device("meta")
FLOAT32 = np.dtype(np.float32)


def scaled_outputs(params, obs, memory):
    """Return two columns as head, one as value, and the memory of a recurrent network."""
    outputs = obs[:, :2] * params[0], obs.sum(1)
    return outputs if memory is None else (*outputs, memory + 1.0)


def rows(count, width=3, dtype=np.float32):
    return np.arange(count * width, dtype=dtype).reshape(count, width)


def expected(obs, memory, factor=2.0):
    parts = [obs[:, :2] * factor, obs.sum(1, keepdims=True)]
    return np.concatenate([*parts, memory + 1.0] if memory is not None else parts, 1)


@pytest.mark.parametrize("has_memory", [False, True])
@pytest.mark.parametrize("num_rows", [None, 4])
def test_batches_of_any_size(num_rows, has_memory):
    columns = 5 if has_memory else 3
    call = DeviceCall(scaled_outputs, torch.full((1,), 2.0), columns, CPU, num_rows=num_rows)
    for count in (4, 1, 3, 4, 9, 2):
        obs = rows(count)
        memory = -rows(count, 2) if has_memory else None
        np.testing.assert_array_equal(call(obs, memory, FLOAT32), expected(obs, memory))


def test_batches_are_padded_to_the_rows_of_the_graph():
    shapes = []

    def recording(params, obs, memory):
        shapes.append(tuple(obs.shape))
        return scaled_outputs(params, obs, memory)

    call = DeviceCall(recording, torch.ones(1), 3, CPU, num_rows=4)
    for count in (4, 1, 9):
        call(rows(count), None, FLOAT32)
    assert shapes == [(4, 3)] * 5  # 9 rows are three batches


def test_observations_are_cast_to_the_networks_dtype():
    call = DeviceCall(scaled_outputs, torch.ones(1), 3, CPU, num_rows=2)
    obs = rows(2, dtype=np.float64)[:, ::-1]
    np.testing.assert_array_equal(call(obs, None, FLOAT32), expected(obs, None, 1.0))
    assert call(rows(2, dtype=np.uint8), None, np.dtype(np.uint8)).dtype == np.float32


def test_graph_reads_staged_rows_and_parameters_in_place():
    params, executions = torch.full((1,), 2.0), []
    device = FakeCapturer(None)

    def execute(function, name):
        choice = ExecutionChoice(False, "for the test", is_captured=True)
        execution = Execution(function, choice, name, capturer=device)
        executions.append(execution)

        def run(staged):
            device.state = staged  # needed by the stand-in device
            return execution(staged)

        return run

    call = DeviceCall(scaled_outputs, params, 3, CPU, num_rows=4, execute=execute)
    for count in (4, 2, 7):
        np.testing.assert_array_equal(call(rows(count), None, FLOAT32), expected(rows(count), None))
    params.mul_(2.0)  # as learning does, in place
    np.testing.assert_array_equal(call(rows(4), None, FLOAT32), expected(rows(4), None, 4.0))
    assert device.captures == 1
    assert executions[0].mode_used == "cudagraph"
    assert executions[0].num_recompilations == 0
    # Stacking learners for a joint update moves their parameters, and a graph holds addresses.
    params.data = torch.full((2, 1), 3.0)[1]
    np.testing.assert_array_equal(call(rows(4), None, FLOAT32), expected(rows(4), None, 3.0))
    np.testing.assert_array_equal(call(rows(2), None, FLOAT32), expected(rows(2), None, 3.0))
    assert device.captures == 2
    # So do observations of another dtype.
    images = rows(4, width=4, dtype=np.uint8)
    np.testing.assert_array_equal(
        call(images, None, np.dtype(np.uint8)), expected(images.astype(np.float32), None, 3.0)
    )
    assert device.captures == 3


@pytest.mark.parametrize("num_rows", [None, 2])
def test_transfers_are_pinned_and_the_host_waits_once(monkeypatch, num_rows):
    """torch's device `meta` has no values."""
    pinning, shapes = FakePinning(monkeypatch), []

    def function(params, obs, memory):
        shapes.append((obs.device.type, memory.device.type))
        return torch.ones(len(obs), 2), torch.full((len(obs),), 3.0), torch.zeros(len(obs), 1)

    call = DeviceCall(function, torch.ones(1, device=META), 4, META, num_rows=num_rows)
    with pinning.listed() as copies:
        for _ in range(2):
            outputs = call(rows(2), rows(2, 1), FLOAT32)
    assert shapes == [("meta", "meta")] * 2
    assert (copies.uploads, copies.downloads) == ([], [])
    assert pinning.log == ["record", "wait"] * 2
    np.testing.assert_array_equal(outputs, [[1.0, 1.0, 3.0, 0.0]] * 2)
    # Unpinned memory raises the count.
    with pinning.listed() as copies:
        torch.ones(3).to(META)
        torch.ones(3, device=META).copy_(torch.ones(3), non_blocking=True)
        torch.tensor([1.0], device=META)
    assert len(copies.uploads) == 3
