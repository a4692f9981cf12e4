"""Anybody's script, run as it would run without: by the command line, in processes of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hotloop import cli
from hotloop.profiler.session import Session
from hotloop.profiler.session.reading import read
from tests.profiler.programs import environment, record, run, spans, write


def profile(
    directory: Path, *target: str, **more: str
) -> tuple[subprocess.CompletedProcess[str], Session]:
    """By `hotloop profile`."""
    command = [sys.executable, "-m", "hotloop", "profile", "--out", str(directory / "profile")]
    done = run([*command, *target], directory, **more)
    return done, read(directory / "profile")


def both(
    directory: Path, text: str, *arguments: str, **more: str
) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str], Session]:
    """A script without and with a profile."""
    script = write(directory, text)
    bare = run([sys.executable, str(script), *arguments], directory, **more)
    done, session = record(directory, str(script), *arguments, **more)
    return bare, done, session


# --- ends -----------------------------------------------------------------------------------------


def test_by_the_command_line(tmp_path) -> None:
    write(tmp_path, "print('hello'); import sys; print('oh', file=sys.stderr); sys.exit(7)")
    done, session = profile(tmp_path, "script.py", "--epochs", "3")
    assert done.returncode == 7
    # All that is said of the profile goes where it mixes with no results.
    assert done.stdout == "hello\n"
    assert done.stderr.startswith("oh\n")
    assert "exit code 7" in done.stderr
    assert session.about["exit_code"] == 7
    assert session.about["command"] == ["python", "script.py", "--epochs", "3"]
    assert session.main.state == "complete"


def test_options_of_the_script_s_own(tmp_path) -> None:
    (tmp_path / "train").mkdir()  # what a folder is called says nothing of a command
    write(tmp_path, "import sys; print(sys.argv[1:])")
    done, session = profile(tmp_path, "--interval=20", "script.py", "--debug", "--out", "x", "-m")
    assert done.stdout == "['--debug', '--out', 'x', '-m']\n"
    assert session.main.interval_ns == 20_000_000
    assert session.about["options"] == ["--interval", "20"]
    done = run([sys.executable, "-m", "hotloop", "profile", "train", "--help"], tmp_path)
    assert "usage: hotloop train" in done.stdout


ENDS = {
    "nothing": "pass",
    "zero": "import sys; sys.exit()",
    "a number": "import sys; sys.exit(3)",
    "a text": "import sys; sys.exit('text of its own')",
    "a list": "import sys; sys.exit([1, 2])",
    "exception": "def f():\n    raise ValueError('of its own')\nf()",
    "chain": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e",
    "syntax": "x = = 3\n",
    "null bytes": "x = 3\0\n",
    "import": "import there_is_no_such_module",
    "inside": "import json\njson.loads('{')",
    "at exit": "import atexit\natexit.register(print, 'bye')\nprint('hi')",
    "hook": "import sys\nsys.excepthook = lambda *e: print('mine', e[0].__name__)\n1 / 0",
    "bad hook": "import sys\ndef h(*e):\n    raise TypeError('worse')\nsys.excepthook = h\n1 / 0",
    "deep": "def f(n):\n    return f(n + 1)\nf(0)",
    "gone": "import os; print('x', flush=True); os._exit(3)",
    "recursive group": "raise BaseExceptionGroup('g', [ValueError(1)])",
}


@pytest.mark.parametrize("name", ENDS)
def test_it_ends_as_without(tmp_path, name: str) -> None:
    if name == "recursive group" and sys.version_info < (3, 11):
        pytest.skip("Python 3.11 has exception groups")
    bare, done, session = both(tmp_path, ENDS[name])
    assert done.returncode == bare.returncode
    assert done.stdout == bare.stdout
    # Python tells some of them in other words where it has the file itself.
    if name == "bad hook":
        assert "TypeError: worse" in done.stderr
        assert "ZeroDivisionError" in done.stderr
    elif name == "deep":  # what runs the script takes some of the depth that there is
        assert re.sub(r"\d+ more", "more", done.stderr) == re.sub(r"\d+ more", "more", bare.stderr)
    elif name == "null bytes":
        assert "null bytes" in done.stderr
        assert "hotloop" not in done.stderr
    else:
        assert done.stderr == bare.stderr
    assert session.main.state == ("killed" if name == "gone" else "complete")


def test_a_killed_script(tmp_path) -> None:
    write(
        tmp_path,
        """
        import os, signal, time
        from hotloop.timing import span
        with span("update"):
            time.sleep(1.2)
        with span("last"):
            os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    done, session = profile(tmp_path, "script.py")
    assert done.returncode == 128 + signal.SIGKILL
    assert "killed by signal 9" in done.stderr
    assert session.main.state == "killed"
    assert session.main.tree.find("update").count == 1
    assert session.main.tree.find("last").open == 1
    assert sum(one.count for one in session.main.samples) > 20


