"""Profiled scripts behave as without profiling, from the command line and in child processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import pytest

from hotloop import cli
from hotloop.base.children import python_command
from hotloop.base.program_arguments import python_arguments
from hotloop.errors import ConfigError
from hotloop.profiler.collect.stacks import _ticker
from hotloop.profiler.session import Session
from hotloop.profiler.session.reading import read
from tests.attempts import attempts
from tests.profiler.programs import environment, record, recordings, run, spans, write


def profile(
    directory: Path, *target: str, name: str = "profile", **variables: str
) -> tuple[subprocess.CompletedProcess[str], Session]:
    """Run `hotloop profile`."""
    command = [sys.executable, "-m", "hotloop", "profile", "--out", str(directory / name)]
    result = run([*command, *target], directory, **variables)
    return result, read(directory / name)


def start_command(out: str, script: Path) -> tuple[subprocess.Popen[str], IO[str]]:
    """Start `hotloop profile` as a terminal does. Return it and its output after "ready"."""
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
    return child, child.stdout


def run_both(
    directory: Path, text: str, *arguments: str, **variables: str
) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str], Session]:
    """Run a script without and with profiling."""
    script = write(directory, text)
    bare = run([sys.executable, str(script), *arguments], directory, **variables)
    result, session = record(directory, str(script), *arguments, **variables)
    return bare, result, session


# --- ends -----------------------------------------------------------------------------------------


def test_the_profile_command(tmp_path) -> None:
    """With a script without reinforcement learning."""
    write(
        tmp_path,
        """
        import sys, time
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            sum(range(1000))
        print("numpy" in sys.modules)
        print("oh", file=sys.stderr)
        sys.exit(7)
        """,
    )
    result, session = profile(tmp_path, "script.py", "--epochs", "3")
    assert result.returncode == 7
    # The profiler prints to stderr, so that results stay separate. It imports no NumPy here.
    assert result.stdout == "False\n"
    assert result.stderr.startswith("oh\n")
    assert "exit code 7" in result.stderr
    assert "everything else" in result.stderr
    assert session.metadata["exit_code"] == 7
    assert session.metadata["command"] == ["python", "script.py", "--epochs", "3"]
    assert (session.main.state, session.problems, session.unrecorded) == ("complete", [], [])
    assert session.main.periods[-1].spans == {}


def test_script_options_reach_the_script(tmp_path) -> None:
    (tmp_path / "train").mkdir()  # a folder with the name of a command
    write(tmp_path, "import sys; print(sys.argv[1:])")
    result, session = profile(tmp_path, "--interval=20", "script.py", "--debug", "--out", "x", "-m")
    assert result.stdout == "['--debug', '--out', 'x', '-m']\n"
    assert session.main.interval_ns == 20_000_000
    assert session.metadata["options"] == ["--interval=20"]
    result = run([sys.executable, "-m", "hotloop", "profile", "train", "--help"], tmp_path)
    assert "usage: hotloop train" in result.stdout


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
    "last error": "import atexit, sys\natexit.register(lambda: print(sys.last_value))\n1 / 0",
    "hook": "import sys\nsys.excepthook = lambda *e: print('mine', e[0].__name__)\n1 / 0",
    "bad hook": "import sys\ndef h(*e):\n    raise TypeError('worse')\nsys.excepthook = h\n1 / 0",
    "deep": "def f(n):\n    return f(n + 1)\nf(0)",
    "gone": "import os; print('x', flush=True); os._exit(3)",
    "recursive group": "raise BaseExceptionGroup('g', [ValueError(1)])",
}


def test_python_before_a_script_is_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "launcher"):
        (tmp_path / name).write_text("print(1)")
    python = sys.executable
    for target in (["train.py", "--seed", "1"], ["-m", "train", "-x"], ["launcher", "-x"]):
        before = [] if target[0] == "launcher" else [python]
        assert python_arguments([*before, *target], "profile") == target
    with monkeypatch.context() as patched:  # a script of a package
        patched.setenv("PATH", str(tmp_path))
        (tmp_path / "launcher").chmod(0o755)
        patched.chdir(tmp_path.parent)
        launcher = str(tmp_path / "launcher")
        assert python_arguments(["launcher", "-x"], "profile") == [launcher, "-x"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nb.ipynb", "the notebook nb.ipynb: run `jupyter nbconvert --to script nb.ipynb`"),
        ("binary", "which is a program in machine code: pass the Python script or module that"),
        ("run.sh", "which is a program for /bin/bash: pass the Python script"),
        ("notes.txt", "which is not valid Python: pass the Python script"),
        ("sh run.sh", "which is a program in machine code: pass the Python script"),
        ("PYTHON", "a script or `-m MODULE` after `/.*`, got nothing"),
        ("PYTHON -c 1", "after `/.*`, got `-c`: options of Python are environment variables here"),
        ("PYTHON nb.ipynb", "the notebook nb.ipynb"),
        ("other/python3 x.py", "which runs hotloop, got other/python3: leave `other/python3` out"),
    ],
)
def test_targets_that_are_no_script_get_advice(target, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nb.ipynb").write_text('{"cells": []}')
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "run.sh").write_text("#!/bin/bash\npython x.py\n")
    (tmp_path / "notes.txt").write_text("remember the milk\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "python3").write_text("")
    (tmp_path / "other" / "python3").chmod(0o755)
    args = [sys.executable if x == "PYTHON" else x for x in target.split()]
    with pytest.raises(ConfigError, match=message):
        python_arguments(args, "profile")


@pytest.mark.parametrize("name", ENDS)
def test_a_script_ends_as_without_profiling(tmp_path, name: str) -> None:
    if name == "recursive group" and sys.version_info < (3, 11):
        pytest.skip("Python 3.11 has exception groups")
    bare, result, session = run_both(tmp_path, ENDS[name])
    assert result.returncode == bare.returncode
    assert result.stdout == bare.stdout
    # Python words some messages differently if it runs the file itself.
    if name == "bad hook":
        assert "TypeError: worse" in result.stderr
        assert "ZeroDivisionError" in result.stderr
    elif name == "deep":  # the profiler uses some of the recursion depth
        assert re.sub(r"\d+ more", "more", result.stderr) == re.sub(
            r"\d+ more", "more", bare.stderr
        )
    elif name == "null bytes":
        assert "null bytes" in result.stderr
        assert "hotloop" not in result.stderr
    else:
        assert result.stderr == bare.stderr
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

    def measure(number: int) -> tuple[subprocess.CompletedProcess[str], Session]:
        return profile(tmp_path, "script.py", name=f"profile-{number}")

    for (result, session), attempt in attempts(measure):
        assert result.returncode == 128 + signal.SIGKILL
        assert "killed by signal 9" in result.stderr
        assert session.main.state == "killed"
        assert session.main.tree.find("update").count == 1
        assert session.main.tree.find("last").open == 1
        with attempt:
            assert sum(sample.count for sample in session.main.samples) > 5


def test_an_interrupted_script(tmp_path) -> None:
    script = write(
        tmp_path,
        """
        import signal, time
        signal.signal(signal.SIGUSR1, lambda number, frame: print("warned", flush=True))
        try:
            print("ready", flush=True)
            time.sleep(60)
        finally:
            print("cleaned", flush=True)
        """,
    )
    out = str(tmp_path / "profile")
    child, output = start_command(out, script)
    os.kill(child.pid, signal.SIGUSR1)  # as a cluster does, which knows this process alone
    assert output.readline() == "warned\n"
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does
    stdout, stderr = child.communicate(timeout=200)
    assert stdout == "cleaned\n"
    assert child.returncode == 130
    assert "KeyboardInterrupt" in stderr
    assert "hotloop/profiler" not in stderr.partition("KeyboardInterrupt")[0]
    assert read(out).metadata["exit_code"] == 130


def test_a_closed_terminal_and_a_request_for_a_core_dump_reach_the_script(tmp_path) -> None:
    """They end neither the command nor the script, if this handles them."""
    script = write(
        tmp_path,
        """
        import signal, time
        numbers = []
        for name in ("SIGHUP", "SIGQUIT"):
            signal.signal(getattr(signal, name), lambda number, _: numbers.append(number))
        print("ready", flush=True)
        for k in range(2):
            while len(numbers) <= k:
                time.sleep(0.01)
            print(numbers[k], flush=True)
        """,
    )
    child, output = start_command(str(tmp_path / "p"), script)
    os.kill(child.pid, signal.SIGHUP)
    assert output.readline() == f"{signal.SIGHUP:d}\n"
    os.killpg(child.pid, signal.SIGQUIT)
    assert child.communicate(timeout=200)[0] == f"{signal.SIGQUIT:d}\n"
    assert child.returncode == 0
    assert read(tmp_path / "p").metadata["exit_code"] == 0


def test_a_script_has_the_descriptors_of_the_command(tmp_path, monkeypatch) -> None:
    """A shell passes one for each `<(...)`. Here the command runs in a thread of a program."""
    script = write(tmp_path, "import os, sys\nos.write(int(sys.argv[1]), b'here')")
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    arguments = ["profile", "--interval", "0", "--out", str(tmp_path / "p"), str(script)]
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(cli.main, [*arguments, str(writing)]).result() == 0
    os.close(writing)
    with open(reading, "rb") as file:
        assert file.read() == b"here"


@pytest.mark.skipif(
    not hasattr(_ticker, "block_signals"), reason="the C extension is not up to date"
)
def test_signals_that_arrive_during_forks_are_not_lost(tmp_path) -> None:
    script = write(
        tmp_path,
        """
        import os, signal, time

        class Alarm(Exception):
            pass

        def handle(number, frame):
            global handled
            handled += 1
            raise Alarm

        handled = caught = 0
        signal.signal(signal.SIGALRM, handle)
        for number in range(40):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.003 + number * 1e-4)
                while handled <= number:
                    child = os.fork()
                    if child == 0:
                        os._exit(0)
                    os.waitpid(child, 0)
            except Alarm:
                caught += 1
        print(handled - caught)
        """,
    )
    result, _ = record(tmp_path, str(script))
    assert (result.stdout, result.stderr, result.returncode) == ("0\n", "", 0)


def test_tracebacks_have_no_hotloop_frames(tmp_path) -> None:
    pytest.importorskip("gymnasium")
    bare, result, _ = run_both(
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
        assert result.stderr == bare.stderr
    assert result.returncode == 1
    assert "in the environment" in result.stderr


def test_a_failed_report_keeps_the_exit_code(tmp_path) -> None:
    write(
        tmp_path,
        """
        import glob, shutil, sys
        # Delete the profile of this script.
        shutil.rmtree(sys.argv[1])
        print("done")
        """,
    )
    command = [sys.executable, "-m", "hotloop", "profile", "--out", "p", "script.py", "p"]
    result = run(command, tmp_path)
    assert (result.returncode, result.stdout) == (0, "done\n")
    assert "hotloop profile: expected" in result.stderr


def test_wrong_arguments(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "pass")
    (tmp_path / "folder").mkdir()
    for wrong, message in (
        (["none.py"], "the file does not exist"),
        (["--interval", "x", "script.py"], "expected 0, or 1 to 10,000 milliseconds, got 'x'"),
        (["--gpu-window", "5", "script.py"], "--gpu-window: expected 0, or 20 to 10,000"),
        (["--out"], "argument --out: expected one argument"),
        (["--verbose", "script.py"], "options of the script must follow the script"),
        (["-m"], "nothing after -m"),
        (["--out", ".", "script.py"], "a new or an empty directory"),
        (["--out=.", "script.py"], "a new or an empty directory"),
        (["--no-hooks"], "got nothing: run `hotloop profile SCRIPT`"),
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

print(sys.argv, sys.orig_argv[1:])
print(list(sys.path))
print(__name__, __file__, __spec__, __package__, __doc__, __cached__, type(__loader__).__name__)
print(__builtins__, __annotations__, sorted(globals()))
print(Config.__annotations__, sys.modules["__main__"].Config is Config)
print(sys.flags, os.getcwd(), neighbour.__file__)
print(open(__file__).readline())
"""


