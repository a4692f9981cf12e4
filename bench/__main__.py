"""`python -m bench NAME …` runs one benchmark; without a name it lists them."""

from __future__ import annotations

import importlib
import sys

BENCHES = {
    "train": "whole trainings, beside Stable-Baselines3 and sbx",
    "curves": "as good as the peer? learning curves over seeds",
    "before": "is anything slower than in an earlier checkout",
    "weights": "are final weights the same, bit for bit, as before a change",
    "checkpoints": "what verifying and saving a checkpoint takes",
    "learning": "does it learn: trainings over seeds, evaluated",
    "timing": "what one span costs, beside other ways to time a scope",
    "replay": "replay buffers, beside the peers and the O(N) ways",
    "replay-share": "what drawing from a full replay buffer takes of a SAC training",
    "replay-learning": "does it learn better by returns or priorities than uniformly",
    "rollouts": "workers that never wait in lock-step, beside the peers that do",
    "bandit": "bandits: a post's program, its fixes, peers, and the kernels",
    "profiler": "does the profiler name the causes of its examples, and what does it cost",
    "corpus": "does the profiler name the cause in programs that it has never seen",
    "tanh": "find the coefficients of the compiled tanh",
    "tables": "write the README's tables from bench/results",
}


def main() -> int:
    """Dispatch."""
    if len(sys.argv) < 2 or sys.argv[1] not in BENCHES:
        print("usage: python -m bench NAME ...\n")
        for name, about in BENCHES.items():
            print(f"  {name:15} {about}")
        return 0 if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help") else 2
    name = sys.argv.pop(1)
    return importlib.import_module(f"bench.{name.replace('-', '_')}").main() or 0


if __name__ == "__main__":
    sys.exit(main())
