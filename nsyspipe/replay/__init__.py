"""What a change of the communication would bring: a replay of the captured steps with other collectives."""
