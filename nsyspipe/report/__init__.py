"""Words, tables, documents and pages for people and other programs."""
