"""The pytest plugin: tests that fail if the steps of a training program got slower."""
