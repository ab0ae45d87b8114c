"""What all other rooms talk about: tables and columns, metrics, problems and names.

This room imports nothing of nsyspipe but errors.
"""
