"""What learned estimates are made of: rows with known outcomes, heads fitted to them, and how good they are.

Arrays and numbers only: no text, no files but one archive of arrays, no clock.
"""
