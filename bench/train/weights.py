"""Bitwise comparison of the final weights of short eager trainings before and after a change.

    python -m bench weights --store     # before the change
    python -m bench weights             # after the change

Hashes are compared: of each policy's outputs for fixed observations, and of every floating-point
array in its last checkpoint. Results differ between machines and builds of the libraries, so
compare on the machine that stored them. Cases that differ only in who collects, this process,
worker processes or Ray actors, are also compared with each other.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import tempfile
import warnings
from typing import Any

import numpy as np

from bench import storage

_PPO = {"num_envs": 4, "num_steps": 32, "num_minibatches": 2, "update_epochs": 2}
_PPO |= {"total_timesteps": 1_500}
_SCALED = {"normalize_obs": True, "normalize_reward": True, "clip_obs": 5.0, "clip_reward": 5.0}
_REPLAY = {"total_timesteps": 1_200, "learning_starts": 200, "buffer_size": 1_000}
_REPLAY |= {"batch_size": 64, "hidden_sizes": (64, 64), "report_interval": 200}
_DQN = {"train_frequency": 4, "update_to_data": 0.5, "target_interval": 100}
_DISCOUNT = {"gamma": "linear:0.9,0.99"}
_PENDULUM = {"env_id": "Pendulum-v1"}
_CHEETAH = {"env_id": "HalfCheetah-v5"}

# Algorithm and options, by name; `learning_rate` 1e-3 is constant.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", {}),
    "ppo annealed": ("ppo", {"learning_rate": "linear:0.001,0"}),
    "ppo continuous": ("ppo", _PENDULUM),
    "ppo scaled": ("ppo", {**_SCALED, **_PENDULUM}),
    "ppo shared trunk": ("ppo", {"shared_trunk": True, "activation": "relu"}),
    "ppo all terms": (
        "ppo",
        {"clip_value_loss": True, "entropy_coef": 0.01, "target_kl": 0.003, "clip_range": 0.1},
    ),
    "ppo workers": ("ppo", {"workers": 2}),
    "ppo workers inline": ("ppo", {"workers": 2, "backend": "inline"}),
    "ppo workers overlap": ("ppo", {"workers": 2, "overlap": True}),
    "ppo ray": ("ppo", {"workers": 2, "backend": "ray"}),
    "ppo ray overlap": ("ppo", {"workers": 2, "backend": "ray", "overlap": True}),
    "ppo gru workers": ("ppo", {"memory": "gru:8", "workers": 2}),
    "ppo gru inline": ("ppo", {"memory": "gru:8", "workers": 2, "backend": "inline"}),
    "ppo gru ray": ("ppo", {"memory": "gru:8", "workers": 2, "backend": "ray"}),
    "ppo HalfCheetah": ("ppo", {**_CHEETAH, "num_envs": 1, "num_steps": 512}),
    "ppo own network": ("ppo", {"network": "tests.policies.nets:Net"}),
    "appo": ("appo", {}),
    "appo workers lag": ("appo", {"workers": 2, "schedule": "lag:1", "target_kl": 0.01}),
    "appo delayed": ("appo", {"hold_back": 2, "clip_value_loss": True, "normalize_value": True}),
    "appo gru delayed": ("appo", {"hold_back": 1, "memory": "gru:8", "vtrace": False}),
    "sac": ("sac", {}),
    "sac HalfCheetah": ("sac", {**_CHEETAH, "hidden_sizes": (256, 256)}),
    "sac fixed alpha": ("sac", {"alpha": 0.2, "layer_norm": True, "policy_frequency": 1}),
    "sac target entropy": ("sac", {"target_entropy": -0.5, "num_envs": 3, "activation": "tanh"}),
    "sac bfloat16": ("sac", {"precision": "bfloat16"}),
    "sac prioritized": ("sac", {"replay": "prioritized"}),
    "sac rank": ("sac", {"replay": "rank", "n_step": 3}),
    "sac proportional": ("sac", {"replay": "proportional"}),
    "sac scheduled discount": ("sac", _DISCOUNT),
    "sac device": ("sac", {**_DISCOUNT, "replay_device": "device"}),
    "sac workers": ("sac", {"workers": 2, "num_envs": 4}),
    "sac workers inline": ("sac", {"workers": 2, "num_envs": 4, "backend": "inline"}),
    "sac ray": ("sac", {"workers": 2, "num_envs": 4, "backend": "ray"}),
    "td3": ("td3", {}),
    "td3 HalfCheetah": ("td3", {**_CHEETAH, "hidden_sizes": (256, 256), "batch_size": 256}),
    "td3 n steps": ("td3", {"n_step": 3, "layer_norm": True, "policy_frequency": 3}),
    "td3 pink workers": ("td3", {"exploration": "pink", "workers": 2, "num_envs": 4}),
    "td3 pink inline": (
        "td3",
        {"exploration": "pink", "workers": 2, "num_envs": 4, "backend": "inline"},
    ),
    "td3 pink ray": (
        "td3",
        {"exploration": "pink", "workers": 2, "num_envs": 4, "backend": "ray"},
    ),
    "dqn": ("dqn", {}),
    "dqn plain": ("dqn", {"double": False, "huber": 1.0, "max_grad_norm": 10.0}),
    "dqn dueling": ("dqn", {"dueling": True, "replay": "prioritized"}),
    "dqn gru": ("dqn", {"memory": "gru:8", "sequence_length": 8, "batch_size": 16}),
    "dqn device n steps": ("dqn", {"n_step": 3, "replay_device": "device"}),
    "dqn soft": ("dqn", {"tau": 0.05, "target_interval": 20, "num_envs": 4, "workers": 2}),
}

# Cases whose weights are the same, whoever collects.
EQUAL_CASES = (
    ("ppo workers", "ppo workers inline", "ppo ray"),
    ("ppo workers overlap", "ppo ray overlap"),
    ("ppo gru workers", "ppo gru inline", "ppo gru ray"),
    ("sac workers", "sac workers inline", "sac ray"),
    ("td3 pink workers", "td3 pink inline", "td3 pink ray"),
)


def train(case: str, folder: str) -> dict[str, Any]:
    """Train a case; return its hashes."""
    from hotloop.runs import RunDirectory

    name, options = CASES[case]
    algorithm = importlib.import_module(f"hotloop.algorithms.{name}")
    base_options: dict[str, Any] = {"execution": "eager", "runs_dir": folder, "seed": 3}
    if name in ("ppo", "appo"):
        base_options |= {**_PPO, "learning_rate": 1e-3}
    else:
        base_options |= {**_REPLAY, **(_PENDULUM if name != "dqn" else _DQN)}
    result = algorithm.train(algorithm.Config(**{**base_options, **options}), progress=False)
    policy = result.policy
    generator = np.random.default_rng(0)
    obs = generator.standard_normal((64, *policy.network.obs_spec.shape), np.float32)
    if policy.network.memory_size:
        outputs = [policy.head(obs, policy.new_memory(len(obs)))]
    else:
        outputs = [policy.head(obs)] + ([policy.value(obs)] if policy.network.has_value else [])
    arrays = RunDirectory.open(result.run_dir).checkpoints.load().arrays()
    numbers = [x for x in arrays.values() if x.dtype.kind == "f" and x.size > 1]
    return {"policy": [_hash(x) for x in outputs], "arrays": sorted({_hash(x) for x in numbers})}


def main() -> int:
    """Train all cases, and store or compare the hashes."""
    parser = argparse.ArgumentParser(prog="python -m bench weights", description=__doc__)
    parser.add_argument("--store", action="store_true", help="store the hashes as reference")
    parser.add_argument("--only", nargs="+", default=list(CASES), metavar="CASE")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    stored = {} if options.store else storage.load("weights")["cases"]
    cases: dict[str, Any] = {}
    num_other = 0
    for case in options.only:
        with tempfile.TemporaryDirectory() as folder:
            cases[case] = train(case, folder)
        verdict = "stored" if options.store else "new"
        if case in stored:
            expected = stored[case]
            is_same = cases[case]["policy"] == expected["policy"]
            lost = set(expected["arrays"]) - set(cases[case]["arrays"])
            verdict = "same" if is_same and not lost else "DIFFERS"
            if is_same and lost:
                verdict += f" in {len(lost)} of {len(expected['arrays'])} arrays"
            num_other += verdict != "same"
        print(f"{case:24} {verdict}", flush=True)
    for names in EQUAL_CASES:
        policies = {name: cases[name]["policy"] for name in names if name in cases}
        if len(policies) > 1:
            is_equal = len({tuple(hashes) for hashes in policies.values()}) == 1
            num_other += not is_equal
            print(f"{' = '.join(policies):56} {'same' if is_equal else 'DIFFERS'}", flush=True)
    if options.store:
        print(storage.save("weights", {"cases": cases}))
    return num_other


def _hash(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
