"""Output of a session: terminal text, HTML page, and files for other viewers."""
