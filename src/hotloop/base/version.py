"""The version of hotloop, which files and caches name."""

__version__ = "0.1.0"
