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
        """Return how torch's optimizers are loaded, and attached to after that.

        None for every other module, which the other finders then find.
        """
        if name != _WATCHED:
            return None
        # Not called again, so the search below goes on to the other finders.
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


def _run_sitecustomize_of_user() -> None:
    """Import the user's module of the same name, if there is one, as Python would without ours."""
    our_module = sys.modules["sitecustomize"]
    our_directory = os.path.dirname(__file__)  # noqa: PTH120
    sys.path[:] = [directory for directory in sys.path if directory != our_directory]
    del sys.modules["sitecustomize"]
    try:
        import sitecustomize  # noqa: F401, PLC0415
    except ImportError as error:
        # The user has none. Any other import that fails is an error of the user's module.
        if error.name != "sitecustomize":
            raise
    finally:
        # What the user's module has added to the path stays.
        sys.path.insert(0, our_directory)
        sys.modules.setdefault("sitecustomize", our_module)


if os.environ.get("NSYSPIPE_ATTACH_STEPS"):
    sys.meta_path.insert(0, _AtOptimizers())  # type: ignore[arg-type]
_run_sitecustomize_of_user()