def test_interrupted(tmp_path) -> None:
    script = write(
        tmp_path,
        """
        import time
        try:
            print("ready", flush=True)
            time.sleep(60)
        finally:
            print("cleaned", flush=True)
        """,
    )
    out = str(tmp_path / "profile")
    child = subprocess.Popen(
        [sys.executable, "-m", "hotloop", "profile", "--out", out, str(script)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does
    stdout, stderr = child.communicate(timeout=60)
    assert stdout == "cleaned\n"
    assert child.returncode == 130
    assert "KeyboardInterrupt" in stderr
    assert "hotloop/profiler" not in stderr.partition("KeyboardInterrupt")[0]
    assert read(out).about["exit_code"] == 130


def test_what_it_raises_has_no_frame_of_ours(tmp_path) -> None:
    pytest.importorskip("gymnasium")
    bare, done, _ = both(
        tmp_path,
        """
        import gymnasium as gym

        class Failing(gym.Env):
            def step(self, action):
                raise ValueError("in the environment")

        try:
            Failing().step(0)
        except ValueError as error:
            import traceback
            traceback.print_exc()
            raise RuntimeError("outer") from error
        """,
    )
    if sys.version_info >= (3, 11):
        assert done.stderr == bare.stderr
    assert done.returncode == 1
    assert "in the environment" in done.stderr


def test_a_report_that_fails_changes_nothing(tmp_path) -> None:
    write(
        tmp_path,
        """
        import glob, shutil, sys
        # What is left of its own profile.
        shutil.rmtree(sys.argv[1])
        print("done")
        """,
    )
    command = [sys.executable, "-m", "hotloop", "profile", "--out", "p", "script.py", "p"]
    done = run(command, tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "hotloop profile: expected" in done.stderr


def test_mistakes_in_the_arguments(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "pass")
    (tmp_path / "folder").mkdir()
    for wrong, message in (
        (["none.py"], "there is no such file"),
        (["--interval", "x", "script.py"], "between 1 and 10,000"),
        (["--gpu-window", "5", "script.py"], "`--gpu-window` must be 0 or between 20 and 10,000"),
        (["--out"], "expected `--out DIR`, got nothing after it"),
        (["--verbose", "script.py"], "options of the script's own stand after it"),
        (["-m"], "nothing after -m"),
        (["--out", ".", "script.py"], "a new or an empty directory"),
        (["--out=.", "script.py"], "a new or an empty directory"),
        (["--no-hooks"], "usage: hotloop profile"),
        (["folder"], "it is a directory"),
        (["--debug", "folder"], "Traceback"),
    ):
        assert cli.main(["profile", *wrong]) == 2, wrong
        captured = capsys.readouterr()
        assert message in captured.out + captured.err
    assert not (tmp_path / "profiles").exists()


# --- surroundings ---------------------------------------------------------------------------------

SURROUNDINGS = """
from __future__ import division
import dataclasses, os, sys
import neighbour

@dataclasses.dataclass
class Config:
    rate: float = 0.1

print(sys.argv)
print([one for one in sys.path])
print(__name__, __file__, __spec__, __package__, __doc__, __cached__, type(__loader__).__name__)
print(__builtins__, __annotations__, sorted(globals()))
print(Config.__annotations__, sys.modules["__main__"].Config is Config)
print(sys.flags, os.getcwd(), neighbour.__file__)
print(open(__file__).readline())
"""


@pytest.mark.parametrize("safe", ["", "1"])
def test_arguments_paths_and_main_are_as_without(tmp_path, safe: str) -> None:
    folder = tmp_path / "folder with spaces"
    folder.mkdir()
    (folder / "neighbour.py").write_text("")
    write(folder, SURROUNDINGS)
    os.symlink(folder / "script.py", tmp_path / "link.py")
    more = {"PYTHONSAFEPATH": "1"} if safe else {}
    if safe:
        more["PYTHONPATH"] = environment()["PYTHONPATH"] + os.pathsep + str(folder)
    for target in ("folder with spaces/script.py", "link.py", str(folder / "script.py")):
        arguments = [target, "--x", "-m", "a b"]
        bare = run([sys.executable, *arguments], tmp_path, **more)
        out = tmp_path / "profile"
        done, _ = record(tmp_path, *arguments, **more)
        assert bare.stderr == done.stderr == ""
        assert done.stdout == bare.stdout
        for path in sorted(out.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()


def test_a_module(tmp_path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("print('package')\n")
    (package / "other.py").write_text("VALUE = 3\n")
    text = (
        "import sys\nfrom .other import VALUE\n"
        "print(sys.argv, __name__, __spec__.name, __package__, __file__, VALUE, sys.path[0])\n"
        "print(sorted(globals()), sys.modules['__main__'].VALUE)\n"
    )
    (package / "train.py").write_text(text)
    (package / "__main__.py").write_text(text)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "__init__.py").write_text("")
    (tmp_path / "broken.py").write_text("import package.nothing\n")
    for number, name in enumerate(
        ("package.train", "package", "empty", "nowhere", "package.nowhere", "broken", "json.tool")
    ):
        # json.tool reads its input, which is at its end.
        bare = run([sys.executable, "-m", name, "--a", "b"], tmp_path)
        directory = tmp_path / str(number)
        settings = {"directory": str(directory), "interval_s": 0.01, "hooks": True}
        done = run(
            [
                sys.executable, "-m", "hotloop.profiler.collect.script", json.dumps(settings),
                "-m", name, "--a", "b",
            ],
            tmp_path,
        )  # fmt: skip
        assert done.returncode == bare.returncode, name
        assert done.stdout == bare.stdout, name
        if name in ("nowhere", "empty"):
            assert done.stderr == bare.stderr, name
        elif name == "broken":
            assert "package.nothing" in done.stderr
            assert "hotloop" not in done.stderr
        assert read(directory).main.state == "complete"


def test_a_script_without_reinforcement_learning(tmp_path) -> None:
    write(
        tmp_path,
        """
        import time
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            sum(range(1000))
        print("done")
        """,
    )
    done, session = profile(tmp_path, "script.py")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "everything else" in done.stderr
    assert session.problems == []
    assert session.uncovered == []


# --- children -------------------------------------------------------------------------------------

WORK = """
def work(number):
    import time
    from hotloop.timing import span
    for _ in range(number):
        with span("env_step"):
            time.sleep(0.001)
    return number * 2
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(tmp_path, method: str) -> None:
    bare, done, session = both(
        tmp_path,
        WORK
        + """
import multiprocessing, sys

class Mine:
    def __init__(self, value):
        self.value = value

def echo(connection):
    one = connection.recv()
    connection.send((type(one).__name__, one.value, work(one.value)))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    here, there = context.Pipe()
    processes = [context.Process(target=work, args=(5 + i,)) for i in range(2)]
    processes.append(context.Process(target=echo, args=(there,)))
    for one in processes:
        one.start()
    here.send(Mine(9))
    print(here.recv())
    for one in processes:
        one.join()
    print([one.exitcode for one in processes])
""",
        method,
    )
    assert done.stderr == bare.stderr == ""
    assert done.stdout == bare.stdout == "('Mine', 9, 18)\n[0, 0, 0]\n"
    counts = sorted(one.tree.find("env_step").count for one in session.workers)
    assert counts == [5, 6, 9]
    assert {one.state for one in session.workers} == {"complete"}
    assert [one.name for one in session.workers] == ["worker-0", "worker-1", "worker-2"]
    if method == "forkserver":
        assert "forkserver" in {one.name for one in session.processes}
    # Sampled too, to their end: `fork` leaves no chance to `atexit`.
    assert all(one.periods for one in session.workers)
    assert session.uncovered == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_that_a_pool_kills_within_a_second(tmp_path, method: str) -> None:
    """`with Pool()` ends them by a signal: all are told nevertheless."""
    script = write(
        tmp_path,
        """
        import multiprocessing, sys, time

        def spin(seconds):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                pass

        if __name__ == "__main__":
            for _ in range(2):
                with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
                    pool.map(spin, [0.3] * 2, chunksize=1)
        """,
    )
    _, session = record(tmp_path, str(script), method)
    assert len(session.processes) == 5
    assert len(session.workers) == 4
    # One that has nothing to do may end by itself before the signal comes.
    assert {one.state for one in session.workers} <= {"killed", "complete"}
    spinning = [
        one
        for one in session.workers
        if any(one.stacks[sample.stack].frames[-1].function == "spin" for sample in one.samples)
    ]
    assert len(spinning) >= 3  # a pool may give both pieces to one
    assert session.uncovered == []


def test_a_pool(tmp_path) -> None:
    bare, done, session = both(
        tmp_path,
        WORK
        + """
import multiprocessing
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        print(pool.map(work, [3, 4, 5, 6], chunksize=1))
""",
    )
    assert done.stdout == bare.stdout == "[6, 8, 10, 12]\n"
    assert done.stderr == bare.stderr
    assert sum(one.tree.find("env_step").count for one in session.workers) == 18


def test_programs_that_it_starts(tmp_path) -> None:
    write(tmp_path, WORK + "\nimport sys\nprint(work(int(sys.argv[1])), sys.path)\n", "child.py")
    bare, done, session = both(
        tmp_path,
        """
        import os, subprocess, sys
        print(subprocess.check_output([sys.executable, "child.py", "4"], text=True))
        subprocess.run([sys.executable, "-E", "-c", "import time; time.sleep(2.5)"], check=True)
        print(subprocess.run(["sh", "-c", "exit 4"]).returncode)
        """,
    )
    # The child's path too: nothing of ours is left in it.
    assert done.stdout == bare.stdout
    assert done.stderr == bare.stderr == ""
    (worker,) = session.workers
    assert worker.tree.find("env_step").count == 4
    assert "child.py" in worker.command
    # What was told not to look at its environment is named.
    assert [one.parent_pid for one in session.uncovered] == [session.main.pid]
    assert "time.sleep" in session.uncovered[0].command


def test_a_worker_that_is_killed_stays(tmp_path) -> None:
    _, done, session = both(
        tmp_path,
        WORK
        + """
import multiprocessing, os, signal
def die():
    work(5)
    os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    one = multiprocessing.get_context("fork").Process(target=die)
    one.start()
    one.join()
    print(one.exitcode)
""",
    )
    assert done.stdout == "-9\n"
    (worker,) = session.workers
    assert worker.state == "killed"
    assert worker.tree.find("env_step").count == 5


def test_a_training_with_workers(tmp_path) -> None:
    """By its own spans, once each, and samples of the learner and of every worker."""
    options = ["--total-timesteps", "2048", "--workers", "2", "--execution", "eager"]
    options += ["--num-steps", "64", "--update-epochs", "1"]
    done, session = profile(tmp_path, "train", "ppo", *options, "--runs-dir", "runs")
    assert done.returncode == 0, done.stderr
    assert [process.name for process in session.processes] == ["learner", "worker-0", "worker-1"]
    assert {"collect", "update"} <= {path[0] for path, _ in session.main.tree.walk()}
    for worker in session.workers:
        assert worker.samples
        assert worker.tree.find("env_step").count == 4 * 64
        assert "env_step" not in {name for name, _ in worker.tree.find("env_step").children}


def test_threads(tmp_path) -> None:
    bare, done, session = both(
        tmp_path,
        WORK
        + """
import threading
threads = [threading.Thread(target=work, args=(4,)) for _ in range(3)]
for one in threads:
    one.start()
print("main is done")
""",
    )
    assert done.stdout == bare.stdout
    assert session.main.tree.find("env_step").count == 12


def test_the_installations_own_sitecustomize_still_runs(tmp_path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys\nsys.own_value = 5\n")
    path = environment()["PYTHONPATH"]
    bare, done, _ = both(
        tmp_path,
        """
        import subprocess, sys
        code = "import sys, sitecustomize; print(sys.own_value, sitecustomize.__file__)"
        print(sys.own_value)
        print(subprocess.check_output([sys.executable, "-c", code], text=True))
        """,
        PYTHONPATH=str(folder) + os.pathsep + path,
    )
    assert done.stdout == bare.stdout
    assert bare.stdout.startswith(f"5\n5 {folder}")


def test_a_child_without_hotloop_runs_as_ever(tmp_path) -> None:
    """Its interpreter finds what starts a profile, and nothing that it could start."""
    from hotloop.profiler.collect.processes import BOOT

    done = run(
        [sys.executable, "-S", "-c", "import sitecustomize, sys; print(len(sys.path) > 0)"],
        tmp_path,
        PYTHONPATH=str(BOOT),
        HOTLOOP_PROFILE="{}",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_settings_that_are_damaged(tmp_path) -> None:
    from hotloop.profiler.collect.processes import BOOT

    for text in ("{", "[]", '{"directory": 3}'):
        done = run(
            [sys.executable, "-c", "print('runs')"],
            tmp_path,
            PYTHONPATH=str(BOOT) + os.pathsep + environment()["PYTHONPATH"],
            HOTLOOP_PROFILE=text,
        )
        assert (done.returncode, done.stdout) == (0, "runs\n")
        assert done.stderr.startswith("hotloop: this process is not profiled")
        assert len(done.stderr.splitlines()) == 1


def test_a_profile_within_a_profile(tmp_path) -> None:
    write(tmp_path, WORK + "\nprint(work(7))\n", "inner.py")
    script = write(
        tmp_path,
        """
        import subprocess, sys
        command = [sys.executable, "-m", "hotloop", "profile", "--out", "inner", "inner.py"]
        print(subprocess.run(command, capture_output=True, text=True).stdout)
        """,
    )
    done, outer = record(tmp_path, str(script))
    assert done.stdout == "14\n\n"
    assert read(tmp_path / "inner").main.tree.find("env_step").count == 7
    assert ("env_step",) not in spans(outer, "main")


@pytest.mark.slow
def test_a_wheel_holds_what_starts_in_children(tmp_path) -> None:
    root, copy = Path(__file__).parents[3], tmp_path / "copy"
    copy.mkdir()
    shutil.copytree(root / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, copy)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path]
    done = run([*map(str, command), str(copy)], tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "hotloop/profiler/collect/boot/sitecustomize.py" in names
    # Not at the top, where every Python of the installation would find it.
    assert "sitecustomize.py" not in names
