"""Samplers, which choose the next point of the search space."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from typing import Any

from hotloop.errors import ConfigError, MissingExtraError, requires_extra
from hotloop.experiments.results import Trial
from hotloop.experiments.spaces import MAX_POINTS, Choices, Space, draw, grid_size, point
from hotloop.experiments.status import SweepStatus
from hotloop.runs import trust

SAMPLERS = {
    "grid": "all points, in order",
    "random": "independent random draws",
    "tpe": "Optuna's tree-structured Parzen estimator",
    "gp": "Optuna's Gaussian process",
    "cmaes": "Optuna's CMA-ES, for ranges only",
    "pbt": "population-based training: the worst quarter continues from the best with new options",
}


class SearchSampler:
    """A sampler, which suggests the options of one trial after another.

    Args:
        name: a key of `SAMPLERS`.
        space: the search space.
        seed: seed of random draws.

    Attributes:
        max_trials: number of points of a grid, None for other samplers.

    Raises:
        ConfigError: there is no such sampler, or it does not support this space.
        MissingExtraError: Optuna is not installed.
    """

    def __init__(self, name: str, space: Space, seed: int) -> None:
        if name not in SAMPLERS:
            raise ConfigError(f"`--sampler` must be {', '.join(SAMPLERS)}, got '{name}'")
        self.name, self._space, self._seed = name, space, seed
        # The states of Optuna's sampler that this process has stored with its trials, by number.
        self._states: dict[int, dict[str, Any]] = {}
        self._has_warned = False
        self.max_trials: int | None = None
        if name == "grid":
            self.max_trials = grid_size(space)
            if self.max_trials > MAX_POINTS:
                raise ConfigError(
                    f"the grid has {self.max_trials:,} points, and a sweep has at most "
                    f"{MAX_POINTS:,}: list fewer values, or use `--sampler random` with `--trials`"
                )
        elif name not in ("random", "pbt"):
            self._optuna = _import_optuna()
            if name == "cmaes" and any(isinstance(x, Choices) for x in space.values()):
                raise ConfigError(
                    "`--sampler cmaes` supports ranges only, but the space has lists of values: "
                    "write ranges, or use `--sampler tpe`"
                )

    def suggest(
        self, number: int, trials: Sequence[Trial], status: SweepStatus
    ) -> tuple[dict[str, Any], Any]:
        """Return the options of a new trial, and the attributes to store with it.

        Args:
            number: number of the trial, from 1. Grids and random draws depend on nothing else.
            trials: all earlier trials.
            status: their states and scores.
        """
        if self.name == "grid":
            return point(self._space, number - 1), {}
        if self.name in ("random", "pbt"):
            return draw(self._space, self._seed, number), {}
        study = self._study(number, trials, status)
        trial = study.ask(self._distributions())
        params = {
            name: x.values[trial.params[name]] if isinstance(x, Choices) else trial.params[name]
            for name, x in self._space.items()
        }
        state = self._states[number] = study.trials[-1].system_attrs
        return params, {"system": state, "signature": trust.signature({"system": state})}

    def _distributions(self) -> dict[str, Any]:
        distributions: dict[str, Any] = {}
        for name, domain in self._space.items():
            if isinstance(domain, Choices):  # use indices, since values may be of any type
                kind = self._optuna.distributions.CategoricalDistribution
                distributions[name] = kind(list(range(len(domain.values))))
            elif domain.is_int:
                kind = self._optuna.distributions.IntDistribution
                distributions[name] = kind(int(domain.low), int(domain.high))
            else:
                kind = self._optuna.distributions.FloatDistribution
                distributions[name] = kind(domain.low, domain.high, log=domain.is_log)
        return distributions

    def _study(self, number: int, trials: Sequence[Trial], status: SweepStatus) -> Any:
        """Return an in-memory study with all trials. Only the file of results is persistent."""
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
        # Samplers ignore trials in the state FAIL, and would return to a region that diverges.
        # A failed trial therefore counts as a complete one with the worst score so far.
        scores = {trial.number: status.score(trial.number) for trial in trials}
        worst = min((score for score in scores.values() if score is not None), default=0.0)
        states = {"done": "COMPLETE", "pruned": "PRUNED", "failed": "COMPLETE"}
        for trial in trials:
            params = {
                name: domain.values.index(_as_tuple(trial.params[name]))
                if isinstance(domain, Choices)
                else trial.params[name]
                for name, domain in self._space.items()
            }
            state, score = status.state(trial.number), scores[trial.number]
            frozen_trial = optuna.trial.create_trial(
                state=optuna.trial.TrialState[states.get(state, "RUNNING")],
                params=params,
                distributions=distributions,
                value={"done": score, "failed": worst}.get(state),
                intermediate_values={0: score} if state == "pruned" and score is not None else {},
                system_attrs=self._state_of(trial),
            )
            study.add_trial(frozen_trial)
        return study

    def _state_of(self, trial: Trial) -> dict[str, Any]:
        """Return the state of Optuna's sampler that this user's sweep has stored with a trial.

        That of CMA-ES is a pickle, which may run any code. Another user's state is left out.
        """
        state = trial.attrs.get("system", {})
        content = {"system": state, "signature": trial.attrs.get("signature")}
        if state == self._states.get(trial.number) or trust.is_signed(content):
            return state
        if state and self.name == "cmaes" and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "your sweeps on this machine have not signed the state of CMA-ES in this file, "
                "which could run code: the sampler starts over",
                RuntimeWarning,
                stacklevel=4,
            )
        return {}


def choose_sampler(space: Space, trials: int | None) -> tuple[str, str]:
    """Return the default sampler, and the reason, "" if there is no alternative.

    It is a grid if the space has a finite number of points, unless `trials` is lower.
    """
    try:
        size = grid_size(space)
    except ConfigError:  # a range without a number of points
        return "random", ""
    points = f"the space has {size:,} point{'s' * (size != 1)}"
    if trials is not None and trials < size:
        reason = f"{points}, more than `--trials {trials}`: random draws, or pass `--sampler grid`"
        return "random", reason
    if size > MAX_POINTS:
        return "random", ""
    return "grid", f"{points}: a grid, with a trial for each, or pass `--sampler random`"


def importances(space: Space, status: SweepStatus) -> dict[str, float] | None:
    """Return the importance of each option as a share of 1, None without Optuna or enough trials.

    PED-ANOVA: Watanabe, Bansal and Hutter 2023, arXiv:2304.10255.
    """
    try:
        sampler = SearchSampler("tpe", space, 0)
    except MissingExtraError:
        return None
    scored = [x for x in status.trials if status.score(x.number) is not None]
    finished_trials = [x for x in scored if status.state(x.number) == "done"]
    optuna, study = sampler._optuna, sampler._study(0, finished_trials, status)
    if len(finished_trials) < 4 or len({trial.value for trial in study.trials}) < 2:
        return None
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    with contextlib.suppress(ValueError, RuntimeError, ZeroDivisionError):
        return optuna.importance.get_param_importances(study, evaluator=evaluator)
    return None


def _as_tuple(x: Any) -> Any:
    return tuple(x) if isinstance(x, list) else x


def _import_optuna() -> Any:
    with requires_extra("this needs Optuna", "sweep", note=", or use `--sampler random`"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna
