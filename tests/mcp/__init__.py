"""The server for agents: what it answers, and what it refuses."""
