"""Export of trained policies for use without hotloop: as an ONNX graph, or for NumPy alone."""

from __future__ import annotations

import contextlib
import importlib.resources
import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.base.files import atomic_write
from hotloop.errors import ConfigError, requires_extra
from hotloop.policies.acting import ActingPolicy
from hotloop.policies.heads import HEADS
from hotloop.policies.heads.base import MASKED, action_limits
from hotloop.policies.snapshot import PolicySnapshot
from hotloop.policies.spec import Network
from hotloop.types import Array

OPSET = 18

_TOLERANCE = 1e-4  # relative and absolute, since the sums have another order


def export_numpy(
    network: Network,
    snapshot: PolicySnapshot,
    path: Path,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write the weights and, beside them, a Python file that acts with them on NumPy alone.

    Args:
        network: a network that acts without torch.
        snapshot: its parameters and the scale of observations.
        path: file for the weights, ending in .npz, or a folder for `policy.npz` and `policy.py`.
            Missing folders are created.
        metadata: values to store beside the parameters, as JSON.

    Returns:
        The paths of both files.

    Raises:
        ConfigError: the network acts through torch, or the name of the Python file belongs to a
            file that hotloop did not write.
        OutputError: a file can't be written.
    """
    weights = path if path.suffix == ".npz" else path / "policy.npz"
    code = weights.with_suffix(".py")
    source = importlib.resources.files("hotloop.policies") / "standalone.py"
    content = source.read_text(encoding="utf-8")
    # Files of hotloop start with the same line. Do not overwrite any other file.
    first_line = content.partition("\n")[0].encode()
    if code.exists() and not (code.is_file() and code.read_bytes().startswith(first_line)):
        raise ConfigError(
            f"`path` would overwrite {code}, which hotloop did not write: choose another name for "
            "the weights, or another folder"
        )
    layers = network.layers.numpy_layers
    if layers is None:
        raise ConfigError(
            f"NumPy can't compute network '{network.name}', which acts through torch: export it "
            "with --format onnx"
        )
    spec, head = network.action_spec, network.head
    if type(head) not in HEADS.values():
        raise ConfigError(
            f"the file for NumPy holds hotloop's own heads, got {head}: export the policy with "
            "--format onnx"
        )
    # Collect the description and the arrays of the layers that act.
    description = {
        **(metadata or {}),
        **_interface(network),
        "activation": layers.activation,
        "policy_layers": layers.names["policy"],
        "value_layers": layers.names.get("value", []),
    }
    arrays: dict[str, Array] = {"about": np.array(json.dumps(description))}
    params = head.fold(snapshot.params)
    if layers.recurrent_layer is not None:
        arrays |= {name: params[name] for name in ("memory.weight", "memory.bias")}
    for layer in dict.fromkeys(chain(*layers.names.values())):
        for part in ("weight", "bias"):
            arrays[f"{layer}.{part}"] = params[f"{layer}.{part}"]
    if snapshot.obs_scale is not None:
        scale = snapshot.obs_scale
        arrays |= {"obs_mean": scale.mean, "obs_std": scale.std}
        arrays["obs_clip"] = np.float32(scale.clip)  # pyright: ignore[reportArgumentType]
    arrays |= action_limits(spec)
    if spec.kind != "box":
        arrays["nvec"] = np.asarray(spec.nvec, np.int64)
    if head.action_scale is not None:
        arrays["centre"], arrays["half"] = head.action_scale
    # Write both files.
    with atomic_write(weights) as temporary_path:
        np.savez(temporary_path, **arrays)  # pyright: ignore[reportArgumentType]
    with atomic_write(code) as temporary_path:
        temporary_path.write_text(content, encoding="utf-8")
    return [weights, code]


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
    box space, (batch, *action_shape), `head`, the outputs of the network, float32, (batch, H), and,
    for a network with a value function, `value`, float32, (batch,). A recurrent policy has a second
    input `memory`, float32, (batch, M), 0 at the start of an episode, and a last output
    `next_memory` for the next step. A policy with action masks has a last input `action_mask`,
    bool, (batch, A), and its `head` is −10³⁰ for forbidden actions. The outputs of onnxruntime must
    match the policy's before the file is written.

    Args:
        network: any network.
        snapshot: its parameters and the scale of observations.
        path: the file to write.
        metadata: values for the graph's metadata.

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

        from hotloop.policies.traced import TracedPolicy
    # Trace the policy. The tracer might specialize on a batch of 1 or 2, so the batch is 3.
    policy = TracedPolicy(network, snapshot)
    example = {name: torch.from_numpy(x) for name, x in _sample_inputs(network, 3).items()}
    outputs = ["action", "head"]
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
    for key, value in {**(metadata or {}), **_interface(network)}.items():
        text = value if isinstance(value, str) else json.dumps(value)
        model.metadata_props.add(key=f"hotloop.{key}", value=text)
    onnx.checker.check_model(model)
    content = model.SerializeToString()
    _check_graph(network, snapshot, onnxruntime, content)
    with atomic_write(path) as temporary_path:
        temporary_path.write_bytes(content)
    return [path]


def _interface(network: Network) -> dict[str, Any]:
    """Return the inputs and outputs as JSON."""
    obs_spec, action_spec = network.obs_spec.to_json(), network.action_spec
    layer = network.layers.recurrent_layer
    memory_fields: dict[str, Any] = {}
    if layer is not None:
        sizes = {"kind": layer.kind, "units": layer.num_units, "size": layer.size}
        memory_fields = {"memory": sizes}
    return {
        **memory_fields,
        "obs_shape": obs_spec["shape"],
        "obs_dtype": obs_spec["dtype"],
        "obs_layout": obs_spec["layout"],
        "action": action_spec.kind,
        "action_shape": list(action_spec.shape),
        "action_dtype": action_spec.space_dtype or action_spec.dtype,
        "mask_size": action_spec.mask_size,
        "head": network.head.meaning,
    }


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
                head[~inputs["action_mask"]] = MASKED
            expected = {"head": head}
            if policy.has_value:
                expected["value"] = policy.value(obs, memory)
            if next_memory is not None:
                expected["next_memory"] = next_memory
            outputs = session.run(list(expected), inputs)
            for array, output in zip(expected.values(), outputs, strict=True):
                np.testing.assert_allclose(output, array, rtol=_TOLERANCE, atol=_TOLERANCE)
    except AssertionError as error:
        difference = next(line for line in str(error).split("\n") if "difference" in line.lower())
        raise _not_traceable(network, f"the graph computes other numbers, {difference}") from error
    except Exception as error:
        raise _not_traceable(network, _root_cause(error)) from error


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
