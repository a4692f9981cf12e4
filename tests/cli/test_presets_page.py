"""docs/presets.md lists all presets."""

from pathlib import Path

from bench.train.options import presets_table

PAGE = Path(__file__).parent.parent.parent / "docs" / "presets.md"


def test_the_table_lists_all_presets():
    assert f"<!-- presets -->\n{presets_table()}\n<!-- end presets -->" in PAGE.read_text()
