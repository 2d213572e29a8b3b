"""Scripted backends and a live server, for tests of every room."""
