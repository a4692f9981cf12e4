"""The report of a sweep: the best options, their test on fresh seeds, plots and a page.

It reads the stored results as data, without importing the algorithm or torch.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.base.html_page import Page, Section, data_uri, escaped
from hotloop.base.rounding import format_interval
from hotloop.base.statistics import bootstrap_interval, interquartile_mean, stratified_interval
from hotloop.experiments.plan import Plan
from hotloop.experiments.results import Results
from hotloop.experiments.samplers import importances
from hotloop.experiments.spaces import stored_space
from hotloop.experiments.status import SweepStatus
from hotloop.reports import sweep_plots
from hotloop.reports.sweep_table import format_params, format_score, format_value
from hotloop.types import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_ROWS = 50


class SweepReport:
    """The results of a sweep, read from its file.

    Attributes:
        plan: the plan.
        status: state and score of each trial.
        winner: the best finished trial, None if none has finished.

    Raises:
        ConfigError: the file is damaged.
    """

    def __init__(self, results: Results, plan: Plan) -> None:
        self._results, self.plan = results, plan
        trials = results.trials()
        self._space = stored_space(results.path, plan.space, trials)
        self.status = SweepStatus(trials, results.runs(), plan.seeds, plan.steps, {})
        best = self.status.best()
        self.winner = next((trial for trial in trials if trial.number == best), None)

    def best_options(self) -> dict[str, Any]:
        """Return the options of the best trial as JSON values, without seed and directories."""
        assert self.winner is not None
        steps = self.plan.steps
        options = {
            **self.plan.fixed_options,
            **self.winner.options(steps),
            "total_timesteps": steps,
        }
        return dict(sorted(options.items()))

    def to_json(self) -> dict[str, Any]:
        """Return the options, state and score of each trial, the best one, and the tests."""
        status, winner = self.status, self.winner
        assert winner is not None
        default, best = self._test_scores(winner.number)
        return {
            "algorithm": self.plan.algorithm,
            "best": {"trial": winner.number, "options": self.best_options()},
            "trials": [
                {
                    "trial": trial.number,
                    "options": trial.options(status.steps),
                    "state": status.state(trial.number),
                    "score": status.score(trial.number),
                    "scores_by_seed": status.scores(trial.number),
                }
                for trial in status.ranked()
            ],
            "test": {"best": best.tolist(), "defaults": default.tolist()},
        }

    def test_lines(self) -> list[str]:
        """Return lines that compare the best trial with the defaults on fresh seeds."""
        winner = self.winner
        assert winner is not None
        lines = [f"best: trial {winner.number}, {format_params(winner.options(self.status.steps))}"]
        default, best = self._test_scores(winner.number)
        if len(best) < 2:
            return [*lines, "not tested on fresh seeds yet: pass `--test-seeds 101-110`"]

        def difference(groups: list[Any]) -> Any:
            return interquartile_mean(groups[1]) - interquartile_mean(groups[0])

        low, high = stratified_interval([default, best], difference)
        gain = float(interquartile_mean(best) - interquartile_mean(default))
        verdict = "better" if low > 0 else "worse" if high < 0 else "no significant difference"
        return [
            *lines,
            f"on {len(best)} fresh seeds: {_with_interval(best)}, interquartile mean and 95 % "
            "interval",
            f"the defaults: {_with_interval(default)}",
            f"difference: {format_interval(gain, (low, high), sign='+')}, {verdict}",
        ]

    def _test_scores(self, best: int) -> tuple[Array, Array]:
        """Return scores of the defaults and the best trial, on the test seeds that both have."""
        scores: dict[int, dict[int, float]] = {0: {}, best: {}}
        for run in self._results.runs("test"):
            if run.steps == self.status.steps and run.trial in scores and run.score is not None:
                scores[run.trial][run.seed] = run.score
        shared = sorted(scores[0].keys() & scores[best].keys())
        default, tested = ([scores[trial][seed] for seed in shared] for trial in (0, best))
        return np.array(default), np.array(tested)

    def importances(self) -> dict[str, float] | None:
        """Return the importance of each option as a share of 1, None if it is unknown."""
        if self.is_population or not self._space:
            return None
        return importances(self._space, self.status)

    @property
    def is_population(self) -> bool:
        """Whether the trials are members of a population, whose options change during training."""
        return self.plan.sampler == "pbt"

    def write(
        self, directory: Path, lines: Sequence[str], importance: Mapping[str, float] | None
    ) -> Path:
        """Write the plots and a page with the results, and return the path of the page.

        Args:
            directory: the directory, which exists.
            lines: the lines of `test_lines`.
            importance: the result of `importances`.

        Raises:
            MissingExtraError: matplotlib is not installed.
            OutputError: the page can't be written.
        """
        sections = [
            Section("winner", "The best options", "".join(f"<p>{escaped(x)}</p>" for x in lines)),
            self._trial_section(),
        ]
        for title, (name, figure) in self._figures(importance).items():
            content = io.BytesIO()
            figure.savefig(content, format="png", dpi=130)
            image = content.getvalue()
            (directory / f"{name}.png").write_bytes(image)
            tag = f'<img alt="{escaped(title)}" src="{data_uri(image, "image/png")}">'
            sections.append(Section(title.lower().replace(" ", "-"), title, tag))
        plan, status = self.plan, self.status
        spaces = ", ".join(f"{name}={x}" for name, x in plan.space.items()) or "seeds"
        states = [status.state(trial.number) for trial in status.trials]
        figures = [("trials", f"{len(states)}")]
        if self.winner is not None:
            figures.append(("best score", format_score(status, self.winner.number)))
        figures += [(x, f"{states.count(x)}") for x in ("pruned", "failed") if x in states]
        page = Page(
            kind="sweep",
            title=f"{plan.algorithm} over {spaces}",
            overview=f"{plan.algorithm} over {spaces}",
            figures=figures,
            sections=sections,
            has_media=True,
        )
        page.write(directory / "report.html")
        return directory / "report.html"

    def _trial_section(self) -> Section:
        status, names = self.status, list(self.plan.space)
        trials = status.ranked()[:_MAX_ROWS]
        head = "".join(f"<th>{escaped(x)}</th>" for x in ("trial", *names, "score", "state", "why"))
        rows: list[str] = []
        for trial in trials:
            options = trial.options(status.steps)
            reasons = {run.reason for run in status.runs(trial.number) if run.reason}
            cells = [
                str(trial.number),
                *(format_value(options[name]) for name in names),
                format_score(status, trial.number),
                status.state(trial.number),
                "; ".join(sorted(reasons)),
            ]
            rows.append("<tr>" + "".join(f"<td>{escaped(x)}</td>" for x in cells) + "</tr>")
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        return Section("trials", f"Trials, the best {len(trials)}", table)

    def _figures(self, importance: Mapping[str, float] | None) -> dict[str, tuple[str, Figure]]:
        """Return title → name and figure of each plot."""
        status, trials, space = self.status, self.status.trials, self._space
        scores = {
            trial.number: score
            for trial in trials
            if (score := status.score(trial.number)) is not None
            and status.state(trial.number) in ("done", "pruned")
        }
        runs = [run for trial in trials for run in status.runs(trial.number)]
        best = None if self.winner is None else self.winner.number
        figures = {"Learning curves": ("curves", sweep_plots.learning_curves(runs, best))}
        if space and not self.is_population:
            figures |= {
                "Scores over each option": (
                    "slices",
                    sweep_plots.score_slices(space, trials, scores),
                ),
                "Trials": ("parallel", sweep_plots.parallel_coordinates(space, trials, scores)),
            }
        if importance is not None:
            figures["Importance"] = ("importance", sweep_plots.option_importance(importance))
        return figures


def _with_interval(scores: Array) -> str:
    low, high = bootstrap_interval(scores[:, None])
    return format_interval(float(interquartile_mean(scores)), (float(low[0]), float(high[0])))
