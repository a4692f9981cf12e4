"""docs/presets.md lists what there is."""

from pathlib import Path

from bench.train.presets import options_table

PAGE = Path(__file__).parent.parent.parent / "docs" / "presets.md"


def test_the_table_of_options_is_what_there_is():
    assert f"<!-- presets -->\n{options_table()}\n<!-- end presets -->" in PAGE.read_text()
