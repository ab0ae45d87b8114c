"""Modules that take seconds to import, imported when a test first needs them and not when tests are collected."""

import importlib


class LateModule:
    """Stand for a module, which its first attribute imports."""

    def __init__(self, name):
        self.name = name

    def __getattr__(self, attribute):
        if attribute.startswith(("__", "_mock")):  # which pytest asks of all that a test module has
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self.name), attribute)
