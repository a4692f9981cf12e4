"""Write tables, timing tree and learning curve into the README and the pages.

    python -m bench tables --run runs/demo

The text between `<!-- NAME -->` and `<!-- end NAME -->` in a page is replaced. A table without
stored results stays as it is.
"""

from __future__ import annotations

import argparse
import shutil
from contextlib import suppress
from pathlib import Path

from bench.catalog import BENCHES
from bench.markdown import replace
from bench.storage import ROOT


def timing_tree(run: Path) -> str:
    """Return the timing tree of a run."""
    from hotloop import timing

    recordings, _ = timing.read_directory(run / "timing")
    trees = [timing.render(recording.tree(), min_share=0.002) for recording in recordings]
    return "```\n" + "\n\n".join(trees) + "\n```"


def main() -> int:
    """Rewrite the pages."""
    parser = argparse.ArgumentParser(prog="python -m bench tables", description=__doc__)
    parser.add_argument("--run", type=Path, help="run directory for the timing tree and the curve")
    options = parser.parse_args()
    for bench in BENCHES.values():
        for page, place, make in bench.tables:
            with suppress(FileNotFoundError):  # not measured yet
                if content := make():
                    replace(ROOT / page, place, content)
    if options.run:
        replace(ROOT / "docs" / "speed.md", "timing tree", timing_tree(options.run))
        shutil.copyfile(options.run / "learning_curve.png", ROOT / "docs" / "cartpole.png")
    return 0
