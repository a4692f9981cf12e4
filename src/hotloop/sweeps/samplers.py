"""Samplers: which point of the space is tried next, by their names."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hotloop.errors import ConfigError, MissingExtraError
from hotloop.sweeps.results import Trial
from hotloop.sweeps.spaces import MAX_POINTS, Choices, Space, draw, grid_size, point

SAMPLERS = {
    "grid": "all points, in order",
    "random": "independent draws",
    "tpe": "Optuna's tree-structured Parzen estimator",
    "gp": "Optuna's Gaussian process",
    "cmaes": "Optuna's CMA-ES, of ranges alone",
    "pbt": "population-based training: the worst quarter goes on from the best, with other options",
}


class Past(Protocol):
    """What has come of the trials so far."""

    def score(self, trial: int) -> float | None:
        """Of a trial; None: it is not known yet."""
        ...

    def state(self, trial: int) -> str:
        """`running`, `done`, `pruned` or `failed`."""
        ...


class Sampler:
    """Gives the options of one trial after another.

    Args:
        name: of `SAMPLERS`.
        space: of which they are.
        seed: of the draws.

    Raises:
        ConfigError: there is no such sampler, or it can't take this space.
        MissingExtraError: Optuna is not installed.
    """

    def __init__(self, name: str, space: Space, seed: int) -> None:
        if name not in SAMPLERS:
            raise ConfigError(f"`--sampler` must be {', '.join(SAMPLERS)}, got '{name}'")
        self.name, self._space, self._seed = name, space, seed
        self.most: int | None = None
        if name == "grid":
            self.most = grid_size(space)
            if self.most > MAX_POINTS:
                raise ConfigError(
                    f"the grid has {self.most:,} points, and a sweep has at most {MAX_POINTS:,}: "
                    "list fewer values, or take `--sampler random` with `--trials`"
                )
        elif name not in ("random", "pbt"):
            self._optuna = _import_optuna()
            if name == "cmaes" and any(isinstance(one, Choices) for one in space.values()):
                raise ConfigError(
                    "CMA-ES takes ranges alone, and the space has lists of values: write ranges, "
                    "or take `--sampler tpe`"
                )

    def ask(self, number: int, trials: Sequence[Trial], past: Past) -> tuple[dict[str, Any], Any]:
        """Return the options of a trial, counted from 1, and what is to be kept of it.

        Args:
            number: its number. Grids and random draws depend on nothing else.
            trials: those before.
            past: what has come of them.
        """
        if self.name == "grid":
            return point(self._space, number - 1), {}
        if self.name in ("random", "pbt"):
            return draw(self._space, self._seed, number), {}
        study = self._study(number, trials, past)
        trial = study.ask(self._distributions())
        params = {
            name: one.values[trial.params[name]] if isinstance(one, Choices) else trial.params[name]
            for name, one in self._space.items()
        }
        return params, {"system": study.trials[-1].system_attrs}

    def _distributions(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, one in self._space.items():
            if isinstance(one, Choices):  # by their numbers: values may be of any type
                kind = self._optuna.distributions.CategoricalDistribution
                found[name] = kind(list(range(len(one.values))))
            elif one.is_int:
                kind = self._optuna.distributions.IntDistribution
                found[name] = kind(int(one.low), int(one.high))
            else:
                kind = self._optuna.distributions.FloatDistribution
                found[name] = kind(one.low, one.high, log=one.is_log)
        return found

    def _study(self, number: int, trials: Sequence[Trial], past: Past) -> Any:
        """Return a study in memory that knows all trials: the file of results is what there is."""
        optuna, seed = self._optuna, self._seed + number
        samplers = optuna.samplers
        if self.name == "tpe":
            sampler = samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
        elif self.name == "gp":
            sampler = samplers.GPSampler(seed=seed)
        else:
            sampler = samplers.CmaEsSampler(seed=seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        distributions = self._distributions()
        states = {"done": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL", "running": "RUNNING"}
        for trial in trials:
            params = {
                name: one.values.index(_as_value(trial.params[name]))
                if isinstance(one, Choices)
                else trial.params[name]
                for name, one in self._space.items()
            }
            state, score = past.state(trial.number), past.score(trial.number)
            made = optuna.trial.create_trial(
                state=optuna.trial.TrialState[states[state]],
                params=params,
                distributions=distributions,
                value=score if state == "done" else None,
                intermediate_values={0: score} if state == "pruned" and score is not None else {},
                system_attrs=trial.attrs.get("system", {}),
            )
            study.add_trial(made)
        return study


def importances(space: Space, trials: Sequence[Trial], past: Past) -> dict[str, float] | None:
    """Return how much each option decides whether a trial is good: shares of 1, by PED-ANOVA.

    Watanabe, Bansal and Hutter 2023, arXiv:2304.10255.

    Returns:
        None: Optuna is not installed, or there are too few trials.
    """
    try:
        sampler = Sampler("tpe", space, 0)
    except MissingExtraError:
        return None
    optuna, study = sampler._optuna, sampler._study(0, trials, past)
    complete = [one for one in study.trials if one.state.name == "COMPLETE"]
    if len(complete) < 4 or len({one.value for one in complete}) < 2:
        return None
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    with contextlib.suppress(ValueError, RuntimeError, ZeroDivisionError):
        return optuna.importance.get_param_importances(study, evaluator=evaluator)
    return None


def _as_value(x: Any) -> Any:
    return tuple(x) if isinstance(x, list) else x


def _import_optuna() -> Any:
    import warnings

    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError(
            f"this needs Optuna ({error}): pip install 'hotloop[sweep]', or take `--sampler random`"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def key_of(params: Mapping[str, Any]) -> str:
    """Return what is the same of equal options."""
    return json.dumps(params, sort_keys=True)
