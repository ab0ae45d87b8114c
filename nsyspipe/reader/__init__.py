"""Reports, logs and sidecars as tables. No other room knows SQL and the names of nsys."""
