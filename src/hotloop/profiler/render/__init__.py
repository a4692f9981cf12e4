"""A session told: in a terminal, as a page, as pictures for other viewers."""
