"""What would a change of the communication bring: a replay of the captured steps with other collectives.

`timelines` reads each rank's operations, `markers` finds where communication and the rest of the work
depend on each other, `simulate` replays them, `scenarios` says what changes, `opened` gets
a run ready, `ask` answers.
"""
