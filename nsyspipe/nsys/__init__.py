"""Other programs, files and secrets: where nsys is, what it can do, and its exports.

Only the standard library is used.
"""
