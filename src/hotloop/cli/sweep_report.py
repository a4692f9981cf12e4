"""`hotloop sweep report FILE`: the best options on fresh seeds, and what they depend on."""

from __future__ import annotations

import argparse
import base64
import dataclasses
import io
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.cli import need, tell
from hotloop.cli.sweep import opened, plan_of
from hotloop.cli.sweep_table import ordered, print_best, scored, told
from hotloop.errors import ConfigError
from hotloop.statistics import bootstrap_interval, interquartile_mean, stratified_interval
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.sweeps import Results, Space, Trial
    from hotloop.sweeps.runner import Runner, Standing

_MOST_ROWS = 50


def run(args: list[str]) -> int:
    """Report; see `hotloop sweep report --help`."""
    parser = argparse.ArgumentParser(
        prog="hotloop sweep report",
        description="Say which options are best, train them and the defaults again on seeds that "
        "nothing was chosen by, and draw what scores depend on: tables, pictures, one HTML page, "
        "and the best options as a file for `hotloop train --config`.",
    )
    add = parser.add_argument
    add("path", type=Path, metavar="FILE", help="of the sweep's results")
    add("--test-seeds", metavar="SEEDS", help="train the best and the defaults with them first")
    add("--jobs", metavar="N", help="processes of that; by default as many as there is room for")
    add("--output", type=Path, metavar="DIR", help="default: beside FILE, with _report behind it")
    add("--parquet", type=Path, metavar="FILE", help="write all runs as Parquet too")
    options = parser.parse_args(args)
    need("matplotlib", extra="train", purpose="drawing pictures")
    algorithm, config, space, results = opened(options.path)
    try:
        return _report(algorithm.name, config, space, results, options)
    finally:
        results.close()


def _report(
    name: str, config: Any, space: Space, results: Results, options: argparse.Namespace
) -> int:
    from hotloop.cli.planned import parse_seeds
    from hotloop.sweeps.pruners import Pruner
    from hotloop.sweeps.runner import Runner

    seeds = parse_seeds((results.get("asked") or {}).get("seeds") or "1")
    test_seeds = parse_seeds(options.test_seeds) if options.test_seeds else ()
    both = sorted(set(seeds) & set(test_seeds))
    if both:
        raise ConfigError(
            f"`--test-seeds` must be fresh, and trials were chosen by {', '.join(map(str, both))}: "
            "take others, such as 101-110"
        )
    own = argparse.Namespace(
        trials=None, hours=None, jobs=options.jobs, lanes="1", metric=results.get("metric")
    )
    alike = max(1, len(test_seeds))  # of the best, and of the defaults
    plan = plan_of(results.get("algorithm"), config, own, seeds, alike)
    runner = Runner(plan, results, None, Pruner("none", config.total_timesteps), lambda _: None)
    standing, best = runner.standing, runner.standing.best()
    print_best(runner)
    if best is None:
        raise ConfigError(f"{results.path} has no trial that is done: go on with the sweep first")
    winner = next(one for one in runner.trials if one.number == best)
    if test_seeds:
        results.enter(may_join=True)
        _test(runner, winner, test_seeds)
    tested = _tested(results, runner.steps, best)
    directory = options.output or results.path.with_name(f"{results.path.stem}_report")
    directory.mkdir(parents=True, exist_ok=True)
    preset = _write_winner(directory, config, winner, results.get("algorithm"))
    lines = _lines(tested, winner, runner.steps)
    print("\n" + "\n".join(lines))
    pictures = _draw(directory, space, runner, standing, best)
    page = _write_page(directory, results, runner, standing, best, lines, pictures)
    if options.parquet is not None:
        results.export(options.parquet)
        print(f"runs: {options.parquet}")
    print(f"page: {page}")
    command = f"hotloop train {results.get('algorithm')} --config {shlex.quote(str(preset))}"
    print(f"the best options: {preset}\nnext: {command}")
    return 0


def _test(runner: Runner, winner: Trial, seeds: Sequence[int]) -> None:
    """Train the defaults and the winner with fresh seeds."""
    from hotloop.sweeps import Trial

    runner.results.add_trial(0, {}, {})
    tell(f"training the best options and the defaults with {len(seeds)} fresh seeds")
    runner.test([Trial(0, {}, {}), winner], seeds)


def _tested(results: Results, steps: int, best: int) -> dict[int, Array]:
    """Return scores on test seeds, of the defaults (0) and of the best trial, by the same seeds."""
    found: dict[int, dict[int, float]] = {0: {}, best: {}}
    for one in results.runs("test"):
        if one.steps == steps and one.trial in found and one.score is not None:
            found[one.trial][one.seed] = one.score
    both = sorted(found[0].keys() & found[best].keys())
    return {trial: np.array([scores[seed] for seed in both]) for trial, scores in found.items()}


