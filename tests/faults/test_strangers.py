"""Run directories that somebody else has made: nothing is run, nothing is written elsewhere."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.forks import Ended
from tests.faults.test_fuzz import copied, seal
from tests.faults.trials import KINDS, Failed, said_in_a_sentence, succeeded

faults = pytest.mark.faults

# What is imported by a name in a run's files: it leaves a file behind, whatever of it is called.
_STRANGER = """
import os
from pathlib import Path

Path(os.environ["HOTLOOP_FAULTS_LEFT"]).write_text("somebody else's code ran")

def __getattr__(name):
    import gymnasium
    return lambda *args, **kwargs: gymnasium.make("CartPole-v1")
"""


class _World:
    """A run that somebody sends, and what it must leave alone.

    Attributes:
        run: the run directory.
        outside: a directory beside it.
        cwd: where commands are called; somebody else's module lies there.
        left: the file that is there if their code ran.
    """

    def __init__(self, folder, source, is_signed=False):
        self.run, self.outside, self.cwd = folder / "run", folder / "outside", folder / "cwd"
        self.left = folder / "left"
        folder.mkdir()
        copied(source, self.run)
        for name in ("folder", "empty"):
            (self.outside / name).mkdir(parents=True)
        (self.outside / "file").write_text("mine\n")
        shutil.copytree(source / "checkpoints", self.outside / "checkpoints", symlinks=True)
        for name in ("config.json", "metrics.jsonl"):
            shutil.copy(source / name, self.outside / name)
        self.cwd.mkdir()
        for place in (self.cwd, self.run):
            (place / "stranger.py").write_text(_STRANGER)
        if not is_signed:
            self.edit(lambda content: content.pop("signature", None))
        self.before = self.seen()

    def seen(self):
        """Everything outside of the run, file by file."""
        found = {}
        for path in sorted([*self.outside.rglob("*"), *self.cwd.rglob("*")]):
            if "__pycache__" in path.parts:
                continue
            if path.is_symlink():
                found[str(path)] = os.readlink(path)
            elif path.is_file():
                found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                found[str(path)] = ""
        return found

    def check(self, command):
        """Check that nothing ran and nothing changed.

        Raises:
            Failed: something did.
        """
        if self.left.exists():
            raise Failed(f"{command} ran somebody else's code")
        changed = sorted(dict(self.before.items() ^ self.seen().items()))
        if changed:
            names = ", ".join(os.path.relpath(x, self.outside.parent) for x in changed[:4])
            raise Failed(f"{command} changed {names}")

    @property
    def commands(self):
        """All that read a run, each as it is called."""
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
        """Change a file of JSON."""
        content = json.loads((self.run / name).read_text())
        change(content)
        (self.run / name).write_text(json.dumps(content))


@pytest.fixture
def source(forks, tmp_path):
    """A run with a while to go, with an evaluation and videos' place."""
    run = tmp_path / "source"
    forks.run(*KINDS["evaluated"], "--run-dir", run, die=[110, [str(run)]])
    assert (run / "checkpoints" / "best").is_symlink()
    return run


def _call(forks, world, name, *options):
    """Call one command; check its world; return how it ended."""
    env = {"HOTLOOP_FAULTS_LEFT": str(world.left), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*world.commands[name], *options]
    ended = forks.run(*command, cwd=str(world.cwd), env=env)
    world.check(name)
    return ended


# --- links ----------------------------------------------------------------------------------------

# In a run directory → what stands there, from that place.
_FILES = (
    *(".lock", ".config.tmp.json", ".metrics.tmp.jsonl", "metrics.jsonl", "config.json"),
    *("cores.json", ".cores.tmp.json"),
    *("accounting.json", ".accounting.tmp.json", "learning_curve.png", ".learning_curve.tmp.png"),
    *(
        "curves.png",
        ".curves.tmp.png",
        "export/policy.npz",
        "export/policy.py",
        "nonfinite.safetensors",
    ),
    *(
        "checkpoints/.last.tmp",
        "checkpoints/last/state.json",
        "checkpoints/last/policy.safetensors",
    ),
)
_FOLDERS = (
    *("checkpoints", "timing", "videos", "export", "tensorboard", "wandb"),
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


def _linked(forks, source, folder, place):
    (name, _), target = place, _TARGETS[place]
    world = _World(folder, source)
    path = world.run / name
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(world.outside / target, os.path.realpath(path.parent)))
    refused = 0
    for command in world.commands:
        ended = _call(forks, world, command)
        if ended.code != 0:
            said_in_a_sentence(ended)
            refused += 1
        else:
            succeeded(ended, command)
    shutil.rmtree(folder)
    return "refused by some commands" if refused else "harmless"


