"""What the chat knows, as plain values and functions: no Textual, no clock of its own."""
