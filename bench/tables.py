"""Write what the README shows from what was measured: tables, the timing tree, the curve.

    python -m bench tables --run runs/demo

Everything between `<!-- NAME -->` and `<!-- end NAME -->` in README.md is replaced.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from bench import storage

ROOT = Path(__file__).parent.parent
CURVE = ROOT / "docs" / "cartpole.png"


def training_table() -> str:
    """One row for each training benchmark that was stored."""
    lines = [
        "| training | hotloop, steps/s | Stable-Baselines3, steps/s | ratio | whole process |",
        "|---|---|---|---|---|",
    ]
    for path in sorted(storage.RESULTS.glob("train_*.json")):
        result = storage.load(path.stem)
        cells = [result["benchmark"]]
        for name in ("hotloop", "sb3"):
            rate = result["summaries"][name]["steps_per_s"]
            cells.append(f"{rate['median']:,.0f} ({rate['min']:,.0f}–{rate['max']:,.0f})")
        cells += [f"{result['ratio_steps_per_s']:.2f}", f"{result['ratio_total']:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def timing_tree(run: Path) -> str:
    """The timing tree of a run."""
    from hotloop import timing

    recordings, _ = timing.read_directory(run / "timing")
    trees = [timing.render(recording.tree(), min_share=0.002) for recording in recordings]
    return "```\n" + "\n\n".join(trees) + "\n```"


def replace(text: str, name: str, content: str) -> str:
    """`text` with the part called `name` replaced."""
    before, start, rest = text.partition(f"<!-- {name} -->")
    _, end, after = rest.partition(f"<!-- end {name} -->")
    if not (start and end):
        raise ValueError(f"README.md has no part between <!-- {name} --> and <!-- end {name} -->")
    return f"{before}{start}\n{content}\n{end}{after}"


def main() -> int:
    """Rewrite README.md."""
    parser = argparse.ArgumentParser(prog="python -m bench tables", description=__doc__)
    parser.add_argument("--run", type=Path, help="a run directory: its tree and curve are taken")
    options = parser.parse_args()
    readme = ROOT / "README.md"
    text = readme.read_text()
    text = replace(text, "training table", training_table())
    if options.run:
        text = replace(text, "timing tree", timing_tree(options.run))
        CURVE.parent.mkdir(exist_ok=True)
        shutil.copyfile(options.run / "learning_curve.png", CURVE)
    readme.write_text(text)
    return 0
