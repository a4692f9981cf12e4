"""Virtual environments of the matrix's cells, and the programs that run in them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from bench.matrix.cells import Cell
from bench.storage import ROOT

# Sources that a wheel is built from. Building in the checkout would leave and reuse build/.
_SOURCES = ("src", "pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in")
_LIBRARIES = (
    *("numpy", "rich", "torch", "gymnasium", "numba", "tyro", "matplotlib", "safetensors"),
    *("onnx", "onnxscript", "onnxruntime", "envpool"),
)


class Untested(Exception):
    """The cell cannot be made on this machine."""


class CheckFailed(Exception):
    """A check found that something does not work."""


def find_interpreter(version: str) -> Path | None:
    """Return the newest interpreter of a minor version, from pyenv or else from PATH."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    installed = sorted(
        pyenv.glob(f"{version}.*/bin/python"),
        key=lambda path: [int(part) for part in path.parts[-3].split(".") if part.isdigit()],
    )
    if installed:
        return installed[-1]
    on_path = shutil.which(f"python{version}")
    return Path(on_path) if on_path else None


def build_wheel(interpreter: Path, folder: Path) -> Path:
    """Build a wheel of this checkout for an interpreter; return its path."""
    with tempfile.TemporaryDirectory(prefix="hotloop-matrix-") as temporary:
        source = Path(temporary)
        for name in _SOURCES:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
                shutil.copytree(ROOT / name, source / name, ignore=ignored)
            else:
                shutil.copyfile(ROOT / name, source / name)
        pip = [str(interpreter), "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
        _pip([*pip, str(folder), str(source)], clean_variables())
    (wheel,) = folder.glob("*.whl")
    return wheel


def clean_variables() -> dict[str, str]:
    """Return this process's environment variables without those that lead back to the checkout."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "HOTLOOP", "VIRTUAL_ENV"))
    }


class Environment:
    """A cell's virtual environment, with hotloop's wheel and the cell's versions installed.

    Args:
        cell: The cell.
        folder: Directory for the environment and the output of the checks. An environment from an
            earlier run is reused.

    Attributes:
        cell: The cell.
        work: Working directory of every program.
        cache: The cell's own directory for compiled updates.

    Raises:
        Untested: There is no such interpreter, or a library cannot be installed here.
        CheckFailed: The wheel cannot be built.
    """

    def __init__(self, cell: Cell, folder: Path) -> None:
        self.cell = cell
        self.work = folder / "work"
        self.cache = folder / "cache"
        for path in (self.work, self.cache, folder / "wheel"):
            shutil.rmtree(path, ignore_errors=True)
        self.work.mkdir(parents=True)
        interpreter = find_interpreter(cell.python)
        if interpreter is None:
            raise Untested(f"there is no Python {cell.python} on this machine")
        try:
            wheel = build_wheel(interpreter, folder / "wheel")
        except Untested as error:
            raise CheckFailed(f"the wheel cannot be built: {error}") from error
        self.python = folder / "venv" / "bin" / "python"
        # Prebuilt wheels alone: a library without one for this Python is not supported there.
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
        # This variable replaces a machine-wide constraint, even if the file pins nothing.
        constraints = folder / "constraints.txt"
        constraints.write_text("\n".join(["# pins of this cell", *cell.constraints()]) + "\n")
        variables = clean_variables() | {"PIP_CONSTRAINT": str(constraints)}
        if not self.python.exists():
            subprocess.run([str(interpreter), "-m", "venv", str(folder / "venv")], check=True)
        else:  # reused: the wheel is new but has the same version
            _pip([*pip, "--force-reinstall", "--no-deps", str(wheel)], variables)
        _pip([*pip, f"{wheel}[{','.join(cell.extras)}]" if cell.extras else str(wheel)], variables)

    def versions(self) -> dict[str, str]:
        """Return the versions of Python and of the libraries."""
        program = (
            "import importlib.metadata as m, json, platform, sys\n"
            "installed = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
            "found = {n: installed[n] for n in sys.argv[1:] if n in installed}\n"
            "print(json.dumps({'python': platform.python_version(), **found}))"
        )
        return json.loads(self.run("-c", program, *_LIBRARIES).stdout)

    def hotloop(self, *args: str, timeout_s: float = 600.0) -> str:
        """Run a command of hotloop; return its output, errors included.

        Raises:
            CheckFailed: It failed.
        """
        result = self.run("-m", "hotloop", *args, timeout_s=timeout_s)
        return result.stdout + result.stderr

    def run(self, *args: str, timeout_s: float = 600.0) -> subprocess.CompletedProcess[str]:
        """Run the cell's Python with arguments.

        Raises:
            CheckFailed: It failed, or it took too long.
        """
        process = self.start(*args)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise CheckFailed(f"`{command_text(args)}` took more than {timeout_s:.0f} s") from error
        if process.returncode:
            raise CheckFailed(
                f"`{command_text(args)}` exits with {process.returncode}: {reason(err)}"
            )
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Start the cell's Python with arguments, in its own process group."""
        return subprocess.Popen(
            [str(self.python), *args],
            cwd=self.work,
            env=clean_variables() | {"HOTLOOP_CACHE": str(self.cache)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


def command_text(args: tuple[str, ...]) -> str:
    """Return a command as a user would type it, without the text of programs."""
    short = ["…" if "\n" in arg else arg.rpartition("/")[2] for arg in args]
    return " ".join(["python", *short]).replace("python -m hotloop", "hotloop")


def reason(stderr: str) -> str:
    """Return the line of an error output that names the error."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("hotloop", "ERROR")) or "Error" in line]
    return (errors or lines or ["it printed no error"])[-1][:300]


def _pip(command: list[str], variables: dict[str, str]) -> None:
    result = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if result.returncode:
        raise Untested(reason(result.stderr))