@pytest.mark.parametrize("safe", ["", "1"])
def test_arguments_paths_and_main_are_unchanged(tmp_path, safe: str) -> None:
    folder = tmp_path / "folder with spaces"
    folder.mkdir()
    (folder / "neighbour.py").write_text("")
    write(folder, SURROUNDINGS)
    os.symlink(folder / "script.py", tmp_path / "link.py")
    variables = {"PYTHONSAFEPATH": "1"} if safe else {}
    if safe:
        variables["PYTHONPATH"] = environment()["PYTHONPATH"] + os.pathsep + str(folder)
    for target in ("folder with spaces/script.py", "link.py", str(folder / "script.py")):
        arguments = [target, "--x", "-m", "a b"]
        bare = run([sys.executable, *arguments], tmp_path, **variables)
        out = tmp_path / "profile"
        result, _ = record(tmp_path, *arguments, **variables)
        assert bare.stderr == result.stderr == ""
        assert result.stdout == bare.stdout
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
        # json.tool reads stdin, which is empty.
        bare = run([sys.executable, "-m", name, "--a", "b"], tmp_path)
        directory = tmp_path / str(number)
        settings = {"directory": str(directory), "interval_s": 0.01, "hooks": True}
        result = run(
            python_command(
                "hotloop.profiler.collect.script", json.dumps(settings), "-m", name, "--a", "b"
            ),
            tmp_path,
        )
        assert result.returncode == bare.returncode, name
        assert result.stdout == bare.stdout, name
        if name in ("nowhere", "empty"):
            assert result.stderr == bare.stderr, name
        elif name == "broken":
            assert "package.nothing" in result.stderr
            assert "hotloop" not in result.stderr
        assert read(directory).main.state == "complete"


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
    bare, result, session = run_both(
        tmp_path,
        WORK
        + """
import multiprocessing, sys

class Item:
    def __init__(self, value):
        self.value = value

def echo(connection):
    item = connection.recv()
    connection.send((type(item).__name__, item.value, work(item.value)))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    parent, child = context.Pipe()
    processes = [context.Process(target=work, args=(5 + i,)) for i in range(2)]
    processes.append(context.Process(target=echo, args=(child,)))
    for process in processes:
        process.start()
    parent.send(Item(9))
    print(parent.recv())
    for process in processes:
        process.join()
    print([process.exitcode for process in processes])
""",
        method,
    )
    assert result.stderr == bare.stderr == ""
    assert result.stdout == bare.stdout == "('Item', 9, 18)\n[0, 0, 0]\n"
    counts = sorted(worker.tree.find("env_step").count for worker in session.workers)
    assert counts == [5, 6, 9]
    assert {worker.state for worker in session.workers} == {"complete"}
    assert [worker.name for worker in session.workers] == ["worker-0", "worker-1", "worker-2"]
    if method == "forkserver":
        assert "forkserver" in {worker.name for worker in session.processes}
    # All are sampled until they end: `fork` does not run `atexit`.
    assert all(worker.periods for worker in session.workers)
    assert session.unrecorded == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_killed_by_a_pool_are_recorded(tmp_path, method: str) -> None:
    """`with Pool()` ends workers by a signal, and the profile contains all of them."""
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
    for _, session, attempt in recordings(tmp_path, str(script), method):
        # An idle worker may end by itself before the signal arrives.
        assert {worker.state for worker in session.workers} <= {"killed", "complete"}
        leaves = [
            {worker.stacks[sample.stack].frames[-1].function for sample in worker.samples}
            for worker in session.workers
        ]
        with attempt:
            assert len(session.processes) == 5
            assert len(session.workers) == 4
            assert session.unrecorded == []
            # A pool may give both items to one worker.
            assert sum("spin" in functions for functions in leaves) >= 3


