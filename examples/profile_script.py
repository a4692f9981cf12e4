"""Profile a script, and read in Python why it is slow.

    python examples/profile_script.py

From a shell, `hotloop profile SCRIPT` prints the same and writes a page.
"""

import sys
from pathlib import Path

from hotloop.cli import main as hotloop
from hotloop.profiler import read
from hotloop.profiler.diagnose import diagnose

# A loop of NumPy calls on tiny arrays, which lists every return again at each step.
SCRIPT = """
import sys
import numpy as np

returns = []
for step in range(int(sys.argv[1])):
    returns.append(float(np.random.default_rng(step).normal(size=4).sum()))
    np.mean(returns)
"""


def main(total_timesteps=20_000):
    Path("slow_loop.py").write_text(SCRIPT)
    out = f"profiles/{len(list(Path('profiles').glob('*'))):03}"
    hotloop(["profile", "--out", out, "slow_loop.py", str(total_timesteps)])
    session = read(out)
    print(f"{len(session.processes)} process, {(session.end_ns - session.start_ns) / 1e9:.1f} s")
    for cause in diagnose(session):
        print(cause.rule, cause.gain, cause.places)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
