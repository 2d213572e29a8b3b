"""Exact, semantic and prefix caches in SQLite."""
