"""A policy as one ONNX graph, compared with the policy before it is written."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.base.files import atomic_write
from hotloop.errors import ConfigError, requires_extra
from hotloop.policies.acting import ActingPolicy
from hotloop.policies.export.numpy_file import interface_fields
from hotloop.policies.snapshot import PolicySnapshot
from hotloop.policies.spec import Network
from hotloop.types import Array

OPSET = 18

_TOLERANCE = 1e-4  # relative and absolute, since sums are in a different order


def export_onnx(
    network: Network,
    snapshot: PolicySnapshot,
    path: Path,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write the policy as one ONNX graph, from raw observations to the environment's actions.

    The input is `obs`, (batch, *obs_shape), float32, or uint8 if the observations are bytes. The
    outputs are `action`, the most probable action for the environment, int64 or the dtype of its
    box space, (batch, *action_shape), or one output `action.NAME` for each part of a Dict or Tuple
    space, `head`, the outputs of the network, float32, (batch, H), and, for a network with a value
    function, `value`, float32, (batch,). A recurrent policy has a second
    input `memory`, float32, (batch, M), 0 at the start of an episode, and a last output
    `next_memory` for the next step. A policy with action masks has a last input `action_mask`,
    bool, (batch, A), and its `head` is −10³⁰ for forbidden actions. The outputs of onnxruntime must
    match the policy's before the file is written.

    Returns:
        The path of the file.

    Raises:
        ConfigError: torch can't turn the network into a graph.
        MissingExtraError: onnx, onnxscript, onnxruntime or torch is not installed.
        OutputError: the file can't be written.
    """
    libraries = "onnx, onnxscript, onnxruntime and torch"
    with requires_extra(f"exporting to ONNX needs {libraries}", "train,export"):
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  # pyright: ignore[reportUnusedImport]
        import torch

        from hotloop.policies.export.traced_policy import TracedPolicy
    # Trace the policy. The tracer might specialize on a batch of 1 or 2, so the batch is 3.
    policy = TracedPolicy(network, snapshot)
    example = {name: torch.from_numpy(x) for name, x in _sample_inputs(network, 3).items()}
    outputs = [*_action_names(network), "head"]
    outputs += (["value"] if network.has_value else []) + ["next_memory"] * ("memory" in example)
    example = {"obs": example.pop("obs"), "memory": None, "action_mask": None} | example
    batch = torch.export.Dim("batch")
    try:
        with _suppress_output():
            program = torch.onnx.export(
                policy,
                tuple(example.values()),
                input_names=[name for name, x in example.items() if x is not None],
                output_names=outputs,
                dynamic_shapes={
                    name: None if x is None else {0: batch} for name, x in example.items()
                },
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:
        raise _not_traceable(network, _root_cause(error)) from error
    # Add the metadata, check the graph and write it.
    assert program is not None
    model = program.model_proto
    for key, value in {**(metadata or {}), **interface_fields(network)}.items():
        text = value if isinstance(value, str) else json.dumps(value)
        model.metadata_props.add(key=f"hotloop.{key}", value=text)
    onnx.checker.check_model(model)
    content = model.SerializeToString()
    _check_graph(network, snapshot, onnxruntime, content)
    with atomic_write(path) as temporary_path:
        temporary_path.write_bytes(content)
    return [path]


def _check_graph(
    network: Network, snapshot: PolicySnapshot, onnxruntime: Any, content: bytes
) -> None:
    """Raise `ConfigError` if the outputs of graph and policy differ, for several batch sizes."""
    policy = ActingPolicy(network, snapshot)
    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        for num_rows in (1, 5):
            inputs = _sample_inputs(network, num_rows)
            obs, memory = inputs["obs"], inputs.get("memory")
            next_memory = None if memory is None else memory.copy()
            head = policy.head(obs, None, next_memory)
            if "action_mask" in inputs:
                network.head.forbid_array(head, inputs["action_mask"])
            expected = {"head": head}
            if policy.has_value:
                expected["value"] = policy.value(obs, memory)
            if next_memory is not None:
                expected["next_memory"] = next_memory
            names = _action_names(network)
            outputs = session.run([*names, *expected], inputs)
            actions, outputs = outputs[: len(names)], outputs[len(names) :]
            _check_action(network, outputs[0], actions)
            for array, output in zip(expected.values(), outputs, strict=True):
                np.testing.assert_allclose(output, array, rtol=_TOLERANCE, atol=_TOLERANCE)
    except ConfigError:
        raise
    except AssertionError as error:
        difference = next(line for line in str(error).split("\n") if "difference" in line.lower())
        raise _not_traceable(network, f"the graph computes other numbers, {difference}") from error
    except Exception as error:
        raise _not_traceable(network, _root_cause(error)) from error


def _action_names(network: Network) -> list[str]:
    """Return the names of the outputs that are the action or its parts."""
    return [f"action.{part.name}" for part in network.action_spec.parts] or ["action"]


def _check_action(network: Network, head: Array, actions: list[Array]) -> None:
    """Raise `ConfigError` if `mode` of the head, in the graph, and `greedy` differ."""
    spec = network.action_spec
    chosen = np.empty((len(head), *spec.shape), spec.dtype)
    network.head.greedy(head, chosen)
    decoded = spec.decode(chosen)
    expected: list[Array] = [decoded]
    if spec.parts:
        expected = list(decoded if spec.is_tuple else decoded.values())
    for part, action, value in zip(spec.parts or (spec,), actions, expected, strict=True):
        rounding = 1.0 if part.kind == "box" and value.dtype.kind != "f" else _TOLERANCE
        if not np.allclose(action, value, rtol=_TOLERANCE, atol=rounding):
            raise ConfigError(
                f"the graph's actions are not the policy's: `mode` of the head {network.head}, in "
                "torch, must choose what its `greedy` writes"
            )


def _sample_inputs(network: Network, num_rows: int) -> dict[str, Array]:
    """Return valid inputs for any network. Bytes may be indices, so they are 0 and 1."""
    spec, generator = network.obs_spec, np.random.default_rng(num_rows)
    shape = (num_rows, *spec.shape)
    inputs: dict[str, Array] = {}
    if spec.dtype == "uint8":
        inputs["obs"] = generator.integers(0, 2, shape, np.uint8)
    else:
        inputs["obs"] = generator.standard_normal(shape, np.float32)
    if network.memory_size:
        hidden_state = generator.uniform(-1.0, 1.0, (num_rows, network.memory_size))
        inputs["memory"] = hidden_state.astype(np.float32)
    if network.action_spec.is_masked:
        inputs["action_mask"] = generator.random((num_rows, network.action_spec.mask_size)) < 0.5
    return inputs


def _not_traceable(network: Network, reason: str) -> ConfigError:
    return ConfigError(
        f"network '{network.name}' can't become an ONNX graph ({reason}): its `forward` must "
        "not branch on the observations or the batch size: simplify it, or act with hotloop's own "
        "ActingPolicy"
    )


def _root_cause(error: BaseException) -> str:
    """Return the first cause of an error, such as `TypeError: its message`."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"


@contextlib.contextmanager
def _suppress_output() -> Iterator[None]:
    """Suppress the exporter's warnings and the graphs that it prints when it fails."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    discarded = io.StringIO()
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(discarded),
            contextlib.redirect_stderr(discarded),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
