"""`python -m edgecloud` and the `edgecloud` command."""

from __future__ import annotations

# While the command is being imported, Ctrl-C ends the process without a traceback. The module `signal` itself
# takes milliseconds to import, `_signal` is in the interpreter.
import _signal  # type: ignore[import-not-found]

_handler = _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def main() -> None:
    """Run the command line and exit the process."""
    from edgecloud.app.cli.main import run

    _signal.signal(_signal.SIGINT, _handler)
    run()


if __name__ == "__main__":
    main()
