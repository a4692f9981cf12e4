"""`hotloop profile`: run a script or a command of hotloop, and report where its time goes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.base import documents
from hotloop.base.children import python_command
from hotloop.base.redaction import redacted
from hotloop.cli.report import print_findings
from hotloop.errors import ConfigError, HotloopError, ProfileError
from hotloop.profiler.collect.pyspy import attach
from hotloop.profiler.collect.stacks import MISSING_EXTENSION
from hotloop.timing.gpu_window import LENGTH_S

if TYPE_CHECKING:
    from hotloop.profiler.render.findings import Findings

USAGE = """usage: hotloop profile [--out DIR] [--interval MS] [--gpu-window MS] [--no-hooks]
                       [--py-spy] SCRIPT [ARGUMENT ...]
       hotloop profile [...] -m MODULE [ARGUMENT ...]
       hotloop profile [...] train ppo ...
       hotloop profile [...] python SCRIPT [ARGUMENT ...]

Run an unchanged Python script and report where the time of all its processes goes. The output and
exit code of the script stay the same.

options:
  --out DIR       directory of the profile (default: profiles/<script>__<time>)
  --interval MS   time between samples (default: 10; 0: no samples)
  --gpu-window MS
                  length of each recording with torch's profiler, 3, 10, 30, 100, … s after
                  torch starts to use a GPU (default: auto, which is 250; 0: never)
  --no-hooks      do not wrap functions of other libraries
  --py-spy        sample with py-spy too, into py-spy.txt in the profile directory
  -h, --help      show this help
