"""`hotloop profile`: run a script or one of hotloop's own commands; say where its time goes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

Run a Python script as it is and report where its time and that of all its processes goes. The
script's output and exit code are its own.

options:
  --out DIR       where the profile goes (default: profiles/<script>__<time>)
  --interval MS   between samples (default: 10; 0: no samples)
  --gpu-window MS
                  how long torch's profiler looks at a GPU each time, 3, 10, 30, 100, … s after
                  torch begins to use one (default: auto, which is 250; 0: never)
  --no-hooks      leave other libraries' functions alone
  --py-spy        have py-spy sample it too, into py-spy.txt of the profile
  -h, --help      show this
"""
_WITH_VALUE = {"--out": "DIR", "--interval": "MS", "--gpu-window": "MS"}
_OWN = ("train", "resume", "eval", "bandit")


def run(args: list[str]) -> int:
    """Profile; see `hotloop profile --help`."""
    own, rest = split(args)
    options = _parse(own)
    if options is None or not rest:
        print(USAGE, end="")
        return 0 if options is None else 2
    target = _target(rest)
    directory = _make_directory(options["out"], rest)
    settings = {
        "directory": str(directory),
        "interval_s": options["interval_s"],
        # What hotloop does itself has spans of its own.
        "hooks": options["hooks"] and target[:2] != ["-m", "hotloop"],
        "gpu_window_s": options["gpu_window_s"],
    }
    command = [
        sys.executable,
        "-m",
        "hotloop.profiler.collect.script",
        json.dumps(settings),
        *target,
    ]
    about: dict[str, Any] = {
        "command": ["python", *target],
        "options": options["again"],
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "start_ns": time.monotonic_ns(),
    }
    _write_about(directory, about)
    code, problem = _run_command(command, directory / "py-spy.txt" if options["py_spy"] else None)
    about |= {"exit_code": code, "end_ns": time.monotonic_ns()}
    problems = [problem] if problem is not None else []
    if MISSING_EXTENSION and options["interval_s"]:
        problems.append(
            f"the profiler's C extension is not available ({MISSING_EXTENSION}): a Python thread "
            "takes the samples, which costs more and sees code that keeps the GIL less often"
        )
    if problems:
        about["problems"] = problems
    _write_about(directory, about)
    from hotloop.profiler.session.reading import read

    try:
        from hotloop.profiler.render.findings import Findings

        found = Findings(read(directory))
        print_findings(found, file=sys.stderr)
    except ProfileError as error:
        print(f"hotloop profile: {error}", file=sys.stderr)
    except Exception as error:  # the script's exit code is what counts
        print(
            f"hotloop profile: no report: {type(error).__name__}: {error}; the profile is in "
            f"{directory}",
            file=sys.stderr,
        )
    else:
        _write_page(found, directory / "report.html")
    return 128 - code if code < 0 else code


def _write_page(found: Findings, path: Path) -> None:
    """The report as a page beside what it is made of; what fails is told and changes nothing."""
    try:
        from hotloop.profiler.render import html

        html.write(found, path)
    except Exception as error:
        told = str(error) if isinstance(error, HotloopError) else f"{type(error).__name__}: {error}"
        print(f"hotloop profile: no page was written: {told}", file=sys.stderr)
    else:
        print(f"report: {path}", file=sys.stderr)


def split(args: list[str]) -> tuple[list[str], list[str]]:
    """Our own options, and the script with what follows it; a `--` may stand between them."""
    i = 0
    while i < len(args) and args[i].startswith("-") and args[i] not in ("-m", "--"):
        i += 2 if args[i] in _WITH_VALUE else 1
    return args[:i], args[i + (args[i : i + 1] == ["--"]) :]


def _parse(own: list[str]) -> dict[str, Any] | None:
    """Our own options; None where help is asked for."""
    options: dict[str, Any] = {"out": None, "interval_s": 0.01, "hooks": True, "py_spy": False}
    options["gpu_window_s"] = LENGTH_S
    options["again"] = []  # those that another profile needs to be comparable
    left = list(own)
    while left:
        option, is_joined, value = left.pop(0).partition("=")
        if option in ("-h", "--help") and not is_joined:
            return None
        if option == "--no-hooks" and not is_joined:
            options["hooks"] = False
            options["again"].append(option)
        elif option == "--py-spy" and not is_joined:
            options["py_spy"] = True
            options["again"].append(option)
        elif option in _WITH_VALUE and (is_joined or left):
            value = value if is_joined else left.pop(0)
            if option == "--out":
                options["out"] = value
                continue
            if option == "--interval":
                options["interval_s"] = _seconds(option, value, least_ms=1)
            elif value != "auto":
                options["gpu_window_s"] = _seconds(option, value, least_ms=20)
            options["again"] += [option, value]
        elif option in _WITH_VALUE:
            raise ConfigError(f"expected `{option} {_WITH_VALUE[option]}`, got nothing after it")
        else:
            raise ConfigError(
                "expected --out DIR, --interval MS, --no-hooks or --py-spy before the script, got "
                f"'{option}': options of the script's own stand after it"
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


def _target(rest: list[str]) -> list[str]:
    """What the recorded process is to run."""
    if rest[0] == "-m":
        if len(rest) < 2:
            raise ConfigError("expected `-m MODULE`, got nothing after -m")
        return rest
    if Path(rest[0]).is_file():
        return rest
    if rest[0] in _OWN:
        return ["-m", "hotloop", *rest]
    what = "it is a directory" if Path(rest[0]).is_dir() else "there is no such file"
    raise ConfigError(
        f"expected a Python script, `-m MODULE` or one of {', '.join(_OWN)}, got '{rest[0]}': "
        f"{what}"
    )


def _make_directory(out: str | None, rest: list[str]) -> Path:
    stem = Path(rest[1] if rest[0] == "-m" else rest[0]).stem
    directory = Path(out or f"profiles/{stem}__{time.strftime('%Y%m%d-%H%M%S')}")
    if (
        out is not None
        and directory.exists()
        and (not directory.is_dir() or any(directory.iterdir()))
    ):
        raise ConfigError(f"`--out` must be a new or an empty directory, got {directory}")
    attempt, made = 1, directory
    while True:
        try:
            made.mkdir(parents=True, exist_ok=out is not None)
            return made
        except FileExistsError:
            attempt += 1
            made = directory.with_name(f"{directory.name}-{attempt}")
        except OSError as error:
            raise ConfigError(
                f"expected to make the directory {made}, got '{error.strerror}': pass another "
                "`--out`"
            ) from error


def _write_about(directory: Path, about: dict[str, Any]) -> None:
    with suppress(OSError):  # a full disk: the report says what is missing
        (directory / "profile.json").write_text(json.dumps(about, indent=1), encoding="utf-8")


def _run_command(command: list[str], py_spy: Path | None) -> tuple[int, str | None]:
    """Its exit code, −N after signal N, and why py-spy, where it was asked for, has no stacks.

    Ctrl-C reaches it by the terminal; we wait for its end.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    process = subprocess.Popen(command, env={**os.environ})
    spy = attach(process.pid, py_spy) if py_spy is not None else None

    def forward(number: int, _: Any) -> None:
        with suppress(ProcessLookupError):
            process.send_signal(number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, forward)
    try:
        code = process.wait()
        return code, spy.stop() if spy is not None else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
