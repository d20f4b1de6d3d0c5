"""A discrete-event simulator in virtual time: real policies, real traces, modelled engines."""
