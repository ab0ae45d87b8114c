"""The styles and scripts of a page, and the hashes by which a browser knows them for ours."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources

__all__ = ["LIBRARY", "SHELL_SCRIPTS", "SHELL_STYLES", "csp", "read_asset", "script", "styles"]

LIBRARY = "echarts.min.js"
SHELL_STYLES = ("tokens.css", "base.css", "parts.css", "charts.css", "print.css")
# In this order: each file may use what stands before it. `start.js` runs the page and comes last of all.
SHELL_SCRIPTS = (
    "format.js",
    "palette.js",
    "tooltip.js",
    "options.js",
    "zoom.js",
    "charts.js",
    "furniture.js",
)
_START = "start.js"


@functools.cache
def read_asset(name: str) -> str:
    """Return one file of `assets/`."""
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def styles(names: tuple[str, ...] = ()) -> str:
    """Return the shell's styles, then those of the page."""
    return "\n".join(read_asset(name) for name in (*SHELL_STYLES, *names))


def script(names: tuple[str, ...] = ()) -> str:
    """Return the shell's scripts, then those of the page, then what starts them."""
    return "\n".join(read_asset(name) for name in (*SHELL_SCRIPTS, *names, _START))


def csp(scripts: tuple[str, ...]) -> str:
    """Return a content security policy under which these scripts run and nothing else, and nothing is fetched."""
    hashes = " ".join(f"'sha256-{_sha256(text)}'" for text in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


@functools.cache
def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