def test_a_pool_and_threads(tmp_path) -> None:
    bare, result, session = run_both(
        tmp_path,
        WORK
        + """
import multiprocessing, threading
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        print(pool.map(work, [3, 4, 5, 6], chunksize=1))
    threads = [threading.Thread(target=work, args=(4,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    print("main is done")
""",
    )
    assert result.stdout == bare.stdout == "[6, 8, 10, 12]\nmain is done\n"
    assert result.stderr == bare.stderr
    assert sum(worker.tree.find("env_step").count for worker in session.workers) == 18
    assert session.main.tree.find("env_step").count == 12


def test_child_programs_are_recorded(tmp_path) -> None:
    write(tmp_path, WORK + "\nimport sys\nprint(work(int(sys.argv[1])), sys.path)\n", "child.py")
    script = write(
        tmp_path,
        """
        import os, subprocess, sys
        print(subprocess.check_output([sys.executable, "child.py", "4"], text=True))
        subprocess.run([sys.executable, "-E", "-c", "import time; time.sleep(2.5)"], check=True)
        print(subprocess.run(["sh", "-c", "exit 4"]).returncode)
        """,
    )
    bare = run([sys.executable, str(script)], tmp_path)
    for result, session, attempt in recordings(tmp_path, str(script)):
        # The child's path contains nothing of hotloop either.
        assert result.stdout == bare.stdout
        assert result.stderr == bare.stderr == ""
        (worker,) = session.workers
        assert worker.tree.find("env_step").count == 4
        assert "child.py" in worker.command
        # A child that ignores its environment is listed as unrecorded if it lives for some time.
        with attempt:
            assert [process.parent_pid for process in session.unrecorded] == [session.main.pid]
            assert "time.sleep" in session.unrecorded[0].command


