"""`python -m edgecloud` and the `edgecloud` command."""

from __future__ import annotations


def main() -> None:
    from edgecloud.app.cli.main import run

    run()


if __name__ == "__main__":
    main()
