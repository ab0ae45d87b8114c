"""``python -m nsyspipe``, and the console script's entry: light, because spawned workers import it too."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    try:
        from nsyspipe.cli.app import run  # noqa: PLC0415 - workers must not pay for it

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
