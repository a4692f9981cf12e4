"""Search for options over several seeds, and read the results as columns.

python examples/sweep.py
"""

import sys

import hotloop


def main(total_timesteps=50_000):
    results = hotloop.sweep(
        "ppo",
        {"learning_rate": "log:1e-4,1e-2", "num_steps": [32, 128]},
        "CartPole-v1",
        trials=2 if total_timesteps < 10_000 else 8,
        seeds="1-2",
        total_timesteps=total_timesteps,
        jobs=2,  # processes
    )
    columns = results.table()  # a NumPy array for each column, a row for each run
    best = columns["score"].argmax()
    for name in ("param.learning_rate", "param.num_steps", "score"):
        print(f"{name}: {columns[name][best]:.4g}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
