"""nsyspipe: per-rank Nsight Systems reports in, one answer per training step out.

>>> run = nsyspipe.load("ddp-8gpu_*.sqlite")  # doctest: +SKIP
>>> run.summary().to_pylist()[0]["comm_share"]  # doctest: +SKIP
"""

from typing import TYPE_CHECKING

from nsyspipe.version import __version__

if TYPE_CHECKING:
    from nsyspipe import errors
    from nsyspipe.api import compare, diff, load, whatif
    from nsyspipe.comparison.side import Side
    from nsyspipe.errors import NsyspipeError
    from nsyspipe.report import export
    from nsyspipe.report.export import dashboard
    from nsyspipe.report.public.run import Run

__all__ = [
    "NsyspipeError",
    "Run",
    "Side",
    "__version__",
    "compare",
    "dashboard",
    "diff",
    "errors",
    "export",
    "load",
    "whatif",
]

# Imported on first use: the command line must answer --help without Arrow, pandas or SQLAlchemy.
_HOMES = {
    "NsyspipeError": "nsyspipe.errors",
    "Run": "nsyspipe.report.public.run",
    "Side": "nsyspipe.comparison.side",
    "compare": "nsyspipe.api",
    "dashboard": "nsyspipe.report.export",
    "diff": "nsyspipe.api",
    "errors": "nsyspipe.errors",
    "export": "nsyspipe.report.export",
    "load": "nsyspipe.api",
    "whatif": "nsyspipe.api",
}


def __getattr__(name: str) -> object:
    """Return a public name of this package from its home, which is imported now."""
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    import importlib  # noqa: PLC0415 - only a first use needs it

    home = importlib.import_module(_HOMES[name])
    # The names `errors` and `export` have the whole module as their value.
    return getattr(home, name, home)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
