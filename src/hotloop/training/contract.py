"""A test of an algorithm: does it keep what a training relies on?"""

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

# Some seconds at most in all, and several reports and checkpoints in each run. Options that an
# algorithm's configuration does not have are left out.
_SMALL = {
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
    "report_interval": 32,
    "save_replay": True,
}
# Compiled code adds in another order: parameters differ in their last bits, and these add up.
_RTOL, _ATOL = 2e-2, 2e-3


def check_algorithm(
    algorithm: Algorithm,
    *,
    env: str | Callable[..., Any] = "CartPole-v1",
    compiled: bool = False,
    **options: Any,
) -> None:
    """Train an algorithm in small, and check what every training relies on.

    It checks that

    - updates change the acting network's parameters, and their metrics are finite,
    - a run that is stopped and resumed ends bit for bit as one that was not, so that one seed gives
      one run, and another seed gives another one,
    - the saved policy acts as the returned one,
    - a configuration refuses options that make no sense,
    - where asked for, compiled updates give what eager ones give, up to rounding.

    It takes about a second, and some twenty more for `compiled` the first time.

    ```python
    def test_my_algorithm():
        check_algorithm(my_reinforce.algorithm, memory="gru:8")
    ```

    Args:
        algorithm: The algorithm's declaration.
        env: An environment that it can learn from. Its episodes must be replayable by seed and
            actions, as those of Gymnasium's environments are.
        compiled: Whether to compile the updates, too. This needs a C++ compiler.
        options: Options of the configuration, in place of the small ones that this function uses.

    Raises:
        AssertionError: The algorithm does not keep one of these; the message says which.
    """
    names = {field.name for field in dataclasses.fields(algorithm.config)}
    known = {name: value for name, value in _SMALL.items() if name in names}
    if isinstance(env, str):
        known["env_id"], factory = env, None
    else:
        factory = env
    known |= options
    with tempfile.TemporaryDirectory(prefix="hotloop-check-") as folder:
        check = _Check(algorithm, factory, Path(folder), known)
        check.training()
        check.resuming()
        check.seeds()
        check.options()
        if compiled:
            check.compiling()


class _Check:
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

    def training(self) -> None:
        """Check what a run leaves behind."""
        result = self._train("whole")
        run = RunDirectory.open(result.run_dir)
        learned = [line for line in run.metrics() if line["num_updates"]]
        _require(bool(learned), "the small run makes no update: pass other `options`")
        numbers = [
            {name: value for name, value in line.items() if isinstance(value, float)}
            for line in learned
        ]
        names = set.intersection(*map(set, numbers))
        for line in numbers:
            wrong = [name for name in names if not np.isfinite(line[name])]
            _require(not wrong, f"metrics must be finite, got {wrong} at {line}")

        first, last = self._parameters(run, 0), self._parameters(run, -1)
        _require(
            any(not np.array_equal(first[name], last[name]) for name in first),
            f"updates must change the acting network's parameters, `{self._algorithm.acting}`",
        )
        network, snapshot, _ = run.load_policy()
        spec = network.obs_spec
        obs = np.random.default_rng(0).random((5, *spec.shape)).astype(spec.dtype)
        policies = ActingPolicy(network, snapshot), result.policy
        saved, returned = (
            policy.act(obs, *([policy.new_memory(len(obs))] if policy.memory_size else []))
            for policy in policies
        )
        _require(np.array_equal(saved, returned), "the saved policy must act as the returned one")

    def resuming(self) -> None:
        """Check that a run in three parts ends where a whole one does."""
        total = self._options["total_timesteps"]
        for part in (1, 2, 3):
            self._train(
                "parts",
                resume_from=self._folder / "parts" if part > 1 else None,
                on_report=lambda report, stop=part * total // 3: report.timesteps >= stop,
            )
        whole, parts = (self._learned(name) for name in ("whole", "parts"))
        _require(whole.keys() == parts.keys(), "a resumed run must keep the same arrays")
        different = [name for name in whole if not np.array_equal(whole[name], parts[name])]
        _require(
            not different,
            "a resumed run must end bit for bit as one that was not interrupted, but these "
            f"differ: {different}. All that learning changes must be in the state, and random "
            "numbers must come from `noise`",
        )
        lines = [self._run(name).metrics() for name in ("whole", "parts")]
        for line in (*lines[0], *lines[1]):
            line.pop("elapsed_s")
        _require(lines[0] == lines[1], "a resumed run must report the same metrics as a whole one")

    def seeds(self) -> None:
        """Check that another seed gives another run."""
        self._train("other", seed=self._options.get("seed", 1) + 1)
        whole, other = (self._learned(name) for name in ("whole", "other"))
        _require(
            any(not np.array_equal(whole[name], other[name]) for name in whole),
            "another `seed` must give another run",
        )

    def options(self) -> None:
        """Check that options which make no sense are refused."""
        for name, value in (("total_timesteps", 0), ("num_envs", 0), ("seed", -1)):
            try:
                self._algorithm.config(**{**self._options, name: value})
            except ConfigError:
                continue
            raise AssertionError(
                f"the configuration must refuse `{name}` {value} with a ConfigError: inherit from "
                "`RunOptions`, and call `super().check()` in a `check` of your own"
            )

    def compiling(self) -> None:
        """Check that compiled updates do what eager ones do."""
        result = self._train("compiled", execution="compile")
        _require("compiled" in result.execution, f"updates must compile, got {result.execution}")
        _require(
            "0 recompilations" in result.execution,
            f"an update must be compiled once, got {result.execution}: give each call tensors of "
            "the same shapes",
        )
        eager, compiled = (self._parameters(self._run(name), -1) for name in ("whole", "compiled"))
        for name, array in eager.items():
            _require(
                np.allclose(compiled[name], array, rtol=_RTOL, atol=_ATOL),
                f"compiled updates must give what eager ones give, but `{name}` differs by "
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

    def _parameters(self, run: RunDirectory, which: int) -> dict[str, Array]:
        """Return the acting network's parameters of the first or the last checkpoint."""
        names = sorted(name for name in run.checkpoints.names() if name.startswith("step-"))
        return dict(run.load_policy(names[which])[1].params)

    def _learned(self, name: str) -> dict[str, Array]:
        """Return all arrays of a run's last checkpoint."""
        checkpoint = self._run(name).checkpoints.load()
        return {**checkpoint.snapshot.params, **checkpoint.arrays()}


def _require(is_kept: bool, message: str) -> None:
    if not is_kept:
        raise AssertionError(message)
