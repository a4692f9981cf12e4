"""Recurrent networks: learning, speed, and comparisons with other libraries."""