@faults
@pytest.mark.timeout(900)
def test_links_that_lead_out(forks, source, tally, tmp_path):
    tally("links in the place of a run's files").run(
        lambda place: _linked(forks, source, tmp_path / "-".join(place).replace("/", "."), place),
        list(_TARGETS),
    )


@pytest.mark.parametrize("name", [".lock", ".config.tmp.json"])
def test_a_link_that_leads_out(forks, source, tally, tmp_path, name):
    tally("a few links in the place of a run's files").run(
        lambda place: _linked(forks, source, tmp_path / name, place), [(name, "file")]
    )


# --- names ----------------------------------------------------------------------------------------


def _set(**options):
    return lambda content: content["config"].update(options)


def _environment(env_id, /, **env_kwargs):
    def change(content):
        content["env_id"] = content["config"]["env_id"] = env_id
        content["config"]["env_kwargs"] = env_kwargs

    return change


# How config.json is changed, and a name that the refusal must show.
NAMES = {
    "a function as the environment": (_environment("stranger:make"), "stranger:make"),
    "a module before an id": (_environment("stranger:CartPole-v1"), "stranger:CartPole-v1"),
    "the system's shell": (_environment("os:system", command="touch $LEFT"), "os:system"),
    "a process": (_environment("subprocess:run", args=["touch", "$LEFT"]), "subprocess:run"),
    "a module that an environment imports": (
        _environment("GymV26Environment-v0", env_id="stranger:CartPole-v1"),
        "stranger:CartPole-v1",
    ),
    "another that an environment imports": (
        _environment("GymV21Environment-v0", env_id="stranger:CartPole-v1"),
        "stranger:CartPole-v1",
    ),
    "a file that an environment opens": (
        _environment("Ant-v5", xml_file="$RUN/stranger.xml"),
        "stranger.xml",
    ),
    "a function as the network": (
        lambda content: (
            content.update(network="stranger:make"),
            content["config"].update(network="stranger:make"),
        ),
        "stranger:make",
    ),
    "the network of the options alone": (_set(network="stranger:make"), "stranger:make"),
    "an algorithm": (lambda content: content.update(algorithm="stranger:make"), "stranger:make"),
    "a schedule": (_set(learning_rate="stranger:make"), "stranger:make"),
    "another schedule": (_set(clip_range="stranger:make"), "stranger:make"),
    "an activation": (_set(activation="stranger:make"), "stranger:make"),
    "what `auto` has chosen": (
        lambda content: content.update(
            auto={"asked": {"workers": 0}, "chosen": {"network": "stranger:make"}, "summary": ""}
        ),
        "`auto.chosen.network` is not known",  # no more than is chosen is taken from there
    ),
}


def _replaced(content, **places):
    text = json.dumps(content)
    for name, value in places.items():
        text = text.replace(f"${name}", str(value))
    return json.loads(text)


def _named(forks, source, folder, what):
    change, name = NAMES[what]
    world = _World(folder, source)
    content = json.loads((world.run / "config.json").read_text())
    change(content)
    content = _replaced(content, LEFT=world.left, RUN=world.run)
    (world.run / "config.json").write_text(json.dumps(content))
    (world.run / "stranger.xml").write_text("<mujoco/>")
    for command in world.commands:
        ended = _call(forks, world, command)
        if command not in ("eval", "resume"):
            continue
        # Playing does not need the algorithm or its schedules.
        if ended.code == 0 and command == "eval":
            continue
        said_in_a_sentence(ended)
        if name not in ended.err or not ("--trust" in ended.err or "is damaged" in ended.err):
            raise Failed(f"{command} is not refused with the name and why: {ended.told}")
    shutil.rmtree(folder)


@faults
@pytest.mark.timeout(600)
def test_names_of_strangers(forks, source, tally, tmp_path):
    tally("names of modules in config.json").run(
        lambda what: _named(forks, source, tmp_path / what.replace(" ", "-"), what), list(NAMES)
    )


def test_a_name_of_a_stranger(forks, source, tally, tmp_path):
    tally("a few names of modules in config.json").run(
        lambda what: _named(forks, source, tmp_path / "world", what),
        ["a function as the environment"],
    )


