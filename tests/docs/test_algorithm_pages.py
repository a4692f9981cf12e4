"""The algorithms' pages have current options, working commands and code, and valid links."""

import re
import shlex
from functools import partial

import pytest

from bench.catalog import BENCHES
from bench.train.options import options_table
from hotloop import timing
from hotloop.algorithms import ALGORITHMS, find
from hotloop.cli.train_options import split_command_options
from hotloop.training.options.arguments import parse
from tests.docs.pages import DOCS, anchors, blocks

PAGES = {name: DOCS / "algorithms" / f"{name}.md" for name in ALGORITHMS}
PARTS = (
    *("The equations", "Options", "Details", "Returns learned", "Speed", "From Python"),
    "Where it is",
)


def between(text, name):
    return text.partition(f"<!-- {name} -->")[2].partition(f"<!-- end {name} -->")[0].strip("\n")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_all_its_parts(name):
    heads = re.findall(r"^## (.*)$", PAGES[name].read_text(encoding="utf-8"), re.MULTILINE)
    assert [head for head in heads if head in PARTS] == list(PARTS)


@pytest.mark.parametrize("name", PAGES)
def test_the_table_of_options_is_the_configuration(name):
    table = options_table(name, beside="ppo" if name == "appo" else None)
    assert between(PAGES[name].read_text(encoding="utf-8"), "options") == table


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_match_the_stored_results(name):
    text = PAGES[name].read_text(encoding="utf-8")
    tables = [
        x for bench in BENCHES.values() for x in bench.tables if x.page.endswith(f"/{name}.md")
    ]
    assert len(tables) >= (2 if name in ("td3_bc", "sac_discrete") else 3)
    for table in tables:
        assert between(text, table.place) == table.make(), table.place


@pytest.mark.parametrize("name", ["ppo", "appo"])  # the others': tests/cli/test_off_policy_page.py
def test_the_commands_use_existing_options(name):
    text = PAGES[name].read_text(encoding="utf-8")
    commands = re.findall(rf"^    hotloop train {name}\b(.*)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        args = shlex.split(command)
        if args[-1] != "--help":
            _, arguments = split_command_options(args)
            parse(find(name).config, arguments, prog=name, presets=find(name).presets)


@pytest.mark.parametrize("name", PAGES)
def test_the_python_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = [text for kind, text in blocks(PAGES[name]) if kind == "python"]
    block = block.replace("total_timesteps=100_000", "total_timesteps=512")
    exec(compile(block, PAGES[name].name, "exec"), {"__name__": "page"})
    timing.stop()


def test_links_lead_to_pages_and_headings():
    """Check the links of algorithm and tutorial pages, and links of other pages to them."""
    found = partial(re.findall, r"\]\((?!http)([^)#\s]*)(?:#([^)\s]*))?\)")
    for page in (DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))):
        for link, anchor in found(page.read_text(encoding="utf-8")):
            target = (page.parent / link).resolve() if link else page
            assert target.exists(), f"{page.name}: {link}"
            # Sphinx creates the reference's anchors, and tests/docs/test_site.py checks them.
            if anchor and target.suffix == ".md" and target.parent.name != "reference":
                assert anchor in anchors(target), f"{page.name}: {link}#{anchor}"
