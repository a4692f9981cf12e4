"""Duration of common imports, and whether they import a heavy library.

    python -m bench imports

Exits with 1 if a limit is exceeded: `import hotloop` 0.15 s more than bare Python, `hotloop --help`
and `hotloop train --help` 0.4 s. None of them may import torch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

HEAVY = {"torch", "gymnasium", "numba", "matplotlib", "tyro"}

LIMITS_S = {
    "import hotloop": ("import hotloop", 0.15),
    "hotloop --help": ("from hotloop.cli import main; main(['--help'])", 0.4),
    "hotloop train --help": ("from hotloop.cli import main; main(['train', '--help'])", 0.4),
}


def wall_s(code: str, repeats: int = 7) -> float:
    """Return the minimum seconds of a Python process that runs `code`."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return min(times)


def heavy_modules(code: str) -> list[str]:
    """Return the heavy libraries that `code` imports."""
    probe = f"{code}\nimport sys\nprint(*({HEAVY!r} & sys.modules.keys()), file=sys.stderr)"
    command = [sys.executable, "-c", probe]
    completed = subprocess.run(command, check=True, capture_output=True, text=True)
    return sorted(completed.stderr.split())


def main() -> int:
    """Measure, print, and compare with the limits."""
    argparse.ArgumentParser(prog="python -m bench imports", description=__doc__).parse_args()
    bare_s = wall_s("pass")
    failed = False
    for name, (code, limit_s) in LIMITS_S.items():
        took_s = wall_s(code)
        if name == "import hotloop":
            took_s -= bare_s
        heavy = heavy_modules(code)
        is_good = took_s <= limit_s and not heavy
        failed |= not is_good
        brings = f", imports {', '.join(heavy)}" if heavy else ""
        verdict = "" if is_good else " FAILED"
        print(f"{name:22} {took_s:6.3f} s (limit {limit_s} s){brings}{verdict}")
    return int(failed)
