"""The files of `examples/cluster`, as far as they can be checked without a cloud."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed")

import jsonschema  # noqa: E402
import yaml  # noqa: E402

EXAMPLES = Path(__file__).parents[3] / "examples" / "cluster"


def read_example(name):
    return yaml.safe_load((EXAMPLES / name).read_text())


def parse_options(command):
    """Parse the options of a training command."""
    from hotloop.algorithms import ppo

    words = command.split()
    assert words[:3] == ["hotloop", "train", "ppo"]
    pairs = dict(zip(words[3::2], words[4::2], strict=True))
    named = {name.removeprefix("--").replace("-", "_"): text for name, text in pairs.items()}
    numbers = {name: int(x) for name, x in named.items() if x.isdigit()}
    return ppo.Config(**{**named, **numbers})


def test_ray_accepts_the_file_for_aws(monkeypatch):
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = read_example("aws.yaml")
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    jsonschema.validate(config, schema)
    validate_config(prepare_config(config))
    text = (EXAMPLES / "aws.yaml").read_text().replace("\n#       ", " ")
    workers = parse_options(text.split("--tmux '")[1].split("'")[0]).workers
    kinds = config["available_node_types"]
    assert workers <= kinds["workers"]["min_workers"] * kinds["workers"]["resources"]["CPU"]


def test_the_file_for_kuberay_has_the_fields_of_a_rayjob():
    """Check the fields of `ray.io/v1` and their types."""
    job = read_example("kuberay.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert set(job) == {"apiVersion", "kind", "metadata", "spec"}
    spec = job["spec"]
    assert set(spec) <= {"entrypoint", "shutdownAfterJobFinishes", "rayClusterSpec"}
    assert set(spec["rayClusterSpec"]) == {"headGroupSpec", "workerGroupSpecs"}
    head, (group,) = spec["rayClusterSpec"].values()
    assert set(head) == {"rayStartParams", "template"}
    assert set(group) == {
        *("groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"),
    }
    for node_group in (head, group):
        assert all(isinstance(x, str) for x in node_group["rayStartParams"].values())
        (container,) = node_group["template"]["spec"]["containers"]
        assert container["name"]
        assert container["image"]
        assert container["resources"]["requests"] == container["resources"]["limits"]
    mounted = {x["name"] for x in head["template"]["spec"]["containers"][0]["volumeMounts"]}
    assert mounted == {x["name"] for x in head["template"]["spec"]["volumes"]}
    options = parse_options(spec["entrypoint"])
    (container,) = group["template"]["spec"]["containers"]
    assert options.workers <= group["replicas"] * int(container["resources"]["limits"]["cpu"])
    assert options.run_dir.startswith("/runs/")


def run_slurm(tmp_path, srun, *args, nodes=1, cores=3):
    """Run the script as a Slurm job would, with stand-ins for Slurm's commands."""
    for name, text in {"srun": srun, "scontrol": "printf '127.0.0.1\\nother\\n'"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_NODELIST": "n", "SLURM_JOB_ID": str(os.getpid() + 1000)}
    job |= {"SLURM_JOB_NUM_NODES": str(nodes), "SLURM_CPUS_PER_TASK": str(cores)}
    path = os.pathsep.join([str(tmp_path), os.path.dirname(sys.executable), os.environ["PATH"]])
    return subprocess.run(
        ["bash", EXAMPLES / "slurm.sh", *args],
        env={**os.environ, **job, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_the_script_for_slurm_starts_one_ray_on_all_nodes(tmp_path):
    done = run_slurm(
        tmp_path, 'echo "$RAY_AUTH_MODE ${#RAY_AUTH_TOKEN} $*"', "--seed", "3", nodes=4
    )
    assert done.returncode == 0, done.stderr
    mode, length, *words = done.stdout.split()
    assert (mode, length) == ("token", "64")
    address = words[words.index("--address") + 1]
    assert address.startswith("127.0.0.1:")
    assert words[words.index("--min-nodes") + 1] == "4"
    command = words[words.index("--") + 1 :]
    assert command[-2:] == ["--seed", "3"]
    options = parse_options(" ".join(command))
    assert (options.workers, options.num_envs) == (11, 11)  # of 4 × 3 cores one is the learner's
    assert options.ray_address == address


@pytest.mark.slow
@pytest.mark.outside
@pytest.mark.timeout(240)
def test_the_script_for_slurm_trains_on_a_node(tmp_path):
    run = tmp_path / "run"
    args = ("--total-timesteps", "2048", "--execution", "eager", "--run-dir", str(run))
    done = run_slurm(tmp_path, 'exec "$@"', *args)
    assert done.returncode == 0, done.stderr
    accounting = json.loads((run / "accounting.json").read_text())
    assert accounting["trained"] == 2048
    assert len({worker["node"] for worker in accounting["workers"]}) == 1
