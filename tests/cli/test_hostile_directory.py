"""Commands import nothing from the working directory, whatever files lie there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ONE_RAY

# Third-party modules that hotloop or a library of its imports, some only if they are installed.
_LIBRARIES = (
    *("hotloop", "numpy", "rich", "torch", "gymnasium", "tyro", "numba", "llvmlite", "matplotlib"),
    *("safetensors", "threadpoolctl", "tomli_w", "tomli", "mujoco", "ale_py", "envpool", "cv2"),
    *("vizdoom", "ray", "optuna", "cmaes", "wandb", "tensorboard", "pyarrow", "imageio_ffmpeg"),
    *("pygame", "onnx", "onnxscript", "onnxruntime", "sitecustomize", "usercustomize", "yaml"),
    *("PIL", "scipy", "pandas", "cloudpickle", "typing_extensions", "IPython", "moviepy", "jax"),
)
_OPTIONS = ["--total-timesteps", "256", "--num-envs", "2", "--num-steps", "32"]
_OPTIONS += ["--execution", "eager", "--torch-threads", "1", "--hidden-sizes", "8"]
_RAY = ["--workers", "1", "--backend", "ray", "--inference", "central"]
_TRAIN = ["ppo", "--env-id", "CartPole-v1", *_OPTIONS]

# Commands that need no training.
QUICK = (
    ["--help"],
    ["--version"],
    ["presets"],
    ["cache"],
    ["runs", ".", "--json"],
    ["report", "."],
    ["compare", ".", "OUT/other"],
    ["plot", ".", "--output", "OUT/curves.png"],
    ["eval", ".", "--episodes", "1"],
    ["resume", ".", "--total-timesteps", "768"],
    ["profile", "--out", "OUT/profile", "OUT/script.py"],
)
SLOW = {
    "bandit": ["bandit", "run", "ucb", "--runs", "2", "--steps", "10", "--arms", "2"],
    "doctor": ["doctor"],
    "export": ["export", ".", "--format", "numpy"],
    "train": [
        "train",
        *_TRAIN,
        "--workers",
        "2",
        "--run-dir",
        "OUT/run",
        "--gamma",
        "linear:0.9,1",
    ],
    "seeds": ["train", *_TRAIN, "--seeds", "1-2", "--jobs", "2", "--run-dir", "OUT/runs"],
    "sweep": [
        "sweep",
        *_TRAIN,
        "learning_rate=log:1e-3,1e-2",
        "--trials",
        "2",
        "--file",
        "OUT/s.db",
    ],
    "ray": ["train", *_TRAIN, *_RAY, "--run-dir", "OUT/run"],
    "profile train": ["profile", "--out", "OUT/p", "train", *_TRAIN, "--run-dir", "OUT/run"],
}
FOLLOWING = {"sweep": [["sweep", "report", "OUT/s.db"]]}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Return a function that fills a run directory with modules which leave a marker."""
    names = {*sys.stdlib_module_names, *_LIBRARIES} - {"sys"}

    def fill(run: Path, marker: Path) -> None:
        for name in sorted(names):
            (run / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write({name!r} + ' ')\n")
        (run / "plugin-1.dist-info").mkdir()
        (run / "plugin-1.dist-info" / "METADATA").write_text("Name: plugin\nVersion: 1\n")
        points = "[gymnasium.envs]\n__root__ = stranger:register\n"
        (run / "plugin-1.dist-info" / "entry_points.txt").write_text(points)
        (run / "stranger.py").write_text(f"open({str(marker)!r}, 'a').write('stranger ')\n")
        (run / ".numba_config.yaml").write_text(f"cache_dir: {marker.parent / 'numba'}\n")

    return fill


# The installed script: its own folder comes first on the path.
PROGRAM = """
import sys
sys.path[0] = sys.argv[1]
import json
from hotloop.cli import main
for arguments in json.loads(sys.argv[2]):
    sys.argv[1:] = arguments
    try:
        code = main()
    except SystemExit as stop:
        code = stop.code
    if code:
        sys.exit(f"{arguments} ended with {code}")
"""


def check(tmp_path, hostile, copy_trained_run, *commands):
    """Run the commands in one process, in a run's directory full of modules."""
    run, marker, out = copy_trained_run("ppo", "run"), tmp_path / "marker", tmp_path / "out"
    shutil.copytree(run, out / "other", symlinks=True)
    hostile(run, marker)
    (out / "script.py").write_text("import json\nsum(range(10**6))\n")
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths))
    texts = json.dumps(commands).replace("OUT", str(out))
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(out), texts],
        cwd=run,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert not marker.exists(), f"{marker.read_text()}: {result.stderr}"
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "numba").exists()


def test_commands_import_nothing_from_a_run_directory(tmp_path, hostile, copy_trained_run):
    check(tmp_path, hostile, copy_trained_run, *QUICK)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=ONE_RAY if name == "ray" else pytest.mark.slow) for name in SLOW],
)
def test_a_slower_command_imports_nothing(tmp_path, hostile, copy_trained_run, name):
    check(tmp_path, hostile, copy_trained_run, SLOW[name], *FOLLOWING.get(name, ()))
