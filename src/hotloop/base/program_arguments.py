"""The Python program that a command of hotloop runs, from the words of its command line."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from hotloop.errors import ConfigError

_PYTHON = re.compile(r"python(\d(\.\d+)?)?")


def python_arguments(
    words: Sequence[str], command: str, own_commands: Sequence[str] = ()
) -> list[str]:
    """Return Python's arguments for a program: a script or `-m MODULE`, and its own arguments.

    Args:
        words: A script, `-m MODULE`, one of `own_commands`, or an installed script, with
            arguments. `python` may precede the first two.
        command: The hotloop command that runs the program, such as "profile".
        own_commands: Other hotloop commands that this command can run.

    Raises:
        ConfigError: This is no Python program that the command can run.
    """
    args = [*words]
    *targets, last_target = ["a Python script", "`-m MODULE`", *own_commands]
    expected = f"expected {', '.join(targets)} or {last_target}"
    if not args:
        raise ConfigError(f"{expected}, got nothing: run `hotloop {command} SCRIPT`")
    if args[0] == "-m":
        if len(args) < 2:
            raise ConfigError("expected `-m MODULE`, got nothing after -m")
        return args
    program = shutil.which(args[0])
    if program is not None and _PYTHON.fullmatch(Path(program).name):
        return python_arguments(_without_interpreter(program, args, command), command, own_commands)
    if Path(args[0]).is_file():
        _check_script(Path(args[0]), command)
        return args
    if args[0] in own_commands:
        return ["-m", "hotloop", *args]
    if program is not None:  # a script of an installed package, such as `torchrun`
        _check_script(Path(program), command)
        return [program, *args[1:]]
    problem = "it is a directory" if Path(args[0]).is_dir() else "the file does not exist"
    raise ConfigError(f"{expected}, got '{args[0]}': {problem}")


def program_name(words: Sequence[str]) -> str:
    """Return a short name of a program, for the directory of its profile."""
    args = [*words]
    while _PYTHON.fullmatch(Path(args[0]).name) and len(args) > 1:
        args = args[1:]
    return Path(args[1] if args[0] == "-m" else args[0]).stem


def _check_script(path: Path, command: str) -> None:
    """Check that a file is a Python script, and not a notebook or another program.

    Raises:
        ConfigError: It is something else.
    """
    if path.suffix == ".ipynb":
        raise ConfigError(
            f"expected a Python script, got the notebook {path}: run `jupyter nbconvert --to "
            f"script {shlex.quote(str(path))}`, then `hotloop {command}` with the script"
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


def _without_interpreter(program: str, args: list[str], command: str) -> list[str]:
    """Return the arguments of a command such as `python x.py`, without the interpreter.

    Raises:
        ConfigError: It is not this interpreter, or it has options.
    """
    target = args[1:]
    if not os.path.samefile(os.path.dirname(program), os.path.dirname(sys.executable)):
        raise ConfigError(
            f"expected a script for {sys.executable}, which runs hotloop, got {program}: leave "
            f"`{args[0]}` out, or install hotloop there and run `{program} -m hotloop {command} …`"
        )
    if not target or (target[0].startswith("-") and target[0] != "-m"):
        raise ConfigError(
            f"expected a script or `-m MODULE` after `{args[0]}`, got "
            f"{f'`{target[0]}`' if target else 'nothing'}: options of Python are environment "
            "variables here, such as PYTHONUNBUFFERED=1"
        )
    return target