def _lines(tested: Mapping[int, Array], winner: Trial, steps: int) -> list[str]:
    """Say how much better the winner is than the defaults."""
    default, best = tested[0], tested[winner.number]
    lines = [f"best: trial {winner.number}, {told(winner.became(steps))}"]
    if len(best) < 2:
        return [*lines, "not tested on fresh seeds yet: pass `--test-seeds 101-110`"]

    def with_interval(scores: Array) -> str:
        low, high = bootstrap_interval(scores[:, None])
        mean = float(interquartile_mean(scores))
        return f"{mean:.4g} (95 %: {float(low[0]):.4g} to {float(high[0]):.4g})"

    def difference(groups: list[Any]) -> Any:
        return interquartile_mean(groups[1]) - interquartile_mean(groups[0])

    low, high = stratified_interval([default, best], difference)
    much = float(interquartile_mean(best) - interquartile_mean(default))
    word = "better" if low > 0 else "worse" if high < 0 else "not told apart from the defaults"
    return [
        *lines,
        f"on {len(best)} fresh seeds: {with_interval(best)}, interquartile mean",
        f"the defaults: {with_interval(default)}",
        f"difference: {much:+.4g} (95 %: {low:+.4g} to {high:+.4g}), {word}",
    ]


def _write_winner(directory: Path, config: Any, winner: Trial, name: str) -> Path:
    from hotloop.cli import configuration
    from hotloop.sweeps.spaces import from_json

    path = directory / "best.toml"
    configuration.save(
        str(path),
        dataclasses.replace(config, **from_json(winner.became(config.total_timesteps))),
        name,
    )
    return path


def _draw(
    directory: Path, space: Space, runner: Runner, standing: Standing, best: int
) -> dict[str, bytes]:
    """Write the pictures; return them by title."""
    from hotloop.sweeps import pictures
    from hotloop.sweeps.samplers import importances

    trials = [one for one in runner.trials if one.number]
    scores = {
        one.number: score
        for one in trials
        if (score := standing.score(one.number)) is not None
        and standing.state(one.number) in ("done", "pruned")
    }
    runs = [one for trial in trials for one in standing.runs(trial.number)]
    drawn = {"Learning curves": ("curves", pictures.curves(runs, best))}
    is_population = runner.results.get("sampler") == "pbt"
    if not is_population:  # whose scores come of other options than members began with
        drawn |= {
            "Scores over each option": ("slices", pictures.slices(space, trials, scores)),
            "Trials": ("parallel", pictures.parallel(space, trials, scores)),
        }
    shares = None if is_population else importances(space, trials, standing)
    if is_population:
        tell("a population changes its options: what scores depend on is left out")
    elif shares is None:
        tell("importance is left out: it needs Optuna, 'hotloop[sweep]', and four trials or more")
    else:
        drawn["What decides"] = ("importance", pictures.importance(shares))
        listed = sorted(shares.items(), key=lambda item: -item[1])
        print("importance: " + ", ".join(f"{name} {share:.0%}" for name, share in listed))
    found: dict[str, bytes] = {}
    for title, (name, figure) in drawn.items():
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=130)
        found[title] = content.getvalue()
        (directory / f"{name}.png").write_bytes(found[title])
    return found


def _write_page(
    directory: Path,
    results: Results,
    runner: Runner,
    standing: Standing,
    best: int,
    lines: Sequence[str],
    pictures: Mapping[str, bytes],
) -> Path:
    """Write one HTML page with all of it."""
    from hotloop.profiler.render import html
    from hotloop.profiler.render.html import Before, Section
    from hotloop.profiler.render.html.tables import escaped

    trials = ordered(runner)
    names = list(results.get("space"))
    head = "".join(f"<th>{escaped(x)}</th>" for x in ("trial", *names, "score", "state", "why"))
    rows: list[str] = []
    for one in trials[:_MOST_ROWS]:
        reasons = {run.reason for run in standing.runs(one.number) if run.reason}
        cells = [
            str(one.number),
            *(told({"": one.became(runner.steps)[name]}).strip() for name in names),
            scored(standing, one.number),
            standing.state(one.number),
            "; ".join(sorted(reasons)),
        ]
        rows.append("<tr>" + "".join(f"<td>{escaped(x)}</td>" for x in cells) + "</tr>")
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    sections = [
        Section("winner", "The best options", "".join(f"<p>{escaped(x)}</p>" for x in lines)),
        Section("trials", f"Trials, the best {min(len(trials), _MOST_ROWS)}", table),
    ]
    for title, content in pictures.items():
        text = base64.b64encode(content).decode()
        image = f'<img alt="{escaped(title)}" src="data:image/png;base64,{text}">'
        sections.append(Section(title.lower().replace(" ", "-"), title, image))
    space = results.get("space")
    overview = f"{results.get('algorithm')} over " + ", ".join(f"{n}={x}" for n, x in space.items())
    states = [standing.state(one.number) for one in trials]
    figures = [("trials", f"{len(trials)}"), ("best score", scored(standing, best))]
    figures += [(x, f"{states.count(x)}") for x in ("pruned", "failed") if x in states]
    page = directory / "report.html"
    html.write(None, page, Before(overview, figures, sections, kind="sweep"))
    return page
