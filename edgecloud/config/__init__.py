"""The settings of a run: read from where people give them, checked, explained, and written."""
