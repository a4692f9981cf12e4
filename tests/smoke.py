"""Try an installed wheel: `python tests/smoke.py`. Needs nothing but the base package.

It imports the extensions, asks for help and profiles a script, in a directory of its own.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
from pathlib import Path

EXTENSIONS = ["hotloop.timing._recorder", "hotloop.system._files"]
# It reads the interpreter's frames; elsewhere the profiler does without.
if sys.platform == "linux" and (3, 11) <= sys.version_info < (3, 14):
    EXTENSIONS.append("hotloop.profiler.collect._ticker")

SCRIPT = """
from hotloop import span, timing

with span("env_step"):
    total = sum(i * i for i in range(3_000_000))
print(total)
"""


def run(*args: str) -> str:
    """Run hotloop; returns what it prints, reports on standard error included."""
    done = subprocess.run(
        [sys.executable, "-m", "hotloop", *args], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"hotloop {' '.join(args)}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def main() -> None:
    """Raise if anything is wrong."""
    for name in EXTENSIONS:
        file = importlib.import_module(name).__file__
        print(f"{name}: {file}")
    assert "usage: hotloop" in run("--help")
    assert run("--version").startswith("hotloop ")
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "script.py"
        script.write_text(SCRIPT, encoding="utf-8")
        told = run("profile", "--out", str(Path(directory) / "profile"), str(script))
        assert str(sum(i * i for i in range(3_000_000))) in told, told
        assert "exit code 0" in told, told
        assert "env_step" in run("report", str(Path(directory) / "profile"))
    print("fine")


if __name__ == "__main__":
    main()
