"""Helpers that know nothing of RL: operating system, files, cache, documents, imports, text."""
