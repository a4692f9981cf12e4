"""A policy as weights and a Python file that acts with them on NumPy, without hotloop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.base.files import atomic_write
from hotloop.errors import ConfigError
from hotloop.policies.heads import HEADS, ReturnDistribution
from hotloop.policies.heads.base import action_limits
from hotloop.policies.snapshot import PolicySnapshot
from hotloop.policies.spec import Network
from hotloop.types import Array


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
    source = Path(__file__).with_name("standalone.py")
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
            f"NumPy files support only hotloop's heads, got {head}: use --format onnx"
        )
    # Collect the description and the arrays of the layers that act.
    description = {
        **(metadata or {}),
        **interface_fields(network),
        "activation": layers.activation,
        "policy_layers": layers.names["policy"],
        "value_layers": layers.names.get("value", []),
    }
    arrays: dict[str, Array] = {"about": np.array(json.dumps(description))}
    params = network.fold(snapshot.params)
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
        arrays["nvec"] = np.asarray(spec.num_choices, np.int64)
    if head.action_scale is not None:
        num_numbers = len(spec.low)  # hybrid actions have other columns before them
        arrays["centre"], arrays["half"] = (x[-num_numbers:] for x in head.action_scale)
    if isinstance(head, ReturnDistribution):
        arrays["atoms"] = head.atoms
    # Write both files.
    with atomic_write(weights) as temporary_path:
        np.savez(temporary_path, **arrays)  # pyright: ignore[reportArgumentType]
    with atomic_write(code) as temporary_path:
        temporary_path.write_text(content, encoding="utf-8")
    return [weights, code]


def interface_fields(network: Network) -> dict[str, Any]:
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
        "action_is_tuple": action_spec.is_tuple,
        "action_parts": [
            {
                "name": part.name,
                "shape": list(part.shape),
                "dtype": part.space_dtype or part.dtype,
                "columns": [columns.start, columns.stop],
            }
            for part, columns in zip(action_spec.parts, action_spec.columns, strict=True)
        ],
        "mask_size": action_spec.mask_size,
        "head": network.head.meaning,
    }
