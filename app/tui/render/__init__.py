"""Text turned into lines that fit a width, by pure functions over Textual's `Content`."""
