"""Recorded traffic run again in the simulator, as it was and as it might have been."""
