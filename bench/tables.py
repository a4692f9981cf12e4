"""Write what the README and the pages show from what was measured: tables, timing tree, curve.

    python -m bench tables --run runs/demo

Everything between `<!-- NAME -->` and `<!-- end NAME -->` in a page is replaced.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from pathlib import Path

from bench import storage

ROOT = Path(__file__).parent.parent


def training_table() -> str:
    """One row for each training benchmark that was stored."""
    lines = [
        "| training | hotloop, steps/s | Stable-Baselines3, steps/s | ratio | with compiling | "
        "from prompt to end, s | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted(storage.RESULTS.glob("train_*.json")):
        result = storage.load(path.stem)
        settings = result["settings"]
        how = {"on": "compiled", "off": "eager", "auto": "auto"}[settings["compile"]]
        if settings["compile"] != "off":
            how += f", {settings['cache']} cache"
        ours, peer = (result["summaries"][name] for name in ("hotloop", "sb3"))
        cells = [f"{result['benchmark']}, {settings['timesteps']:,} steps, {how}"]
        for summary in (ours, peer):
            rate = summary["steps_per_s"]
            cells.append(f"{rate['median']:,.0f} ({rate['min']:,.0f}–{rate['max']:,.0f})")
        totals = [f"{summary['total_s']['median']:.1f}" for summary in (ours, peer)]
        cells += [
            f"{result['ratio_steps_per_s']:.2f}",
            f"{result['ratio_with_compiling']:.2f}",
            " : ".join(totals),
            f"{result['ratio_total']:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def curves_table() -> str:
    """One row for each benchmark of curves over seeds."""
    lines = [
        "| training | hotloop | Stable-Baselines3 | difference | lower 95 % bound |",
        "|---|---|---|---|---|",
    ]
    for path in sorted(storage.RESULTS.glob("curves_*.json")):
        result = storage.load(path.stem)
        cells = [f"{result['benchmark']}, {result['timesteps']:,} steps"]
        for name in ("hotloop", "sb3"):
            late = result["return_last_tenth"][name]
            spread = statistics.stdev(late)
            cells.append(f"{statistics.fmean(late):.0f} ± {spread:.0f} ({len(late)} seeds)")
        cells += [f"{result['relative_difference']:+.0%}", f"{result['lower_95_bound']:+.0%}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def learning_table() -> str:
    """One row for each task that was learned, over seeds."""
    lines = [
        "| command | evaluation, 100 episodes each | training, first → last tenth |",
        "|---|---|---|",
    ]
    for task in storage.load("learning")["tasks"].values():
        runs = task["runs"]
        evaluated = ", ".join(f"{run['mean_return']:.1f}" for run in runs)
        trained = ", ".join(
            f"{run['training_first_tenth']:.0f} → {run['training_last_tenth']:.0f}" for run in runs
        )
        lines.append(f"| `{task['command']}` | {evaluated} | {trained} |")
    return "\n".join(lines)


def timing_table() -> str:
    """One row for each way to time a scope."""
    lines = ["| one scope | ns, median of rounds (range) |", "|---|---|"]
    for way in storage.load("timing")["ways"].values():
        if way["ns"] is not None:
            spread = f"{way['min_ns']:,.0f}–{way['max_ns']:,.0f}"
            lines.append(f"| {way['about']} | {way['ns']:,.0f} ({spread}) |")
    return "\n".join(lines)


def timing_tree(run: Path) -> str:
    """The timing tree of a run."""
    from hotloop import timing

    recordings, _ = timing.read_directory(run / "timing")
    trees = [timing.render(recording.tree(), min_share=0.002) for recording in recordings]
    return "```\n" + "\n\n".join(trees) + "\n```"


def replace(page: Path, name: str, content: str) -> None:
    """Rewrite the part of `page` that is called `name`."""
    before, start, rest = page.read_text().partition(f"<!-- {name} -->")
    _, end, after = rest.partition(f"<!-- end {name} -->")
    if not (start and end):
        raise ValueError(f"{page} has no part between <!-- {name} --> and <!-- end {name} -->")
    page.write_text(f"{before}{start}\n{content}\n{end}{after}")


def main() -> int:
    """Rewrite the pages."""
    parser = argparse.ArgumentParser(prog="python -m bench tables", description=__doc__)
    parser.add_argument("--run", type=Path, help="a run directory: its tree and curve are taken")
    options = parser.parse_args()
    replace(ROOT / "README.md", "training table", training_table())
    replace(ROOT / "docs" / "ppo.md", "learning table", learning_table())
    replace(ROOT / "docs" / "ppo.md", "curves table", curves_table())
    replace(ROOT / "docs" / "timing.md", "timing table", timing_table())
    if options.run:
        replace(ROOT / "README.md", "timing tree", timing_tree(options.run))
        shutil.copyfile(options.run / "learning_curve.png", ROOT / "docs" / "cartpole.png")
    return 0
