"""A trained policy for use without hotloop: as an ONNX graph, or on NumPy alone."""

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

from hotloop.errors import ConfigError, MissingExtraError
from hotloop.policies.acting import ActingPolicy
from hotloop.policies.heads.base import action_limits
from hotloop.policies.network import Network
from hotloop.policies.snapshot import PolicySnapshot
from hotloop.system.files import written_whole
from hotloop.types import Array

OPSET = 18

_LAST_BITS = 1e-4  # relative and absolute: another order of the same sums


def export_numpy(
    network: Network,
    snapshot: PolicySnapshot,
    path: Path,
    *,
    about: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write weights, and a Python file beside them that acts with them and imports NumPy alone.

    Args:
        network: one that acts without torch.
        snapshot: its parameters, and how observations are scaled.
        path: of the weights, which ends in .npz, or a folder for `policy.npz` and `policy.py`.
            What is missing of it is made.
        about: what to keep beside the parameters, as JSON.

    Returns:
        Both files.

    Raises:
        ConfigError: the network acts through torch, or a Python file that somebody else wrote has
            the name of the one that acts.
        OutputError: a file can't be written.
    """
    weights = path if path.suffix == ".npz" else path / "policy.npz"
    code = weights.with_suffix(".py")
    source = importlib.resources.files("hotloop.policies") / "standalone.py"
    content = source.read_text(encoding="utf-8")
    opening = content.partition("\n")[0].encode()
    if code.exists() and not (code.is_file() and code.read_bytes().startswith(opening)):
        raise ConfigError(
            f"`path` must leave {code} alone, which is not a file that hotloop wrote: name other "
            "weights, or another folder"
        )
    _check_unmasked(network)
    layers = network.layers.twin
    if layers is None:
        raise ConfigError(
            f"NumPy can't compute network '{network.body.name}', which acts through torch: export "
            "it with --format onnx"
        )
    spec, head = network.action_spec, network.make_head()
    described = {
        **(about or {}),
        **_interface(network),
        "activation": layers.activation,
        "policy_layers": layers.names["policy"],
        "value_layers": layers.names.get("value", []),
    }
    arrays: dict[str, Array] = {"about": np.array(json.dumps(described))}
    params = head.fold(snapshot.params)
    if layers.memory is not None:
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
    with written_whole(weights) as aside:
        np.savez(aside, **arrays)  # pyright: ignore[reportArgumentType]
    with written_whole(code) as aside:
        aside.write_text(content, encoding="utf-8")
    return [weights, code]


def _check_unmasked(network: Network) -> None:
    """Refuse a policy that acts by masks.

    Raises:
        ConfigError: it does.
    """
    if network.obs_spec.mask_size:
        raise ConfigError(
            "a policy that was trained with `action_masks` can't be exported: act by "
            "`hotloop.load(run).act(obs, action_mask=info['action_mask'])`, which needs no torch "
            "for perceptrons"
        )


def export_onnx(
    network: Network,
    snapshot: PolicySnapshot,
    path: Path,
    *,
    about: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write the policy as one ONNX graph, from raw observations to the environment's actions.

    Input `obs`: (batch, *obs_shape), float32, or uint8 where the environment gives bytes. Outputs
    `action`: the most probable one, as the environment takes it, int64 or float32, (batch,
    *action_shape); `head`: what the network gives, float32, (batch, H); `value`: float32,
    (batch,), where there is one. Of a policy with memory, a second input `memory`, float32,
    (batch, M), 0 where an episode begins, and a last output `next_memory`, for the next step.
    Before it is written, onnxruntime must give what the policy gives.

    Args:
        network: any.
        snapshot: its parameters, and how observations are scaled.
        path: where to.
        about: becomes the graph's metadata.

    Returns:
        The file.

    Raises:
        ConfigError: torch can't turn the network into a graph.
        MissingExtraError: onnx, onnxscript, onnxruntime or torch is not installed.
        OutputError: the file can't be written.
    """
    _check_unmasked(network)
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  # pyright: ignore[reportUnusedImport]
        import torch

        from hotloop.policies.traced import TracedPolicy
    except ImportError as error:
        raise MissingExtraError(
            f"exporting to ONNX needs onnx, onnxscript, onnxruntime and torch ({error}): "
            "pip install 'hotloop[train,export]'"
        ) from error
    policy = TracedPolicy(network, snapshot)
    # Not a batch of 1 or 2: the tracer might take that for all there is.
    example = {name: torch.from_numpy(x) for name, x in _some_inputs(network, 3).items()}
    outputs = ["action", "head"]
    outputs += (["value"] if network.has_value else []) + ["next_memory"] * ("memory" in example)
    batch = torch.export.Dim("batch")
    try:
        with _quiet():
            program = torch.onnx.export(
                policy,
                tuple(example.values()),
                input_names=list(example),
                output_names=outputs,
                dynamic_shapes={name: {0: batch} for name in example},
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:
        raise _not_traceable(network, _root_cause(error)) from error
    assert program is not None
    model = program.model_proto
    for key, value in {**(about or {}), **_interface(network)}.items():
        text = value if isinstance(value, str) else json.dumps(value)
        model.metadata_props.add(key=f"hotloop.{key}", value=text)
    onnx.checker.check_model(model)
    content = model.SerializeToString()
    _check(network, snapshot, onnxruntime, content)
    with written_whole(path) as aside:
        aside.write_bytes(content)
    return [path]


def _interface(network: Network) -> dict[str, Any]:
    """What goes in and comes out, as JSON."""
    obs_spec, action_spec = network.obs_spec.to_json(), network.action_spec
    memory = network.layers.memory
    remembered: dict[str, Any] = {}
    if memory is not None:
        told = {"kind": memory.kind, "units": memory.num_units, "size": memory.size}
        remembered = {"memory": told}
    return {
        **remembered,
        "obs_shape": obs_spec["shape"],
        "obs_dtype": obs_spec["dtype"],
        "obs_layout": obs_spec["layout"],
        "action": action_spec.kind,
        "action_shape": list(action_spec.shape),
        "head": network.make_head().meaning,
    }


def _check(network: Network, snapshot: PolicySnapshot, onnxruntime: Any, content: bytes) -> None:
    """Make sure that the graph gives what the policy gives, in batches of other sizes too."""
    policy = ActingPolicy(network, snapshot)
    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        for num_rows in (1, 5):
            given = _some_inputs(network, num_rows)
            obs, before = given["obs"], given.get("memory")
            after = None if before is None else before.copy()
            wanted = {"head": policy.head(obs, None, after)}
            if policy.has_value:
                wanted["value"] = policy.value(obs, before)
            if after is not None:
                wanted["next_memory"] = after
            got = session.run(list(wanted), given)
            for ours, theirs in zip(wanted.values(), got, strict=True):
                np.testing.assert_allclose(theirs, ours, rtol=_LAST_BITS, atol=_LAST_BITS)
    except AssertionError as error:
        difference = next(line for line in str(error).split("\n") if "difference" in line.lower())
        raise _not_traceable(network, f"the graph gives other numbers, {difference}") from error
    except Exception as error:
        raise _not_traceable(network, _root_cause(error)) from error


def _some_inputs(network: Network, num_rows: int) -> dict[str, Array]:
    """Inputs that any network takes: bytes may be indices, of which 0 and 1 are sure."""
    spec, generator = network.obs_spec, np.random.default_rng(num_rows)
    shape = (num_rows, *spec.shape)
    if spec.dtype == "uint8":
        inputs = {"obs": generator.integers(0, 2, shape, np.uint8)}
    else:
        inputs = {"obs": generator.standard_normal(shape, np.float32)}
    if network.memory_size:
        remembered = generator.uniform(-1.0, 1.0, (num_rows, network.memory_size))
        inputs["memory"] = remembered.astype(np.float32)
    return inputs


def _not_traceable(network: Network, why: str) -> ConfigError:
    return ConfigError(
        f"network '{network.body.name}' can't become an ONNX graph ({why}): its `forward` must do "
        "the same for all observations and any number of them, without branches on either: "
        "simplify it, or act with hotloop's own ActingPolicy"
    )


def _root_cause(error: BaseException) -> str:
    """`TypeError: its message`, of what the others were raised for."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's warnings, and the graphs that it prints when it fails."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    unread = io.StringIO()
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(unread),
            contextlib.redirect_stderr(unread),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
