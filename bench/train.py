"""Whole trainings, side by side with a peer: same task, same hyper-parameters, same threads.

    python -m bench train --algorithm ppo --env-id CartPole-v1 --against sb3
    python -m bench train --algorithm ppo --workers 2 --overlap

Runs alternate, each in a process of its own. Printed and stored: steps a second in the training
loop, with compiling taken out of it and with it, and end to end (imports, start-up and everything
else included), medians, spread, the ratios, and the learning curves that go with them. By default
hotloop compiles its update, so that its full speed is seen; `--compile auto` lets it decide, and
`--cold` gives every run an empty cache to compile into.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench import storage

# What all are given, by algorithm and environment, in hotloop's words; other values are
# Stable-Baselines3's defaults. The first environment is the default.
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "ppo": {
        "CartPole-v1": {"num_envs": 8, "num_steps": 128, "num_minibatches": 4},
        "HalfCheetah-v5": {"num_envs": 1, "num_steps": 2048, "num_minibatches": 32},
        "Pendulum-v1": {"num_envs": 1, "num_steps": 2048, "num_minibatches": 32},
    },
    "sac": {"HalfCheetah-v5": {"learning_starts": 5_000}},
    "td3": {"HalfCheetah-v5": {"learning_starts": 5_000}},
    # CleanRL's hyper-parameters.
    "dqn": {
        "CartPole-v1": {
            "learning_starts": 10_000,
            "train_frequency": 10,
            "batch_size": 128,
            "buffer_size": 10_000,
            "target_interval": 500,
            "exploration_fraction": 0.5,
            "epsilon_end": 0.05,
            "hidden_sizes": (120, 84),
            "learning_rate": 2.5e-4,
        }
    },
}
# For both, where they are not hotloop's defaults. What no setting makes alike:
# - before learning starts, the peers' DQN acts at random, ours with the ε of then (1 to 0.81);
# - the peers' TD3 adds its noise to random actions too;
# - the peers' SAC clips log σ to (−20, 2), ours squashes it to (−5, 2); the gradient by log α has a
#   factor of α in ours, and has none in theirs;
# - sbx's TD3 moves its targets at each update, and its policy takes the lesser of both critics.
COMMON: dict[str, dict[str, Any]] = {
    "ppo": {"learning_rate": 3e-4, "update_epochs": 10},
    "sac": {"policy_learning_rate": 3e-4, "critic_learning_rate": 3e-4, "policy_frequency": 1},
    "td3": {"learning_rate": 1e-3},
    "dqn": {"double": False, "huber": 1.0, "max_grad_norm": 10.0, "update_to_data": 0.1},
}
# Cores that every contender's update gets; tiny networks are slower on two.
THREADS = {"ppo": 1, "sac": 2, "td3": 2, "dqn": 1}
TIMESTEPS = {"ppo": 102_400, "sac": 10_000, "td3": 10_000, "dqn": 100_000}


def run_hotloop(options: argparse.Namespace) -> dict[str, Any]:
    """One training with hotloop."""
    from hotloop.runs import RunDirectory
    from hotloop.runs.plots import episodes_of

    algorithm = importlib.import_module(f"hotloop.algorithms.{options.algorithm}")
    precision = {"precision": options.precision} if options.algorithm in ("sac", "td3") else {}
    with tempfile.TemporaryDirectory() as folder:
        result = algorithm.train(
            algorithm.Config(
                env_id=options.env_id,
                total_timesteps=options.timesteps,
                seed=options.seed,
                torch_threads=options.threads,
                compile=options.compile,
                runs_dir=folder,
                **precision,
                **worker_settings(options),
                **COMMON[options.algorithm],
                **SETTINGS[options.algorithm][options.env_id],
            )
        )
        steps, returns = episodes_of(RunDirectory.open(result.run_dir))
        lines = RunDirectory.open(result.run_dir).metrics()
    return {
        "timesteps": result.timesteps,
        "loop_s": result.elapsed_s - result.compile_s,
        "compile_s": result.compile_s,
        "passed": [[line["timesteps"], line["elapsed_s"] - result.compile_s] for line in lines],
        "episodes": [[int(s), float(r)] for s, r in zip(steps, returns, strict=True)],
    }


def worker_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What of the options is about workers, where there are any; the peers step by themselves."""
    if not options.workers:
        return {}
    settings: dict[str, Any] = {"workers": options.workers}
    if options.schedule is not None:
        settings["schedule"] = options.schedule
    if options.overlap:
        settings["overlap"] = True
    return settings


