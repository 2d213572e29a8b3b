"""Exact, semantic and prefix caches in SQLite. Holds no cache so far."""
