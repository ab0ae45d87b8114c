"""What everything else talks about: tables and their columns, figures, problems, names, texts. Imports nothing of nsyspipe but errors."""
