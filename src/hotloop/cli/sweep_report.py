"""`hotloop sweep report FILE`: test the best options on fresh seeds, and plot the scores."""

from __future__ import annotations

import argparse
import dataclasses
import io
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.base.files import make_directory
from hotloop.base.rounding import format_interval
from hotloop.base.statistics import bootstrap_interval, interquartile_mean, stratified_interval
from hotloop.cli import add_trust_option, notify, require_module
from hotloop.cli.stored_sweep import open_sweep
from hotloop.cli.sweep import make_plan
from hotloop.cli.sweep_table import format_params, format_score, print_best, ranked_trials
from hotloop.errors import ConfigError
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.sweeps import Results, Space, Trial
    from hotloop.sweeps.results import SweepSettings
    from hotloop.sweeps.runner import Runner

_MAX_ROWS = 50


def run(args: list[str]) -> int:
    """Run the command. See `hotloop sweep report --help`."""
    parser = argparse.ArgumentParser(
        prog="hotloop sweep report",
        description="Print the best options of a sweep, compare them with the defaults on fresh "
        "seeds, and plot the effect of each option. It writes plots, one HTML page, and the best "
        "options as a file for `hotloop train --config`.",
    )
    add = parser.add_argument
    add("path", type=Path, metavar="FILE", help="results of a sweep")
    add("--test-seeds", metavar="SEEDS", help="fresh seeds to train the best and the defaults with")
    add("--jobs", metavar="N", help="number of processes for it; default: as the cores allow")
    add("--output", type=Path, metavar="DIR", help="default: FILE's path with _report")
    add("--parquet", type=Path, metavar="FILE", help="also write all runs as Parquet")
    add_trust_option(parser)
    options = parser.parse_args(args)
    require_module("matplotlib", extra="train", purpose="drawing plots")
    _, config, space, results = open_sweep(options.path, is_trusted=options.trust)
    try:
        return _report(config, space, results, options)
    finally:
        results.close()


def _report(config: Any, space: Space, results: Results, options: argparse.Namespace) -> int:
    from hotloop.cli.configuration import trust_option
    from hotloop.cli.training_plan import parse_seeds
    from hotloop.sweeps.pruners import Pruner
    from hotloop.sweeps.runner import Runner

    settings = results.settings
    assert settings is not None  # checked by `open_sweep`
    seeds = parse_seeds(settings.options.seeds)
    test_seeds = parse_seeds(options.test_seeds) if options.test_seeds else ()
    overlap = sorted(set(seeds) & set(test_seeds))
    if overlap:
        raise ConfigError(
            f"`--test-seeds` must be fresh, but trials used {', '.join(map(str, overlap))}: pass "
            "others, such as 101-110"
        )
    # Read the trials, and find the best one.
    plan_options = argparse.Namespace(
        trials=None, hours=None, jobs=options.jobs, lanes="1", metric=settings.metric
    )
    num_alike = max(1, len(test_seeds))  # of the best trial and of the defaults
    plan = make_plan(settings.algorithm, config, plan_options, seeds, num_alike)
    runner = Runner(plan, results, None, Pruner("none", config.total_timesteps), lambda _: None)
    best = runner.status.best()
    print_best(runner)
    if best is None:
        raise ConfigError(f"{results.path} has no finished trial: continue the sweep first")
    winner = next(trial for trial in runner.trials if trial.number == best)
    # Test the best trial.
    if test_seeds:
        results.make_directory()
        results.enter(may_join=True)
        _test(runner, winner, test_seeds)
    test_scores = _test_scores(results, runner.steps, best)
    # Write the report.
    directory = options.output or results.report_directory
    make_directory(directory, f"the report's directory {directory}", "pass another `--output`")
    preset = _write_winner(directory, config, winner, settings.algorithm)
    lines = _summary_lines(test_scores, winner, runner.steps)
    print("\n" + "\n".join(lines))
    pictures = _draw(directory, space, runner, best, is_population=settings.sampler == "pbt")
    page = _write_page(directory, settings, runner, best, lines, pictures)
    if options.parquet is not None:
        results.export(options.parquet)
        print(f"runs: {options.parquet}")
    print(f"page: {page}")
    command = f"hotloop train {settings.algorithm} --config {shlex.quote(str(preset))}"
    command += trust_option(config)
    print(f"the best options: {preset}\nnext: {command}")
    return 0


def _test(runner: Runner, winner: Trial, seeds: Sequence[int]) -> None:
    """Train the defaults and the winner with fresh seeds."""
    from hotloop.sweeps import Trial

    runner.results.add_trial(0, {}, {})
    notify(f"training the best options and the defaults with {len(seeds)} fresh seeds")
    runner.test([Trial(0, {}, {}), winner], seeds)


def _test_scores(results: Results, steps: int, best: int) -> dict[int, Array]:
    """Return scores of the defaults (0) and the best trial, on the test seeds that both have."""
    scores: dict[int, dict[int, float]] = {0: {}, best: {}}
    for run in results.runs("test"):
        if run.steps == steps and run.trial in scores and run.score is not None:
            scores[run.trial][run.seed] = run.score
    shared = sorted(scores[0].keys() & scores[best].keys())
    return {trial: np.array([group[seed] for seed in shared]) for trial, group in scores.items()}


