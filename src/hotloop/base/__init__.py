"""Helpers that know nothing of RL: system, files, cache, documents, imports, transfers, text."""
