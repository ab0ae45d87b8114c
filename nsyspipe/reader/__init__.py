"""Reports, logs and sidecars as tables: the only room that knows SQL and the names that nsys gives."""
