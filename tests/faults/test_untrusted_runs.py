"""Run directories from untrusted sources: no code of theirs runs, and no other file changes."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.forks import ProcessResult
from tests.faults.test_fuzz import copy_run, seal
from tests.faults.trials import KINDS, Failed, check_error_message, check_success

faults = pytest.mark.faults

# A module that a run's files name. It writes a file when it is imported.
_UNTRUSTED_MODULE = """
import os
from pathlib import Path

Path(os.environ["HOTLOOP_FAULTS_MARKER"]).write_text("untrusted code ran")

def __getattr__(name):
    import gymnasium
    return lambda *args, **kwargs: gymnasium.make("CartPole-v1")
"""


class _Sandbox:
    """An untrusted run and surrounding files that must not change.

    Attributes:
        run: Run directory.
        outside: Directory beside it.
        cwd: Working directory of commands, with the untrusted module.
        marker: File that exists if untrusted code ran.
    """

    def __init__(self, folder, source, is_signed=False):
        self.run, self.outside, self.cwd = folder / "run", folder / "outside", folder / "cwd"
        self.marker = folder / "left"
        folder.mkdir()
        copy_run(source, self.run)
        for name in ("folder", "empty"):
            (self.outside / name).mkdir(parents=True)
        (self.outside / "file").write_text("mine\n")
        shutil.copytree(source / "checkpoints", self.outside / "checkpoints", symlinks=True)
        for name in ("config.json", "metrics.jsonl"):
            shutil.copy(source / name, self.outside / name)
        self.cwd.mkdir()
        for place in (self.cwd, self.run):
            (place / "stranger.py").write_text(_UNTRUSTED_MODULE)
        if not is_signed:
            self.edit(lambda content: content.pop("signature", None))
        self.files_before = self.digests()

    def digests(self):
        """Return a digest of each file outside of the run."""
        digests = {}
        for path in sorted([*self.outside.rglob("*"), *self.cwd.rglob("*")]):
            if "__pycache__" in path.parts:
                continue
            if path.is_symlink():
                digests[str(path)] = os.readlink(path)
            elif path.is_file():
                digests[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                digests[str(path)] = ""
        return digests

    def check(self, command):
        """Check that no untrusted code ran and no file changed.

        Raises:
            Failed: It did.
        """
        if self.marker.exists():
            raise Failed(f"{command} ran untrusted code")
        changed = sorted(dict(self.files_before.items() ^ self.digests().items()))
        if changed:
            names = ", ".join(os.path.relpath(x, self.outside.parent) for x in changed[:4])
            raise Failed(f"{command} changed {names}")

    @property
    def commands(self):
        """Arguments of all commands that read a run."""
        run = self.run
        return {
            "runs": ["runs", run, "--json"],
            "report": ["report", run],
            "compare": ["compare", run, run],
            "plot": ["plot", run, "--output", run / "curves.png"],
            "eval": ["eval", run, "--episodes", 1],
            "export": ["export", run, "--format", "numpy"],
            "resume": ["resume", run, "--total-timesteps", 1792],
        }

    def edit(self, change, name="config.json"):
        """Change a JSON file of the run."""
        content = json.loads((self.run / name).read_text())
        change(content)
        (self.run / name).write_text(json.dumps(content))


@pytest.fixture
def source(forks, tmp_path):
    """Unfinished run with evaluations."""
    run = tmp_path / "source"
    forks.run(*KINDS["evaluated"], "--run-dir", run, die=[110, [str(run)]])
    assert (run / "checkpoints" / "best").is_symlink()
    return run


def _run_command(forks, sandbox, name, *options):
    """Run one command, check the sandbox, and return the result."""
    env = {"HOTLOOP_FAULTS_MARKER": str(sandbox.marker), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*sandbox.commands[name], *options]
    result = forks.run(*command, cwd=str(sandbox.cwd), env=env)
    sandbox.check(name)
    return result


# --- links ----------------------------------------------------------------------------------------

# (Name in the run directory, kind of link) → target of the link, in `outside`.
_FILES = (
    *(".lock", "metrics.jsonl", "config.json", "cores.json", "status.json", "accounting.json"),
    *("learning_curve.png", "self_play.json", "mlflow.json", "curves.png"),
    *("export/policy.npz", "export/policy.py", "nonfinite.safetensors"),
    *(
        "checkpoints/.last.tmp",
        "checkpoints/last/state.json",
        "checkpoints/last/policy.safetensors",
    ),
)
_FOLDERS = (
    *("checkpoints", "timing", "videos", "export", "tensorboard", "wandb", "policies", "pool"),
    *("checkpoints/last", "checkpoints/best", "checkpoints/.step-000000001792.tmp"),
    *("checkpoints/step-000000001792", "checkpoints/step-000000001536"),
)
_TARGETS = {
    **{(name, "file"): "file" for name in _FILES},
    **{(name, "nothing"): "new" for name in _FILES},
    **{(name, "folder"): "folder" for name in _FOLDERS},
    **{(name, "nothing"): "new" for name in _FOLDERS},
    ("checkpoints", "checkpoints"): "checkpoints",
    ("checkpoints/last", "checkpoints"): "checkpoints/last",
    ("config.json", "config.json"): "config.json",
    ("metrics.jsonl", "metrics.jsonl"): "metrics.jsonl",
}


def _try_link(forks, source, folder, place):
    (name, _), target = place, _TARGETS[place]
    sandbox = _Sandbox(folder, source)
    path = sandbox.run / name
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(sandbox.outside / target, os.path.realpath(path.parent)))
    num_refused = 0
    for command in sandbox.commands:
        result = _run_command(forks, sandbox, command)
        if result.code != 0:
            check_error_message(result)
            num_refused += 1
        else:
            check_success(result, command)
    shutil.rmtree(folder)
    return "refused by some commands" if num_refused else "harmless"


@faults
@pytest.mark.timeout(900)
def test_links_that_lead_out(forks, source, tally, tmp_path):
    tally("links in the place of a run's files").run(
        lambda place: _try_link(forks, source, tmp_path / "-".join(place).replace("/", "."), place),
        list(_TARGETS),
    )


@pytest.mark.parametrize("name", [".lock", "status.json"])
def test_a_link_that_leads_out(forks, source, tally, tmp_path, name):
    tally("a few links in the place of a run's files").run(
        lambda place: _try_link(forks, source, tmp_path / name, place), [(name, "file")]
    )


# --- names ----------------------------------------------------------------------------------------


def _set_options(**options):
    return lambda content: content["config"].update(options)


def _set_environment(env_id, /, **env_kwargs):
    def change(content):
        content["env_id"] = content["config"]["env_id"] = env_id
        content["config"]["env_kwargs"] = env_kwargs

    return change


# Changes of config.json, and the name that the error must show.
UNTRUSTED_NAMES = {
    "a function as the environment": (_set_environment("stranger:make"), "stranger:make"),
    "a module before an id": (_set_environment("stranger:CartPole-v1"), "stranger:CartPole-v1"),
    "the system's shell": (_set_environment("os:system", command="touch $MARKER"), "os:system"),
    "a process": (_set_environment("subprocess:run", args=["touch", "$MARKER"]), "subprocess:run"),
    "a module that an environment imports": (
        _set_environment("GymV26Environment-v0", env_id="stranger:CartPole-v1"),
        "stranger:CartPole-v1",
    ),
    "another that an environment imports": (
        _set_environment("GymV21Environment-v0", env_id="stranger:CartPole-v1"),
        "stranger:CartPole-v1",
    ),
    "a file that an environment opens": (
        _set_environment("Ant-v5", xml_file="$RUN/stranger.xml"),
        "stranger.xml",
    ),
    "a function as the network": (
        lambda content: (
            content.update(network="stranger:make"),
            content["config"].update(network="stranger:make"),
        ),
        "stranger:make",
    ),
    "the network of the options alone": (_set_options(network="stranger:make"), "stranger:make"),
    "an algorithm": (lambda content: content.update(algorithm="stranger:make"), "stranger:make"),
    "a schedule": (_set_options(learning_rate="stranger:make"), "stranger:make"),
    "another schedule": (_set_options(clip_range="stranger:make"), "stranger:make"),
    "an activation": (_set_options(activation="stranger:make"), "stranger:make"),
    "what `auto` has chosen": (
        lambda content: content.update(
            auto={"asked": {"workers": 0}, "chosen": {"network": "stranger:make"}, "summary": ""}
        ),
        "`auto.chosen.network` is not known",  # other keys are refused
    ),
}


def _substitute(content, **places):
    text = json.dumps(content)
    for name, value in places.items():
        text = text.replace(f"${name}", str(value))
    return json.loads(text)


def _try_name(forks, source, folder, case):
    change, name = UNTRUSTED_NAMES[case]
    sandbox = _Sandbox(folder, source)
    content = json.loads((sandbox.run / "config.json").read_text())
    change(content)
    content = _substitute(content, MARKER=sandbox.marker, RUN=sandbox.run)
    (sandbox.run / "config.json").write_text(json.dumps(content))
    (sandbox.run / "stranger.xml").write_text("<mujoco/>")
    for command in sandbox.commands:
        result = _run_command(forks, sandbox, command)
        if command not in ("eval", "resume"):
            continue
        # Evaluation does not need the algorithm or its schedules.
        if result.code == 0 and command == "eval":
            continue
        check_error_message(result)
        if name not in result.err or not ("--trust" in result.err or "is damaged" in result.err):
            raise Failed(f"{command} is not refused with the name and the reason: {result.summary}")
    shutil.rmtree(folder)


@faults
@pytest.mark.timeout(600)
def test_untrusted_names(forks, source, tally, tmp_path):
    tally("names of modules in config.json").run(
        lambda case: _try_name(forks, source, tmp_path / case.replace(" ", "-"), case),
        list(UNTRUSTED_NAMES),
    )


def test_an_untrusted_name(forks, source, tally, tmp_path):
    tally("a few names of modules in config.json").run(
        lambda case: _try_name(forks, source, tmp_path / "world", case),
        ["a function as the environment"],
    )


@faults
@pytest.mark.timeout(300)
def test_an_untrusted_network(forks, source, tally, tmp_path):
    """Name a network in state.json, with a matching digest."""

    def trial(kind):
        sandbox = _Sandbox(tmp_path / kind, source)
        body = {"kind": kind, "name": "stranger:make"}
        for step in (sandbox.run / "checkpoints").glob("step-*"):
            path = step / "state.json"
            content = json.loads(path.read_text())
            content["network"]["body"] |= body
            path.write_text(json.dumps(content))
            seal(path)
        for command in ("eval", "export", "resume"):
            check_error_message(_run_command(forks, sandbox, command))

    tally("names of modules in state.json").run(trial, ["module", "modules", "stranger:make"])


@faults
@pytest.mark.timeout(300)
def test_trusted_runs_work(forks, source, tally, tmp_path):
    """Check that trusted runs work, so that the trials above can fail."""

    def trial(kind):
        sandbox = _Sandbox(
            tmp_path / kind.replace(" ", "-"),
            source,
            is_signed=kind in ("signed", "an option of a signed run changed"),
        )
        if kind == "a name and --trust":
            sandbox.edit(_set_environment("stranger:make"))
            env = {"HOTLOOP_FAULTS_MARKER": str(sandbox.marker)}
            command = [*sandbox.commands["eval"], "--trust"]
            check_success(forks.run(*command, cwd=str(sandbox.cwd), env=env), "eval --trust")
            if not sandbox.marker.exists():
                raise Failed("the trusted code did not run")
            return
        if kind == "signed by another key":
            sandbox.edit(lambda content: content.update(signature="0" * 64))
        elif kind == "an option changed":
            sandbox.edit(_set_options(checkpoint_interval=64))
        elif kind == "an option of a signed run changed":
            sandbox.edit(_set_options(checkpoint_interval=64))
            for command in ("eval", "export", "resume"):
                result = _run_command(forks, sandbox, command)
                check_error_message(result)
                if "was changed after your training had signed it" not in result.err:
                    raise Failed(f"{command} does not give the reason: {result.summary}")
                check_success(_run_command(forks, sandbox, command, "--trust"), command)
            return
        for command in ("eval", "export", "resume"):
            check_success(_run_command(forks, sandbox, command), command)

    kinds = ["signed", "not signed", "signed by another key", "an option changed"]
    kinds.append("an option of a signed run changed")
    tally("trusted runs").run(trial, [*kinds, "a name and --trust"])


@faults
@pytest.mark.timeout(300)
def test_modules_in_the_run_directory(source, state_home, tally, tmp_path):
    """Commands called in a run directory do not import modules from it."""
    script = Path(sys.executable).with_name("hotloop")
    names = ("gymnasium", "safetensors", "matplotlib", "torch", "tyro", "rich", "numba", "numpy")
    names += ("threadpoolctl", "onnx", "onnxruntime", "imageio_ffmpeg", "pygame", "sitecustomize")

    def trial(command):
        sandbox = _Sandbox(tmp_path / command, source)
        for name in (*names, "json", "argparse", "gymnasium_", "mujoco", "envpool", "ale_py"):
            (sandbox.run / f"{name}.py").write_text(_UNTRUSTED_MODULE)
        env = {
            **os.environ,
            "XDG_STATE_HOME": str(state_home),
            "HOTLOOP_FAULTS_MARKER": str(sandbox.marker),
        }
        arguments = ["." if arg == sandbox.run else str(arg) for arg in sandbox.commands[command]]
        done = subprocess.run(
            [str(script), *arguments], cwd=sandbox.run, env=env, capture_output=True, text=True
        )
        sandbox.check(command)
        check_success(ProcessResult(done.returncode, done.stdout, done.stderr), command)

    tally("modules in a run directory").run(
        trial, ["runs", "report", "plot", "eval", "export", "resume"]
    )


# --- paths ----------------------------------------------------------------------------------------

# Values in state.json that become a path or a number of steps.
_PATHS = ["../../../outside/folder", "/etc", "..", "", -1, 1e400, 10**30, None, True, [], {}]
_PLACES = ["timesteps", "best", "iteration", "policy_version"]


@faults
@pytest.mark.timeout(600)
def test_paths_in_a_state(forks, source, tally, tmp_path):
    def trial(place):
        key, value = place
        sandbox = _Sandbox(tmp_path / f"{key}-{_PATHS.index(value)}", source)
        path = (sandbox.run / "checkpoints" / "last").resolve() / "state.json"
        content = json.loads(path.read_text())
        if key == "best":
            content["best"] = {**(content.get("best") or {}), "timesteps": value}
        else:
            content[key] = value
        path.write_text(json.dumps(content))
        seal(path)
        for command in ("eval", "resume", "export", "runs"):
            result = _run_command(forks, sandbox, command)
            if result.code != 0:
                check_error_message(result)
        shutil.rmtree(sandbox.run.parent)

    places = [(key, value) for key in _PLACES for value in _PATHS]
    tally("paths in state.json").run(trial, places)


@faults
@pytest.mark.timeout(300)
def test_paths_on_the_command_line(forks, source, tally, tmp_path):
    """`--checkpoint` must not lead outside of the run."""

    def trial(name):
        sandbox = _Sandbox(tmp_path / str(names.index(name)), source)
        for command in ("eval", "resume", "export"):
            result = _run_command(forks, sandbox, command, "--checkpoint", name)
            if result.code != 0:
                check_error_message(result)

    names = ["../../outside/checkpoints/last", "/etc", "..", "../../outside/folder", "x" * 300]
    tally("paths as --checkpoint").run(trial, names)
