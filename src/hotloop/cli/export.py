"""`hotloop export RUN`: save a trained policy or its episodes for use without hotloop."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.base.rounding import format_mean
from hotloop.cli.command_parser import CommandParser, count
from hotloop.cli.stored_run import add_run_arguments, open_run
from hotloop.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.policies import Network


def run(args: list[str]) -> int:
    """Run the command. See `hotloop export --help`."""
    parser = CommandParser(
        prog="hotloop export",
        description="Save a trained policy as one ONNX graph, or as weights and a Python file that "
        "needs only NumPy. Both map raw observations to the most probable action, in the format "
        "of the environment: scaling, clipping and offsets are included. With --minari, play "
        "episodes and save them as a data set of Minari instead.",
    )
    add_run_arguments(parser)
    parser.add_argument(
        "--format",
        choices=("onnx", "numpy"),
        help="onnx: one graph; numpy: policy.npz and policy.py, which need NumPy only",
    )
    parser.add_argument(
        "--minari",
        metavar="NAME",
        help="a new data set in MINARI_DATASETS_PATH, such as pendulum/medium-v0",
    )
    parser.add_argument("--episodes", type=count, help="--minari: episodes to play (default: 100)")
    parser.add_argument(
        "--sample",
        action="store_true",
        help="--minari: sample actions instead of the most probable ones",
    )
    parser.add_argument(
        "--output",
        metavar="PATH",
        type=Path,
        help="a file that ends in .onnx, or a directory for policy.npz and policy.py "
        "(default: RUN/export/policy.onnx, RUN/export)",
    )
    options = parser.parse_args(args)
    if (options.format is None) == (options.minari is None):
        raise ConfigError("expected either `--format` onnx or numpy, or `--minari` NAME")
    if options.minari is not None:
        return _record(options)
    if options.episodes is not None or options.sample:
        raise ConfigError("`--episodes` and `--sample` are for `--minari`: leave them out")
    output, is_onnx = options.output, options.format == "onnx"
    if output is None:
        output = Path(options.run) / "export" / ("policy.onnx" if is_onnx else "")
    elif is_onnx and output.suffix != ".onnx":
        raise ConfigError(f"`--output` must end in .onnx, got '{output}'")
    elif not is_onnx and output.is_file():
        raise ConfigError(f"`--output` must be a directory for --format numpy, got file '{output}'")
    directory = open_run(options)

    from hotloop.base.version import __version__
    from hotloop.policies.export import OPSET, export_numpy, export_onnx
    from hotloop.runs.trust import check_links

    # Load the policy.
    if options.output is None:
        check_links(directory.path, is_own_run=directory.is_signed)
    network, snapshot, state = directory.load_policy(options.checkpoint, is_trusted=options.trust)
    metadata = {
        "env_id": directory.config["env_id"],
        "algorithm": directory.config["algorithm"],
        "timesteps": state["timesteps"],
        "version": __version__,
    }
    # Write the files, and describe their inputs and outputs.
    export = export_onnx if is_onnx else export_numpy
    written = export(network, snapshot, output, metadata=metadata)
    print(f"{metadata['algorithm']} on {metadata['env_id']} after {metadata['timesteps']:,} steps")
    _print_inputs_and_outputs(network, is_onnx=is_onnx)
    for path in written:
        version = f", ONNX opset {OPSET}" if is_onnx else ""
        print(f"{path}: {path.stat().st_size / 1000:,.1f} kB{version}")
    return 0


def _print_inputs_and_outputs(network: Network, *, is_onnx: bool) -> None:
    obs, action = network.obs_spec, network.action_spec
    is_plain = len(obs.layout) == 1 and obs.layout[0].encoding == "box"
    layout = "as the environment returns it"
    if not is_plain:
        layout = "a vector; the file describes its layout" if is_onnx else f"or {layout}"
    rows = [("obs", f"{obs.dtype} {_shape(*obs.shape)}, {layout}")]
    if network.memory_size:
        hidden_state = "0 at the start of an episode"
        hidden_state += ", then the last `next_memory`" if is_onnx else ", updated in place"
        rows.append(("memory", f"float32 {_shape(network.memory_size)}, {hidden_state}"))
    if action.mask_size:
        kind = "bool" if is_onnx else "0 or 1"
        rows.append(("action_mask", f"{kind} {_shape(action.mask_size)}, the allowed actions"))
    rows.append(("action", f"{action.dtype} {_shape(*action.shape)}, the most probable one"))
    rows.append(("head", f"float32 {_shape(network.head_size)}, {network.head.description}"))
    if network.has_value:
        rows.append(("value", f"float32 {_shape()}"))
    if network.memory_size and is_onnx:
        rows.append(("next_memory", f"float32 {_shape(network.memory_size)}"))
    width = max(len(name) for name, _ in rows)
    for name, description in rows:
        print(f"{name:{width}}  {description}")


def _record(options: argparse.Namespace) -> int:
    """Play episodes, and save them as a data set."""
    if options.output is not None:
        raise ConfigError("`--minari` writes into MINARI_DATASETS_PATH: leave out `--output`")
    open_run(options)

    from hotloop.training.recording import record_episodes

    recorded = record_episodes(
        options.run,
        options.minari,
        episodes=options.episodes or 100,
        checkpoint=options.checkpoint,
        is_sampled=options.sample,
        is_trusted=options.trust,
    )
    mean = format_mean(recorded["mean_return"], recorded["std_return"])
    print(f"{recorded['episodes']:,} episodes, {recorded['steps']:,} steps, mean return {mean}")
    print(recorded["path"])
    print(f"--replay-from minari:{options.minari} trains with them")
    return 0


def _shape(*dims: int) -> str:
    return f"(batch, {', '.join(map(str, dims))})" if dims else "(batch,)"
