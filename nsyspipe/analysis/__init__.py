"""From operations to figures: pure functions of tables and arrays."""
