"""``python -m nsyspipe``, and the console script's entry: light, because spawned workers import it too."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from nsyspipe.cli.app import run  # noqa: PLC0415 - workers must not pay for it

    run()


if __name__ == "__main__":
    main()