@faults
@pytest.mark.timeout(300)
def test_a_network_of_a_stranger(forks, source, tally, tmp_path):
    """It stands in state.json, whose digest whoever writes it makes."""

    def trial(kind):
        world = _World(tmp_path / kind, source)
        body = {"kind": kind, "name": "stranger:make"}
        for step in (world.run / "checkpoints").glob("step-*"):
            path = step / "state.json"
            content = json.loads(path.read_text())
            content["network"]["body"] |= body
            path.write_text(json.dumps(content))
            seal(path)
        for command in ("eval", "export", "resume"):
            said_in_a_sentence(_call(forks, world, command))

    tally("names of modules in state.json").run(trial, ["module", "modules", "stranger:make"])


@faults
@pytest.mark.timeout(300)
def test_what_is_trusted(forks, source, tally, tmp_path):
    """With `--trust`, and without where nothing is named: else the trials above could not fail."""

    def trial(what):
        world = _World(tmp_path / what.replace(" ", "-"), source, is_signed=what == "signed")
        if what == "a name and --trust":
            world.edit(_environment("stranger:make"))
            env = {"HOTLOOP_FAULTS_LEFT": str(world.left)}
            command = [*world.commands["eval"], "--trust"]
            succeeded(forks.run(*command, cwd=str(world.cwd), env=env), "eval --trust")
            if not world.left.exists():
                raise Failed("the code that was trusted did not run")
            return
        if what == "signed by another key":
            world.edit(lambda content: content.update(signature="0" * 64))
        elif what == "an option changed":
            world.edit(_set(checkpoint_interval=64))
        for command in ("eval", "export", "resume"):
            succeeded(_call(forks, world, command), command)

    whats = ["signed", "not signed", "signed by another key", "an option changed"]
    tally("runs that name nothing").run(trial, [*whats, "a name and --trust"])


@faults
@pytest.mark.timeout(300)
def test_modules_in_the_run_directory(source, state_home, tally, tmp_path):
    """Whoever stands in a run directory and calls a command runs hotloop's modules alone."""
    script = Path(sys.executable).with_name("hotloop")
    names = ("gymnasium", "safetensors", "matplotlib", "torch", "tyro", "rich", "numba", "numpy")
    names += ("threadpoolctl", "onnx", "onnxruntime", "imageio_ffmpeg", "pygame", "sitecustomize")

    def trial(command):
        world = _World(tmp_path / command, source)
        for name in (*names, "json", "argparse", "gymnasium_", "mujoco", "envpool", "ale_py"):
            (world.run / f"{name}.py").write_text(_STRANGER)
        env = {
            **os.environ,
            "XDG_STATE_HOME": str(state_home),
            "HOTLOOP_FAULTS_LEFT": str(world.left),
        }
        arguments = ["." if arg == world.run else str(arg) for arg in world.commands[command]]
        done = subprocess.run(
            [str(script), *arguments], cwd=world.run, env=env, capture_output=True, text=True
        )
        world.check(command)
        succeeded(Ended(done.returncode, done.stdout, done.stderr), command)

    tally("modules in a run directory").run(
        trial, ["runs", "report", "plot", "eval", "export", "resume"]
    )


# --- paths ----------------------------------------------------------------------------------------

# What state.json holds that becomes a path, or a number of steps.
_PATHS = ["../../../outside/folder", "/etc", "..", "", -1, 1e400, 10**30, None, True, [], {}]
_PLACES = ["timesteps", "best", "iteration", "policy_version"]


@faults
@pytest.mark.timeout(600)
def test_paths_in_a_state(forks, source, tally, tmp_path):
    def trial(place):
        key, value = place
        world = _World(tmp_path / f"{key}-{_PATHS.index(value)}", source)
        path = (world.run / "checkpoints" / "last").resolve() / "state.json"
        content = json.loads(path.read_text())
        if key == "best":
            content["best"] = {**(content.get("best") or {}), "timesteps": value}
        else:
            content[key] = value
        path.write_text(json.dumps(content))
        seal(path)
        for command in ("eval", "resume", "export", "runs"):
            ended = _call(forks, world, command)
            if ended.code != 0:
                said_in_a_sentence(ended)
        shutil.rmtree(world.run.parent)

    places = [(key, value) for key in _PLACES for value in _PATHS]
    tally("paths in state.json").run(trial, places)


@faults
@pytest.mark.timeout(300)
def test_paths_on_the_command_line(forks, source, tally, tmp_path):
    """`--checkpoint` names a checkpoint of the run: nothing else is written to."""

    def trial(name):
        world = _World(tmp_path / str(names.index(name)), source)
        for command in ("eval", "resume", "export"):
            ended = _call(forks, world, command, "--checkpoint", name)
            if ended.code != 0:
                said_in_a_sentence(ended)

    names = ["../../outside/checkpoints/last", "/etc", "..", "../../outside/folder", "x" * 300]
    tally("paths as --checkpoint").run(trial, names)