def worker_suffix(options: argparse.Namespace) -> str:
    """What tells a result with workers from one without."""
    return "".join(f"_{name}{value}" for name, value in worker_settings(options).items()).replace(
        "overlapTrue", "overlap"
    )


def run_sb3(options: argparse.Namespace) -> dict[str, Any]:
    """One training with Stable-Baselines3."""
    import stable_baselines3  # pyright: ignore[reportMissingImports]
    import torch

    torch.set_num_threads(options.threads)
    settings = SETTINGS[options.algorithm][options.env_id]
    if options.algorithm == "ppo":
        batch = settings["num_envs"] * settings["num_steps"]
        given = {
            "n_steps": settings["num_steps"],
            "batch_size": batch // settings["num_minibatches"],
            "n_epochs": COMMON["ppo"]["update_epochs"],
            "learning_rate": COMMON["ppo"]["learning_rate"],
        }
    else:
        given = _off_policy_settings(options.algorithm, settings)
    kind = getattr(stable_baselines3, options.algorithm.upper())
    return _run_baselines(kind, options, {**given, "device": "cpu"})


def run_sbx(options: argparse.Namespace) -> dict[str, Any]:
    """One training with sbx, Stable-Baselines in JAX.

    Its compiler takes what cores there are, and compiles within the loop, anew in every process.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import sbx  # pyright: ignore[reportMissingImports]

    settings = SETTINGS[options.algorithm][options.env_id]
    given = _off_policy_settings(options.algorithm, settings)
    kind = getattr(sbx, options.algorithm.upper())
    if options.algorithm == "dqn":
        widths, learning_rate = settings["hidden_sizes"], settings["learning_rate"]
        clip = COMMON["dqn"]["max_grad_norm"]
        return _run_baselines(
            kind, options, given, lambda model: _equalise_sbx(model, widths, learning_rate, clip)
        )
    return _run_baselines(kind, options, given)


def _equalise_sbx(
    model: Any, widths: Sequence[int], learning_rate: float, max_grad_norm: float
) -> None:
    """Give sbx's DQN the others' network and gradient clipping.

    Of `net_arch` it takes the first width for both layers, and it does not clip.
    """
    import jax  # pyright: ignore[reportMissingImports]
    import optax  # pyright: ignore[reportMissingImports]
    from flax import linen  # pyright: ignore[reportMissingImports]
    from sbx.common.type_aliases import RLTrainState  # pyright: ignore[reportMissingImports]

    layers: list[Any] = []
    for width in widths:
        layers += [linen.Dense(width), linen.relu]
    network = linen.Sequential([*layers, linen.Dense(int(model.action_space.n))])
    model.key, key = jax.random.split(model.key)
    params = network.init(key, np.zeros((1, *model.observation_space.shape), np.float32))
    clip = optax.clip_by_global_norm(max_grad_norm)
    model.policy.qf = model.qf = network
    model.policy.qf_state = RLTrainState.create(
        apply_fn=network.apply,
        params=params,
        target_params=params,
        tx=optax.chain(clip, optax.adam(learning_rate)),
    )


def _off_policy_settings(algorithm: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Hotloop's words in those of Stable-Baselines3."""
    given: dict[str, Any] = {"learning_starts": settings["learning_starts"]}
    widths = list(settings.get("hidden_sizes", (256, 256)))
    given["policy_kwargs"] = {"net_arch": widths}
    if algorithm == "sac":
        return {**given, "learning_rate": COMMON["sac"]["policy_learning_rate"]}
    if algorithm == "td3":
        from stable_baselines3.common.noise import (  # pyright: ignore[reportMissingImports]
            NormalActionNoise,
        )

        noise = NormalActionNoise(np.zeros(6), np.full(6, 0.1))  # of HalfCheetah's six actions
        rate = COMMON["td3"]["learning_rate"]
        return {**given, "learning_rate": rate, "batch_size": 256, "action_noise": noise}
    return {
        **given,
        "learning_rate": settings["learning_rate"],
        "batch_size": settings["batch_size"],
        "buffer_size": settings["buffer_size"],
        "train_freq": settings["train_frequency"],
        "target_update_interval": settings["target_interval"],
        "exploration_fraction": settings["exploration_fraction"],
        "exploration_final_eps": settings["epsilon_end"],
    }


