"""The site's configuration: Sphinx, MyST's Markdown, the theme Furo. `make docs` builds it."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_ext"))

from project import REPOSITORY, VERSION  # noqa: E402

project = "hotloop"
author = "the authors of hotloop"
release = version = VERSION
html_title = f"hotloop {release}"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "public_names",
    "markdown_docstrings",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "outside_links",
    "code_languages",
    "mathml",
]
exclude_patterns = ["_ext"]
highlight_language = "none"
nitpicky = True

# GitHub's anchors, for headings of all levels that pages link to.
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
html_math_renderer = "mathml"

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# By their names, not by what they stand for.
autodoc_type_aliases = {name: name for name in ("ArrayLike", "DTypeLike")}
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
python_maximum_signature_line_length = 88

html_theme = "furo"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
}
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
