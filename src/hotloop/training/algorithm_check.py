"""A conformance test for algorithms."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.errors import ConfigError
from hotloop.policies import ActingPolicy
from hotloop.runs import Report, RunDirectory
from hotloop.training.algorithm import Algorithm
from hotloop.types import Array

# Small runs of a few seconds in all, each with several reports and checkpoints. Options that the
# algorithm's configuration lacks are dropped.
_SMALL_OPTIONS = {
    "num_envs": 2,
    "hidden_sizes": (8,),
    "execution": "eager",
    "torch_threads": 1,
    "total_timesteps": 192,
    "checkpoint_interval": 48,
    "keep_checkpoints": 99,
    # On policy.
    "num_steps": 16,
    "num_minibatches": 2,
    "update_epochs": 2,
    # From replay.
    "learning_starts": 40,
    "batch_size": 16,
    "buffer_size": 500,
    "update_to_data": 0.25,
    "report_interval": 32,
    "save_replay": True,
}
# Compiled code adds in another order: parameters differ in their last bits, which accumulate.
_RTOL, _ATOL = 2e-2, 2e-3


def check_algorithm(
    algorithm: Algorithm,
    *,
    env: str | Callable[..., Any] = "CartPole-v1",
    compiled: bool = False,
    **options: Any,
) -> None:
    """Train an algorithm in short runs, and check the properties that training relies on.

    The checks are:

    - updates change the acting network's parameters, and their metrics are finite,
    - a stopped and resumed run ends bit for bit like an uninterrupted one, so that one seed gives
      one run, and another seed gives another run,
    - the saved policy acts like the returned one,
    - the configuration rejects invalid options,
    - with `compiled`, compiled updates equal eager ones up to rounding.

    They take about a second, and about twenty more for `compiled` the first time.

    ```python
    def test_my_algorithm():
        check_algorithm(my_reinforce.algorithm, memory="gru:8")
    ```

    Args:
        algorithm: The algorithm's declaration.
        env: An environment for the algorithm. Its episodes must be replayable from seed and
            actions, as in Gymnasium's environments.
        compiled: Whether to check compiled updates too. This needs a C++ compiler.
        options: Options of the configuration, which override the small values of this function.

    Raises:
        AssertionError: A check failed. The message names it.
    """
    names = {field.name for field in dataclasses.fields(algorithm.config)}
    known = {name: value for name, value in _SMALL_OPTIONS.items() if name in names}
    if isinstance(env, str):
        known["env_id"], factory = env, None
    else:
        factory = env
    known |= options
    with tempfile.TemporaryDirectory(prefix="hotloop-check-") as folder:
        check = _Check(algorithm, factory, Path(folder), known)
        check.check_training()
        check.check_resume()
        check.check_seeds()
        check.check_options()
        if compiled:
            check.check_compilation()


class _Check:
    """The checks of one algorithm, on runs in a temporary folder."""

    def __init__(
        self,
        algorithm: Algorithm,
        env: Callable[..., Any] | None,
        folder: Path,
        options: dict[str, Any],
    ) -> None:
        self._algorithm = algorithm
        self._env = env
        self._folder = folder
        self._options = options

    def check_training(self) -> None:
        """Check the metrics, parameters and saved policy of a run."""
        result = self._train("whole")
        run = RunDirectory.open(result.run_dir)
        update_lines = [line for line in run.metrics() if line["num_updates"]]
        _require(bool(update_lines), "the short run makes no update: pass other `options`")
        numbers = [
            {name: value for name, value in line.items() if isinstance(value, float)}
            for line in update_lines
        ]
        names = set.intersection(*map(set, numbers))
        for line in numbers:
            non_finite = [name for name in names if not np.isfinite(line[name])]
            _require(not non_finite, f"metrics must be finite, got {non_finite} at {line}")

        first, last = self._parameters(run, 0), self._parameters(run, -1)
        _require(
            any(not np.array_equal(first[name], last[name]) for name in first),
            f"updates must change the acting network's parameters, `{self._algorithm.acting}`",
        )
        network, snapshot, _ = run.load_policy()
        spec = network.obs_spec
        obs = np.random.default_rng(0).random((5, *spec.shape)).astype(spec.dtype)
        mask_size = network.action_spec.mask_size
        mask = np.ones((len(obs), mask_size), np.bool_) if mask_size else None
        policies = ActingPolicy(network, snapshot), result.policy.acting
        saved, returned = (
            policy.greedy(obs, policy.new_memory(len(obs)), mask) for policy in policies
        )
        _require(np.array_equal(saved, returned), "the saved policy must act as the returned one")

    def check_resume(self) -> None:
        """Check that a run in three parts equals an uninterrupted run."""
        total = self._options["total_timesteps"]
        for part in (1, 2, 3):
            self._train(
                "parts",
                resume_from=self._folder / "parts" if part > 1 else None,
                on_report=lambda report, stop=part * total // 3: report.timesteps >= stop,
            )
        whole, parts = (self._learned_arrays(name) for name in ("whole", "parts"))
        _require(whole.keys() == parts.keys(), "a resumed run must keep the same arrays")
        different = [name for name in whole if not np.array_equal(whole[name], parts[name])]
        _require(
            not different,
            "a resumed run must end bit for bit like an uninterrupted one, but these arrays "
            f"differ: {different}. Keep everything that updates change in the state, and take "
            "random numbers from `noise`",
        )
        lines = [self._run(name).metrics() for name in ("whole", "parts")]
        for line in (*lines[0], *lines[1]):
            line.pop("elapsed_s")
        _require(lines[0] == lines[1], "a resumed run must report the same metrics as a whole one")

    def check_seeds(self) -> None:
        self._train("other", seed=self._options.get("seed", 1) + 1)
        whole, other = (self._learned_arrays(name) for name in ("whole", "other"))
        _require(
            any(not np.array_equal(whole[name], other[name]) for name in whole),
            "another `seed` must give another run",
        )

    def check_options(self) -> None:
        for name, value in (("total_timesteps", 0), ("num_envs", 0), ("seed", -1)):
            try:
                self._algorithm.config(**{**self._options, name: value})
            except ConfigError:
                continue
            raise AssertionError(
                f"the configuration must reject `{name}` {value} with a ConfigError: inherit from "
                "`RunOptions`, and check your options in `check`, not in `__post_init__`"
            )

    def check_compilation(self) -> None:
        result = self._train("compiled", execution="compile")
        _require("compiled" in result.execution, f"updates must compile, got {result.execution}")
        _require(
            "0 recompilations" in result.execution,
            f"an update must be compiled once, got {result.execution}: pass tensors of the same "
            "shapes to each call",
        )
        eager, compiled = (self._parameters(self._run(name), -1) for name in ("whole", "compiled"))
        for name, array in eager.items():
            _require(
                np.allclose(compiled[name], array, rtol=_RTOL, atol=_ATOL),
                f"compiled updates must equal eager ones, but `{name}` differs by "
                f"{np.abs(compiled[name] - array).max():g}",
            )

    def _train(
        self,
        name: str,
        *,
        resume_from: Path | None = None,
        on_report: Callable[[Report], bool] | None = None,
        **changes: Any,
    ) -> Any:
        config = self._algorithm.config(
            **{**self._options, **changes, "run_dir": str(self._folder / name)}
        )
        return self._algorithm.train(
            config,
            env=self._env,
            on_report=on_report,
            resume_from=resume_from,
            progress=False,
        )

    def _run(self, name: str) -> RunDirectory:
        return RunDirectory.open(self._folder / name)

    def _parameters(self, run: RunDirectory, position: int) -> dict[str, Array]:
        """Return the acting network's parameters of the first or the last checkpoint."""
        names = [name for name in run.checkpoints.names() if name.startswith("step-")]
        return dict(run.load_policy(names[position])[1].params)

    def _learned_arrays(self, name: str) -> dict[str, Array]:
        checkpoint = self._run(name).checkpoints.load()
        return {**checkpoint.snapshot.params, **checkpoint.arrays()}


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
