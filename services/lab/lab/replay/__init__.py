"""Driving a trace through the real API, and reading the result back from the ledger."""
