"""Try an installed wheel: `python tests/smoke.py`. Only the base package is needed.

The script imports the extensions, prints the help and profiles a script in a temporary directory.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
from pathlib import Path

EXTENSIONS = ["hotloop.timing._recorder", "hotloop.base._files"]
# The extension reads the interpreter's frames; on other systems the profiler does not use it.
if sys.platform == "linux" and (3, 11) <= sys.version_info < (3, 14):
    EXTENSIONS.append("hotloop.profiler.collect._ticker")

SCRIPT = """
from hotloop import span, timing

with span("env_step"):
    total = sum(i * i for i in range(3_000_000))
print(total)
"""


def run(*args: str) -> str:
    """Run hotloop and return its output, including standard error."""
    result = subprocess.run(
        [sys.executable, "-m", "hotloop", *args], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"hotloop {' '.join(args)}: {result.stdout}{result.stderr}"
    return result.stdout + result.stderr


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
        output = run("profile", "--out", str(Path(directory) / "profile"), str(script))
        assert str(sum(i * i for i in range(3_000_000))) in output, output
        assert "exit code 0" in output, output
        assert "env_step" in run("report", str(Path(directory) / "profile"))
    print("fine")


if __name__ == "__main__":
    main()
