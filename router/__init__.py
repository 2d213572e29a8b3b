"""Where a request goes: constraints first, then expected gain, money and time."""
