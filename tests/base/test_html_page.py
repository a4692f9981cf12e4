"""Pages are safe with names that anyone may have chosen."""

from hotloop.base.html_page import Page, Section


def test_names_and_titles_of_sections_are_text():
    section = Section('a"><b>', "policy <img src=x>: Returns", "<p>content</p>")
    page = Page(kind="run", title="t", overview="o", figures=[], sections=[section]).render()
    assert "<img" not in page
    assert "<b>" not in page
    assert page.count("policy &lt;img src=x&gt;: Returns") == 2
    assert "<p>content</p>" in page
