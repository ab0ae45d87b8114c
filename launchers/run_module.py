"""Run a module of the nsyspipe around this file: ``python3 -P run_module.py nsyspipe.capture.rank WORDS...``.

The package is found by its place. The directory around it is never on the path: reports may lie
there, and who knows what else.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os.path
import runpy
import sys


def main() -> None:
    """Load the package, and run the module that the first word names as ``python3 -m`` does."""
    around = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120
    spec = importlib.machinery.PathFinder.find_spec("nsyspipe", [around])
    if spec is None or spec.loader is None:
        sys.exit(f"error: {around}: has no nsyspipe\n  fix: use the launchers where they are")
    package = importlib.util.module_from_spec(spec)
    sys.modules["nsyspipe"] = package
    spec.loader.exec_module(package)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


main()
