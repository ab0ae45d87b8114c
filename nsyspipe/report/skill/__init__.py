"""The skill for coding agents: which command answers which question, and when to abstain."""
