"""First on a training program's PYTHONPATH with ``--attach-steps``: its optimizer's steps are seen, nothing else changes.

Python imports this before the program. It imports nothing itself: it waits for the program to
import torch's optimizers. A ``sitecustomize`` of the user's, which this one stands before, runs as
ever.
"""

from __future__ import annotations

import os
import sys

_WATCHED = "torch.optim.optimizer"


class _AtOptimizers:
    """Stands before the finders of modules, until torch's optimizers are looked for."""

    def find_spec(self, name: str, *_path_and_target: object) -> object:
        """Return None for every other module; for that of the optimizers one that is attached to once it is loaded."""
        if name != _WATCHED:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        import importlib.util  # noqa: PLC0415 - every Python that starts would pay for it

        spec = importlib.util.find_spec(name)
        loader = spec.loader if spec else None
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: object) -> None:
                execute(module)  # type: ignore[arg-type]
                _attach(module)

            loader.exec_module = exec_module  # type: ignore[method-assign, assignment]
        return spec


def _attach(optimizers: object) -> None:
    try:
        around = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))  # noqa: PTH120
        if around not in sys.path:
            sys.path.append(around)
        from nsyspipe.capture.attach import attach  # noqa: PLC0415

        attach(optimizers)
    except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on
        print(f"nsyspipe: nothing will be captured, the program goes on: {error}", file=sys.stderr)


def _run_that_of_the_user() -> None:
    own, place, path = sys.modules["sitecustomize"], os.path.dirname(__file__), list(sys.path)  # noqa: PTH120
    sys.path[:] = [one for one in path if one != place]
    del sys.modules["sitecustomize"]
    try:
        import sitecustomize  # noqa: F401, PLC0415
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        # What it has added to the path stays.
        sys.path.insert(0, place)
        sys.modules.setdefault("sitecustomize", own)


if os.environ.get("NSYSPIPE_ATTACH_STEPS"):
    sys.meta_path.insert(0, _AtOptimizers())  # type: ignore[arg-type]
_run_that_of_the_user()
