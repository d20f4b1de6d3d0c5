"""Checking the ledger against the events it was made of, telling one request's story, and keeping events in files."""
