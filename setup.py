"""The package's README with absolute links: a package index shows it without the repository."""

import re
from pathlib import Path

from setuptools import setup

PAGES = "https://github.com/hotloop/hotloop/blob/main/"
IMAGES = "https://raw.githubusercontent.com/hotloop/hotloop/main/"

text = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
text = re.sub(r"!\[([^]]*)\]\((?!http)", rf"![\1]({IMAGES}", text)
text = re.sub(r"(?<!!)\[([^]]*)\]\((?!http|#)", rf"[\1]({PAGES}", text)
setup(long_description=text, long_description_content_type="text/markdown")
