"""The command line: arguments, one call of the API, outputs."""
