"""NATS and Postgres from wheels, run as child processes with their data in the state folder."""
