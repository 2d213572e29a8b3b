"""The same chat in a browser on this machine, behind a token that opens once."""
