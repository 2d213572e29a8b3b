"""`python -m edgecloud` and the `edgecloud` command."""

from __future__ import annotations

import signal


def main() -> None:
    # While the command is being imported, Ctrl-C ends the process without a traceback.
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from edgecloud.app.cli.main import run

    signal.signal(signal.SIGINT, handler)
    run()


if __name__ == "__main__":
    main()
