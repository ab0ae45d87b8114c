"""Pages: one file each, offline, under a strict content security policy."""