def _summary_lines(test_scores: Mapping[int, Array], winner: Trial, steps: int) -> list[str]:
    """Return lines that compare the winner with the defaults."""
    default, best = test_scores[0], test_scores[winner.number]
    lines = [f"best: trial {winner.number}, {format_params(winner.options(steps))}"]
    if len(best) < 2:
        return [*lines, "not tested on fresh seeds yet: pass `--test-seeds 101-110`"]

    def with_interval(scores: Array) -> str:
        low, high = bootstrap_interval(scores[:, None])
        bounds = float(low[0]), float(high[0])
        return format_interval(float(interquartile_mean(scores)), bounds)

    def difference(groups: list[Any]) -> Any:
        return interquartile_mean(groups[1]) - interquartile_mean(groups[0])

    low, high = stratified_interval([default, best], difference)
    gain = float(interquartile_mean(best) - interquartile_mean(default))
    verdict = "better" if low > 0 else "worse" if high < 0 else "no significant difference"
    return [
        *lines,
        f"on {len(best)} fresh seeds: {with_interval(best)}, interquartile mean and 95 % interval",
        f"the defaults: {with_interval(default)}",
        f"difference: {format_interval(gain, (low, high), sign='+')}, {verdict}",
    ]


def _write_winner(directory: Path, config: Any, winner: Trial, name: str) -> Path:
    from hotloop.cli import configuration
    from hotloop.sweeps.spaces import from_json

    path = directory / "best.toml"
    configuration.save(
        str(path),
        dataclasses.replace(config, **from_json(winner.options(config.total_timesteps))),
        name,
    )
    return path


def _draw(
    directory: Path, space: Space, runner: Runner, best: int, *, is_population: bool
) -> dict[str, bytes]:
    """Write the plots, and return their content by title."""
    from hotloop.reports import sweep_plots as plots
    from hotloop.sweeps.samplers import importances

    status, trials = runner.status, [trial for trial in runner.trials if trial.number]
    scores = {
        trial.number: score
        for trial in trials
        if (score := status.score(trial.number)) is not None
        and status.state(trial.number) in ("done", "pruned")
    }
    runs = [run for trial in trials for run in status.runs(trial.number)]
    figures = {"Learning curves": ("curves", plots.learning_curves(runs, best))}
    if not is_population:  # its members change their options during training
        figures |= {
            "Scores over each option": ("slices", plots.score_slices(space, trials, scores)),
            "Trials": ("parallel", plots.parallel_coordinates(space, trials, scores)),
        }
    importance = None if is_population else importances(space, trials, status)
    if is_population:
        notify("a population changes its options: plots over options are omitted")
    elif importance is None:
        notify("importance is omitted: it needs Optuna, 'hotloop[sweep]', and four trials")
    else:
        figures["Importance"] = ("importance", plots.option_importance(importance))
        listed = sorted(importance.items(), key=lambda item: -item[1])
        print("importance: " + ", ".join(f"{name} {share:.0%}" for name, share in listed))
    images: dict[str, bytes] = {}
    for title, (name, figure) in figures.items():
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=130)
        images[title] = content.getvalue()
        (directory / f"{name}.png").write_bytes(images[title])
    return images


def _write_page(
    directory: Path,
    settings: SweepSettings,
    runner: Runner,
    best: int,
    lines: Sequence[str],
    pictures: Mapping[str, bytes],
) -> Path:
    """Write one HTML page with the results and plots."""
    from hotloop.base.html_page import Page, Section, data_uri, escaped

    status, trials, names = runner.status, ranked_trials(runner), list(settings.space)
    head = "".join(f"<th>{escaped(x)}</th>" for x in ("trial", *names, "score", "state", "why"))
    rows: list[str] = []
    for trial in trials[:_MAX_ROWS]:
        reasons = {run.reason for run in status.runs(trial.number) if run.reason}
        cells = [
            str(trial.number),
            *(format_params({"": trial.options(runner.steps)[name]}).strip() for name in names),
            format_score(status, trial.number),
            status.state(trial.number),
            "; ".join(sorted(reasons)),
        ]
        rows.append("<tr>" + "".join(f"<td>{escaped(x)}</td>" for x in cells) + "</tr>")
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    sections = [
        Section("winner", "The best options", "".join(f"<p>{escaped(x)}</p>" for x in lines)),
        Section("trials", f"Trials, the best {min(len(trials), _MAX_ROWS)}", table),
    ]
    for title, content in pictures.items():
        image = f'<img alt="{escaped(title)}" src="{data_uri(content, "image/png")}">'
        sections.append(Section(title.lower().replace(" ", "-"), title, image))
    overview = f"{settings.algorithm} over "
    overview += ", ".join(f"{name}={x}" for name, x in settings.space.items())
    states = [status.state(trial.number) for trial in trials]
    figures = [("trials", f"{len(trials)}"), ("best score", format_score(status, best))]
    figures += [(x, f"{states.count(x)}") for x in ("pruned", "failed") if x in states]
    page = Page(
        kind="sweep",
        title=overview,
        overview=overview,
        figures=figures,
        sections=sections,
        has_media=True,
    )
    page.write(directory / "report.html")
    return directory / "report.html"
