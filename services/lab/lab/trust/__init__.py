"""Whether the simulator can be believed: the same requests through an engine in real time, and through another
project's simulator.
"""