"""
_VALUE_OPTIONS = {"--out": "DIR", "--interval": "MS", "--gpu-window": "MS"}
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
# Environment variables that change the speed of a program. No others are stored.
_SPEED = re.compile(
    r"(OMP|KMP|GOMP|MKL|OPENBLAS|BLIS|VECLIB|NUMEXPR|NUMBA)_(NUM|DYNAMIC|PROC|PLACES|WAIT|SCHEDULE|"
    r"BLOCKTIME|AFFINITY|CPU_AFFINITY|SPINCOUNT|MAXIMUM|MAX|THREAD|CBWR|DISABLE|DEBUG)\w*$|"
    r"(CUDA_VISIBLE_DEVICES|CUDA_LAUNCH_BLOCKING|PYTORCH_CUDA_ALLOC_CONF|PYTORCH_ALLOC_CONF|"
    r"XLA_FLAGS|LD_PRELOAD|MALLOC_ARENA_MAX|PYTHON(DEVMODE|ASYNCIODEBUG|MALLOC|OPTIMIZE|"
    r"TRACEMALLOC|HASHSEED))$"
)
_OWN_COMMANDS = ("train", "resume", "eval", "bandit")
# Signals to this process are for the script. Clusters send SIGUSR1 or 2 before they end a job.
_FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)


def run(args: list[str]) -> int:
    """Run the command. See `hotloop profile --help`."""
    own_args, target_args = split_arguments(args)
    options = _parse_options(own_args)
    if options is None or not target_args:
        print(USAGE, end="")
        return 0 if options is None else 2
    target = _check_target(target_args)
    directory = _make_directory(options["out"], target_args)
    settings = {
        "directory": str(directory),
        "interval_s": options["interval_s"],
        # hotloop's own commands record spans without hooks.
        "hooks": options["hooks"] and target[:2] != ["-m", "hotloop"],
        "gpu_window_s": options["gpu_window_s"],
        "parent": os.getpid(),
    }
    command = python_command("hotloop.profiler.collect.script", json.dumps(settings), *target)
    metadata: dict[str, Any] = {
        "command": redacted(["python", *target]),
        "options": options["repeat"],
        "environment": {
            name: os.environ[name] for name in sorted(os.environ) if _SPEED.match(name)
        },
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "start_ns": time.monotonic_ns(),
    }
    # Run the command, and store how it ended.
    _write_metadata(directory, metadata)
    code, problem = _run_command(command, directory / "py-spy.txt" if options["py_spy"] else None)
    metadata |= {"exit_code": code, "end_ns": time.monotonic_ns()}
    problems = [problem] if problem is not None else []
    if MISSING_EXTENSION and options["interval_s"]:
        problems.append(
            f"the profiler's C extension is not available ({MISSING_EXTENSION}): a Python thread "
            "takes the samples, which costs more and samples code that holds the GIL less often"
        )
    if problems:
        metadata["problems"] = problems
    _write_metadata(directory, metadata)
    # Print the report, whose errors never change the exit code.
    from hotloop.profiler.session.reading import read

    try:
        from hotloop.profiler.render.findings import Findings

        findings = Findings(read(directory))
        print_findings(findings, file=sys.stderr)
    except ProfileError as error:
        print(f"hotloop profile: {error}", file=sys.stderr)
    except Exception as error:  # keep the script's exit code
        print(
            f"hotloop profile: no report: {type(error).__name__}: {error}; the profile is in "
            f"{directory}",
            file=sys.stderr,
        )
    else:
        _write_page(findings, directory / "report.html")
    return 128 - code if code < 0 else code


def _write_page(findings: Findings, path: Path) -> None:
    """Write the report as an HTML page in the profile. A failure is only printed."""
    try:
        from hotloop.profiler.render import html

        html.write(findings, path)
    except Exception as error:
        reason = (
            str(error) if isinstance(error, HotloopError) else f"{type(error).__name__}: {error}"
        )
        print(f"hotloop profile: no page was written: {reason}", file=sys.stderr)
    else:
        print(f"report: {path}", file=sys.stderr)


def split_arguments(args: list[str]) -> tuple[list[str], list[str]]:
    """Split into options of this command and the script with its arguments, without a `--`."""
    index = 0
    while index < len(args) and args[index].startswith("-") and args[index] not in ("-m", "--"):
        index += 2 if args[index] in _VALUE_OPTIONS else 1
    return args[:index], args[index + (args[index : index + 1] == ["--"]) :]


def _parse_options(args: list[str]) -> dict[str, Any] | None:
    """Return the options of this command, or None if help is requested."""
    options: dict[str, Any] = {"out": None, "interval_s": 0.01, "hooks": True, "py_spy": False}
    options["gpu_window_s"] = LENGTH_S
    options["repeat"] = []  # options that a comparable profile needs
    remaining = list(args)
    while remaining:
        option, is_joined, value = remaining.pop(0).partition("=")
        if option in ("-h", "--help") and not is_joined:
            return None
        if option == "--no-hooks" and not is_joined:
            options["hooks"] = False
            options["repeat"].append(option)
        elif option == "--py-spy" and not is_joined:
            options["py_spy"] = True
            options["repeat"].append(option)
        elif option in _VALUE_OPTIONS and (is_joined or remaining):
            value = value if is_joined else remaining.pop(0)
            if option == "--out":
                options["out"] = value
                continue
            if option == "--interval":
                options["interval_s"] = _seconds(option, value, least_ms=1)
            elif value != "auto":
                options["gpu_window_s"] = _seconds(option, value, least_ms=20)
            options["repeat"] += [option, value]
        elif option in _VALUE_OPTIONS:
            raise ConfigError(f"expected `{option} {_VALUE_OPTIONS[option]}`, got nothing after it")
        else:
            raise ConfigError(
                "expected --out DIR, --interval MS, --no-hooks or --py-spy before the script, got "
                f"'{option}': options of the script must follow the script"
            )
    return options


def _seconds(option: str, text: str, *, least_ms: int) -> float:
    try:
        value = float(text) / 1e3
    except ValueError:
        value = -1.0
    if not (value == 0 or least_ms / 1e3 <= value <= 10):
        raise ConfigError(
            f"`{option}` must be 0 or between {least_ms} and 10,000 milliseconds, got '{text}'"
        )
    return value


def _check_target(args: list[str]) -> list[str]:
    """Return the Python arguments of the profiled process."""
    if args[0] == "-m":
        if len(args) < 2:
            raise ConfigError("expected `-m MODULE`, got nothing after -m")
        return args
    program = shutil.which(args[0])
    if program is not None and _PYTHON.fullmatch(Path(program).name):
        return _without_interpreter(program, args)
    if Path(args[0]).is_file():
        _check_script(Path(args[0]))
        return args
    if args[0] in _OWN_COMMANDS:
        return ["-m", "hotloop", *args]
    if program is not None:  # a script of an installed package, such as `torchrun`
        _check_script(Path(program))
        return [program, *args[1:]]
    problem = "it is a directory" if Path(args[0]).is_dir() else "the file does not exist"
    raise ConfigError(
        f"expected a Python script, `-m MODULE` or one of {', '.join(_OWN_COMMANDS)}, got "
        f"'{args[0]}': {problem}"
    )


def _check_script(path: Path) -> None:
    """Check that a file is a Python script, and not a notebook or another program.

    Raises:
        ConfigError: It is something else.
    """
    if path.suffix == ".ipynb":
        raise ConfigError(
            f"expected a Python script, got the notebook {path}: run `jupyter nbconvert --to "
            f"script {shlex.quote(str(path))}`, then `hotloop profile` with the script"
        )
    if path.suffix in (".py", ".pyw"):
        return  # Python itself reports its errors
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} can't be read ({error.strerror}): pass another script") from None
    try:
        compile(content, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        first_line = content[:200].partition(b"\n")[0].decode(errors="replace")
        kind = "a program in machine code" if b"\0" in content else "not valid Python"
        if first_line.startswith("#!"):
            kind = f"a program for {first_line[2:].strip()}"
        raise ConfigError(
            f"expected a Python script, got {path}, which is {kind}: pass the Python script or "
            "module that it runs, with its arguments"
        ) from None


def _without_interpreter(program: str, args: list[str]) -> list[str]:
    """Return the target of a command such as `python x.py`, without the interpreter.

    Raises:
        ConfigError: The interpreter is another one, or has options of its own.
    """
    target = args[1:]
    if not os.path.samefile(os.path.dirname(program), os.path.dirname(sys.executable)):
        raise ConfigError(
            f"expected a script for {sys.executable}, which runs hotloop, got {program}: leave "
            f"`{args[0]}` out, or install hotloop there and run `{program} -m hotloop profile …`"
        )
    if not target or (target[0].startswith("-") and target[0] != "-m"):
        raise ConfigError(
            f"expected a script or `-m MODULE` after `{args[0]}`, got "
            f"{f'`{target[0]}`' if target else 'nothing'}: options of Python are environment "
            "variables here, such as PYTHONUNBUFFERED=1"
        )
    return _check_target(target)


def _make_directory(out: str | None, args: list[str]) -> Path:
    while _PYTHON.fullmatch(Path(args[0]).name) and len(args) > 1:
        args = args[1:]
    stem = Path(args[1] if args[0] == "-m" else args[0]).stem
    directory = Path(out or f"profiles/{stem}__{time.strftime('%Y%m%d-%H%M%S')}")
    if (
        out is not None
        and directory.exists()
        and (not directory.is_dir() or any(directory.iterdir()))
    ):
        raise ConfigError(f"`--out` must be a new or an empty directory, got {directory}")
    attempt, candidate = 1, directory
    while True:
        try:
            candidate.mkdir(parents=True, exist_ok=out is not None)
            return candidate
        except FileExistsError:
            attempt += 1
            candidate = directory.with_name(f"{directory.name}-{attempt}")
        except OSError as error:
            raise ConfigError(
                f"expected to create the directory {candidate}, got '{error.strerror}': pass "
                "another `--out`"
            ) from error


def _write_metadata(directory: Path, metadata: dict[str, Any]) -> None:
    with suppress(OSError):  # a full disk: the report names what is missing
        text = json.dumps(documents.sealed(metadata), indent=1)
        (directory / "profile.json").write_text(text, encoding="utf-8")


def _run_command(command: list[str], py_spy: Path | None) -> tuple[int, str | None]:
    """Run the command. Return its exit code, −N after signal N, and the error of py-spy, if any."""
    # The terminal sends Ctrl-C to the command directly, so this process ignores it and waits.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, *_FORWARDED)}
    process = subprocess.Popen(command, env={**os.environ})
    spy = attach(process.pid, py_spy) if py_spy is not None else None

    def forward(number: int, _: Any) -> None:
        with suppress(ProcessLookupError):
            process.send_signal(number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in _FORWARDED:
        signal.signal(number, forward)
    try:
        code = process.wait()
        return code, spy.stop() if spy is not None else None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
