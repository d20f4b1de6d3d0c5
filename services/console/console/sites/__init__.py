"""Several emulated sites on this machine: each with its own NATS and services, joined by links that can be slowed and cut."""
