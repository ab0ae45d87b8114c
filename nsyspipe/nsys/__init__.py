"""Other programs, files and secrets: where nsys is, what it can, exports of it, what may be written down. Only the standard library."""