def test_a_killed_worker_is_recorded(tmp_path) -> None:
    _, result, session = run_both(
        tmp_path,
        WORK
        + """
import multiprocessing, os, signal
def die():
    work(5)
    os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=die)
    process.start()
    process.join()
    print(process.exitcode)
""",
    )
    assert result.stdout == "-9\n"
    (worker,) = session.workers
    assert worker.state == "killed"
    assert worker.tree.find("env_step").count == 5


@pytest.mark.slow
def test_a_training_with_workers(tmp_path) -> None:
    """The profile has hotloop's own spans once, and samples of the learner and every worker."""
    options = ["--total-timesteps", "2048", "--workers", "2", "--execution", "eager"]
    options += ["--num-steps", "64", "--update-epochs", "1"]
    result, session = profile(tmp_path, "train", "ppo", *options, "--runs-dir", "runs")
    assert result.returncode == 0, result.stderr
    assert [process.name for process in session.processes] == ["learner", "worker-0", "worker-1"]
    assert {"collect", "update"} <= {path[0] for path, _ in session.main.tree.walk()}
    for worker in session.workers:
        assert worker.samples
        assert worker.tree.find("env_step").count == 4 * 64
        assert "env_step" not in {name for name, _ in worker.tree.find("env_step").children}


def test_the_installed_sitecustomize_still_runs(tmp_path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys\nsys.own_value = 5\n")
    path = environment()["PYTHONPATH"]
    bare, result, _ = run_both(
        tmp_path,
        """
        import subprocess, sys
        code = "import sys, sitecustomize; print(sys.own_value, sitecustomize.__file__)"
        print(sys.own_value)
        print(subprocess.check_output([sys.executable, "-c", code], text=True))
        """,
        PYTHONPATH=str(folder) + os.pathsep + path,
    )
    assert result.stdout == bare.stdout
    assert bare.stdout.startswith(f"5\n5 {folder}")


def test_a_child_without_hotloop_runs_normally(tmp_path) -> None:
    """The interpreter finds the start-up code of the profiler but not hotloop."""
    from hotloop.base.startup import BOOT_DIRECTORY

    result = run(
        [sys.executable, "-S", "-c", "import sitecustomize, sys; print(len(sys.path) > 0)"],
        tmp_path,
        PYTHONPATH=str(BOOT_DIRECTORY),
        HOTLOOP_START="hotloop.profiler.collect.processes:begin_in_child",
        HOTLOOP_PROFILE="{}",
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "True\n", "")


def test_damaged_settings(tmp_path) -> None:
    from hotloop.base.startup import BOOT_DIRECTORY

    for text in ("{", "[]", '{"directory": 3}'):
        result = run(
            [sys.executable, "-c", "print('runs')"],
            tmp_path,
            PYTHONPATH=str(BOOT_DIRECTORY) + os.pathsep + environment()["PYTHONPATH"],
            HOTLOOP_START="hotloop.profiler.collect.processes:begin_in_child",
            HOTLOOP_PROFILE=text,
        )
        assert (result.returncode, result.stdout) == (0, "runs\n")
        assert result.stderr.startswith("hotloop: this process is not profiled")
        assert len(result.stderr.splitlines()) == 1


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
    result, outer = record(tmp_path, str(script))
    assert result.stdout == "14\n\n"
    assert read(tmp_path / "inner").main.tree.find("env_step").count == 7
    assert ("env_step",) not in spans(outer, "main")


@pytest.mark.slow
def test_the_wheel_contains_the_start_up_code_of_children(tmp_path) -> None:
    root, copy = Path(__file__).parents[3], tmp_path / "copy"
    copy.mkdir()
    shutil.copytree(root / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(root / name, copy)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path]
    result = run([*map(str, command), str(copy)], tmp_path)
    assert result.returncode == 0, result.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "hotloop/base/boot/sitecustomize.py" in names
    # At the top, every Python of the installation would import it.
    assert "sitecustomize.py" not in names


def test_the_scripts_modules_come_before_pythons(tmp_path) -> None:
    """Also if the profiler has imported Python's module of that name, here and in children."""
    names = ["random", "types", "queue", "json", "threading", "contextlib", "collections", "ctypes"]
    names += ["signal", "re", "pathlib", "enum", "warnings", "traceback", "subprocess", "numpy"]
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    for name in names:
        write(scripts, "name = 'own'", f"{name}.py")
    write(
        scripts,
        f"""
        import os, sys, time
        print(sys.path, flush=True)
        for name in {names}:
            print(name, getattr(__import__(name), "name", "library"), flush=True)
        if sys.argv[1:] == ["parent"]:
            os.system(f"{{sys.executable}} scripts/train.py")
            os.system(f"cd scripts; {{sys.executable}} -c 'import train'")
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            pass
        """,
        "train.py",
    )
    bare = run([sys.executable, "scripts/train.py", "parent"], tmp_path)
    assert "random own" in bare.stdout
    for result, session, attempt in recordings(tmp_path, "scripts/train.py", "parent"):
        assert result.stdout == bare.stdout
        assert len(session.processes) == 3
        assert not session.problems
        with attempt:
            assert all(process.samples for process in session.processes)


@pytest.mark.parametrize(
    "target", ["sh", "python", "python-with-empty-environment", "python-after-clearing"]
)
def test_a_program_that_replaces_itself(tmp_path, target: str) -> None:
    write(tmp_path, "import time\nend = time.monotonic() + 0.4\nwhile time.monotonic() < end: pass")
    script = write(
        tmp_path,
        f"""
        import os, sys, time

        def first():
            end = time.monotonic() + 0.6
            while time.monotonic() < end:
                pass

        first()
        try:
            os.execv("/bin", ["/bin"])  # fails
        except OSError:
            first()
        if {target!r} == "sh":
            os.execlp("sh", "sh", "-c", "sleep 0.5; exit 3")
        if "clearing" in {target!r}:
            os.environ.clear()
            os.execv(sys.executable, [sys.executable, "script.py"])
        env = {{}} if "empty" in {target!r} else os.environ
        os.execve(sys.executable, [sys.executable, "script.py"], env)
        """,
        "first.py",
    )
    for result, session, attempt in recordings(tmp_path, str(script)):
        assert result.returncode == (3 if target == "sh" else 0)
        main = session.main
        (problem,) = session.problems
        assert (main.name, main.state) == ("main", "complete")
        assert "became another program, `" in problem
        if target == "sh":
            assert "`sh -c 'sleep 0.5; exit 3'`, which is not recorded: its time is" in problem
        elif target == "python":
            assert problem.endswith("script.py`: its times include both programs")
        else:
            assert "which is not recorded, because its environment lacks" in problem
        # Everything up to the call is recorded.
        elapsed_ns = sum(
            sample.elapsed_ns
            for sample in main.samples
            if "first" in [frame.function for frame in main.stacks[sample.stack].frames]
        )
        with attempt:
            assert elapsed_ns > 0.9e9  # more than one of the two calls