def _run_baselines(
    kind: Any,
    options: argparse.Namespace,
    given: dict[str, Any],
    adapt: Callable[[Any], None] = lambda _: None,
) -> dict[str, Any]:
    """One training with a library that has Stable-Baselines3's interface.

    Args:
        kind: the algorithm's class.
        options: of the command.
        given: what the class is made with.
        adapt: called with the model before it is trained.
    """
    from stable_baselines3.common.callbacks import (  # pyright: ignore[reportMissingImports]
        BaseCallback,
    )
    from stable_baselines3.common.env_util import (  # pyright: ignore[reportMissingImports]
        make_vec_env,
    )

    episodes: list[list[float]] = []
    passed: list[list[float]] = []
    started = time.perf_counter()

    class Episodes(BaseCallback):
        """Keeps every episode's return, and the time every so often."""

        def _on_step(self) -> bool:
            for info in self.locals["infos"]:
                if "episode" in info:
                    episodes.append([self.num_timesteps, float(info["episode"]["r"])])
            if self.num_timesteps % 1000 == 0:
                passed.append([self.num_timesteps, time.perf_counter() - started])
            return True

    num_envs = SETTINGS[options.algorithm][options.env_id].get("num_envs", 1)
    vec_env = make_vec_env(options.env_id, n_envs=num_envs, seed=options.seed)
    model = kind("MlpPolicy", vec_env, seed=options.seed, **given)
    adapt(model)
    started = time.perf_counter()
    model.learn(options.timesteps, callback=Episodes())
    return {
        "timesteps": model.num_timesteps,
        "loop_s": time.perf_counter() - started,
        "compile_s": 0.0,
        "passed": passed,
        "episodes": episodes,
    }


RUNNERS = {"hotloop": run_hotloop, "sb3": run_sb3, "sbx": run_sbx}


def learning_rate_of_steps(run: dict[str, Any], learning_starts: int) -> float:
    """Steps a second once updates are made, a fifth of the rest of the steps for warming up."""
    begin = learning_starts + 0.2 * (run["timesteps"] - learning_starts)
    late = [(steps, at) for steps, at in run["passed"] if steps >= begin]
    if len(late) < 2:
        return float("nan")
    (first, start), (last, end) = late[0], late[-1]
    return (last - first) / (end - start)


