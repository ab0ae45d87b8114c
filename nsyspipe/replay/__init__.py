"""The simulation of the captured steps with other communication."""
