"""The algorithms' pages have current options and tables, and valid links.

tests/docs/test_snippets.py tries their commands, and tests/test_pages.py their code.
"""

import re
from functools import partial

import pytest

from bench.catalog import BENCHES
from bench.train.options import options_table
from hotloop.algorithms import ALGORITHMS
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
    assert [kind for kind, _ in blocks(PAGES[name])].count("python") == 1


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