def run_in_process(name: str, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One training in a fresh process; adds `total_s`, from start to exit."""
    command = [
        *(sys.executable, "-m", "bench", "train", "--worker", name),
        *("--env-id", options.env_id, "--timesteps", str(options.timesteps)),
        *("--seed", str(seed), "--threads", str(options.threads), "--compile", options.compile),
        *("--algorithm", options.algorithm, "--precision", options.precision),
        *("--workers", str(options.workers), *(["--overlap"] if options.overlap else [])),
        *(["--schedule", options.schedule] if options.schedule is not None else []),
    ]
    with tempfile.TemporaryDirectory() as cache:
        cold = {"TORCHINDUCTOR_CACHE_DIR": cache} if getattr(options, "cold", False) else {}
        started = time.perf_counter()
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, **cold}
        )
        total_s = time.perf_counter() - started
    return {"seed": seed, "total_s": total_s, **json.loads(done.stdout.splitlines()[-1])}


def last_tenth(run: dict[str, Any], timesteps: int) -> float:
    """Mean return of the episodes that ended in the last tenth of the steps."""
    late = [r for step, r in run["episodes"] if step > 0.9 * timesteps]
    return statistics.fmean(late) if late else float("nan")


def spread(values: list[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summary(runs: list[dict[str, Any]], timesteps: int) -> dict[str, Any]:
    """Medians and spread over runs."""
    rates = [run["timesteps"] / run["loop_s"] for run in runs]
    with_compiling = [run["timesteps"] / (run["loop_s"] + run["compile_s"]) for run in runs]
    return {
        "steps_per_s": spread(rates),
        "steps_per_s_with_compiling": spread(with_compiling),
        "compile_s": spread([run["compile_s"] for run in runs]),
        "total_s": spread([run["total_s"] for run in runs]),
        "return_last_tenth": [round(last_tenth(run, timesteps), 1) for run in runs],
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """What every command that trains takes."""
    parser.add_argument("--algorithm", default="ppo", choices=sorted(SETTINGS))
    parser.add_argument("--env-id", help="default: the algorithm's first one")
    parser.add_argument("--timesteps", type=int, help="default: the algorithm's")
    parser.add_argument("--threads", type=int, help="default: the algorithm's")
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--workers", type=int, default=0, help="hotloop's; 0: none")
    parser.add_argument("--schedule", choices=["barrier", "variable", "async"])
    parser.add_argument("--overlap", action="store_true", help="ppo: collect while learning")


def complete(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Fill in what depends on the algorithm."""
    algorithm = options.algorithm
    options.env_id = options.env_id or next(iter(SETTINGS[algorithm]))
    if options.env_id not in SETTINGS[algorithm]:
        parser.error(f"{algorithm} has settings for {', '.join(SETTINGS[algorithm])}")
    options.timesteps = options.timesteps or TIMESTEPS[algorithm]
    options.threads = options.threads or THREADS[algorithm]
    if not options.workers and (options.overlap or options.schedule):
        parser.error("--overlap and --schedule need --workers")
    if options.overlap and algorithm != "ppo":
        parser.error(f"{algorithm} has no --overlap: it learns from what has come, always")


def main() -> int:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(prog="python -m bench train", description=__doc__)
    add_options(parser)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--against", nargs="+", default=["sb3"], choices=["sb3", "sbx"], help="default: sb3"
    )
    parser.add_argument("--compile", default="on", choices=["auto", "on", "off"])
    parser.add_argument("--cold", action="store_true", help="compile into an empty cache")
    parser.add_argument("--worker", choices=sorted(RUNNERS), help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    complete(parser, options)
    if options.algorithm == "ppo" and "sbx" in options.against:
        parser.error("sbx is measured with sac, td3 and dqn: leave it out for ppo")
    if "sbx" in options.against and importlib.util.find_spec("sbx") is None:
        print("sbx is not installed (pip install sbx-rl, Python 3.11 or later) and is left out")
        options.against.remove("sbx")
        if not options.against:
            parser.error("no peer is left: install sbx-rl, or measure against sb3")
    if options.worker:
        print(json.dumps(RUNNERS[options.worker](options)))
        return 0

    learning_starts = SETTINGS[options.algorithm][options.env_id].get("learning_starts", 0)
    if options.compile != "off" and not options.cold:
        # Fills the cache: what is measured is a warm one.
        short = argparse.Namespace(**{**vars(options), "timesteps": learning_starts + 1_000})
        run_in_process("hotloop", short, seed=1)
    runs: dict[str, list[dict[str, Any]]] = {
        "hotloop": [],
        **{name: [] for name in options.against},
    }
    for seed in range(1, options.repeats + 1):
        # Alternating, and every other time the other one first.
        for name in list(runs)[:: 1 if seed % 2 else -1]:
            run = run_in_process(name, options, seed)
            runs[name].append(run)
            rate = run["timesteps"] / run["loop_s"]
            learning = learning_rate_of_steps(run, learning_starts)
            print(
                f"{name:8} seed {seed}: {rate:8,.0f} steps/s, {learning:8,.0f} while it learns, "
                f"{run['compile_s']:5.1f} s compiling, {run['total_s']:6.1f} s in all, "
                f"return {last_tenth(run, options.timesteps):.1f}",
                flush=True,
            )
    summaries = {name: summary(done, options.timesteps) for name, done in runs.items()}
    for name, done in runs.items():
        rates = [learning_rate_of_steps(run, learning_starts) for run in done]
        summaries[name]["steps_per_s_while_learning"] = spread(rates)
    ours = summaries["hotloop"]
    ratios = {
        name: {
            "steps_per_s": ours["steps_per_s"]["median"] / peer["steps_per_s"]["median"],
            "with_compiling": ours["steps_per_s_with_compiling"]["median"]
            / peer["steps_per_s"]["median"],
            "while_learning": ours["steps_per_s_while_learning"]["median"]
            / peer["steps_per_s_while_learning"]["median"],
            "total": peer["total_s"]["median"] / ours["total_s"]["median"],
        }
        for name, peer in summaries.items()
        if name != "hotloop"
    }
    first = ratios[options.against[0]]
    result = {
        "benchmark": f"{options.algorithm} {options.env_id}",
        "command": " ".join(["python -m bench train", *sys.argv[1:]]),
        "settings": {
            **SETTINGS[options.algorithm][options.env_id],
            **COMMON[options.algorithm],
            "threads": options.threads,
            "timesteps": options.timesteps,
            "compile": options.compile,
            "precision": options.precision,
            **worker_settings(options),
            "cache": "cold" if options.cold else "warm",
        },
        "summaries": summaries,
        "ratios": ratios,
        "ratio_steps_per_s": first["steps_per_s"],
        "ratio_with_compiling": first["with_compiling"],
        "ratio_total": first["total"],
        "curves": {
            name: [{"seed": run["seed"], "episodes": run["episodes"]} for run in done]
            for name, done in runs.items()
        },
    }
    how = "" if options.compile == "on" else f"_{options.compile}"
    how += "_cold" if options.cold else ""
    how += "" if options.precision == "float32" else f"_{options.precision}"
    how += worker_suffix(options)
    path = storage.save(f"train_{options.algorithm}_{options.env_id}{how}", result)
    for name, values in summaries.items():
        rate, total = values["steps_per_s"], values["total_s"]
        within = values["steps_per_s_with_compiling"]["median"]
        learning = values["steps_per_s_while_learning"]
        print(
            f"{name:8} {rate['median']:8,.0f} steps/s ({rate['min']:,.0f}–{rate['max']:,.0f}), "
            f"{within:,.0f} with compiling, {learning['median']:,.0f} "
            f"({learning['min']:,.0f}–{learning['max']:,.0f}) while it learns, "
            f"{total['median']:.1f} s from prompt to end ({total['min']:.1f}–{total['max']:.1f})"
        )
    for name, ratio in ratios.items():
        print(
            f"ratio to {name}: {ratio['steps_per_s']:.2f} in steps/s, "
            f"{ratio['while_learning']:.2f} while it learns, "
            f"{ratio['with_compiling']:.2f} with compiling, {ratio['total']:.2f} in all"
        )
    print(f"stored: {path.relative_to(storage.RESULTS.parent.parent)}")
    return 0
