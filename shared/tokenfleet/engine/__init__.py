"""One model of a continuous-batching engine, in virtual time.

The emulated engine runs it against the clock, the simulator in virtual time, and routers predict with the
same timing form (`profile`).
"""
