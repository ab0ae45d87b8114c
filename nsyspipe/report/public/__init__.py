"""The classes of the public API, which show themselves in words and in notebooks."""
