"""`hotloop export RUN`: a trained policy for use without hotloop."""

from __future__ import annotations

import argparse
from pathlib import Path

from hotloop.cli import add_trust, import_from_here, need
from hotloop.errors import ConfigError


def run(args: list[str]) -> int:
    """Export; see `hotloop export --help`."""
    parser = argparse.ArgumentParser(
        prog="hotloop export",
        description="Write a trained policy as one ONNX graph, or as weights and a Python file "
        "that needs NumPy alone. Both take raw observations and give the most probable action as "
        "the environment takes it: scaling, clipping and offsets are inside.",
    )
    parser.add_argument("run", metavar="RUN", help="a run directory")
    parser.add_argument("--format", choices=("onnx", "numpy"), required=True)
    parser.add_argument(
        "--checkpoint", default="last", help="last, best, or another one (default: %(default)s)"
    )
    parser.add_argument(
        "--output",
        metavar="PATH",
        type=Path,
        help="a file that ends in .onnx, or a folder for policy.npz and policy.py "
        "(default: RUN/export/policy.onnx, RUN/export)",
    )
    add_trust(parser)
    options = parser.parse_args(args)
    output, is_onnx = options.output, options.format == "onnx"
    if output is None:
        output = Path(options.run) / "export" / ("policy.onnx" if is_onnx else "")
    elif is_onnx and output.suffix != ".onnx":
        raise ConfigError(f"`--output` must end in .onnx, got '{output}'")
    elif not is_onnx and output.is_file():
        raise ConfigError(f"`--output` must be a folder for --format numpy, got a file: '{output}'")
    need("safetensors", extra="train", purpose="reading a checkpoint")

    from hotloop import __version__
    from hotloop.policies.export import OPSET, export_numpy, export_onnx
    from hotloop.runs import RunDirectory
    from hotloop.runs.trust import refuse_ways_out

    directory = RunDirectory.open(options.run)
    if directory.may_import(is_trusted=options.trust):
        import_from_here()
    if options.output is None:
        refuse_ways_out(directory.path, is_own=directory.is_own)
    network, snapshot, state = directory.load_policy(options.checkpoint, is_trusted=options.trust)
    about = {
        "env_id": directory.config["env_id"],
        "algorithm": directory.config["algorithm"],
        "timesteps": state["timesteps"],
        "version": __version__,
    }
    export = export_onnx if is_onnx else export_numpy
    written = export(network, snapshot, output, about=about)
    obs, action = network.obs_spec, network.action_spec
    print(f"{about['algorithm']} on {about['env_id']} after {about['timesteps']:,} steps")
    is_plain = len(obs.layout) == 1 and obs.layout[0].encoding == "box"
    how = "as the environment gives it"
    if not is_plain:
        how = "a vector; the file has its layout" if is_onnx else f"or {how}"
    print(f"obs     {obs.dtype} {_shape(*obs.shape)}, {how}")
    if network.memory_size:
        told = "0 where an episode begins"
        told += ", then the last `next_memory`" if is_onnx else ", changed in place"
        print(f"memory  float32 {_shape(network.memory_size)}, {told}")
    print(f"action  {action.dtype} {_shape(*action.shape)}, the most probable one")
    print(f"head    float32 {_shape(network.head_size)}, {network.make_head().description}")
    if network.has_value:
        print(f"value   float32 {_shape()}")
    if network.memory_size and is_onnx:
        print(f"next_memory  float32 {_shape(network.memory_size)}")
    for path in written:
        version = f", ONNX opset {OPSET}" if is_onnx else ""
        print(f"{path}: {path.stat().st_size / 1000:,.1f} kB{version}")
    return 0


def _shape(*rest: int) -> str:
    return f"(batch, {', '.join(map(str, rest))})" if rest else "(batch,)"
