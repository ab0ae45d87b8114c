"""From reports to one run: processes read in parallel, placed as ranks, matched across ranks."""
