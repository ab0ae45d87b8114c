"""Misspelt columns: the type checker says so if one of these lines is accepted."""

from nsyspipe.run.run import Run


def misspell_columns(run: Run) -> None:
    """Read columns that no table has."""
    steps = run.steps()
    steps["wall_ms"]  # type: ignore[index]
    steps.select(["rank", "wall_ms"])  # type: ignore[list-item]
    run.collectives().sort_by("steps")  # type: ignore[arg-type]
    for row in run.findings().to_pylist():
        row["savings"]  # type: ignore[typeddict-item]
