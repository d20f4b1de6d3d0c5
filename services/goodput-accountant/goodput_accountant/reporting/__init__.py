"""`tokenfleet ledger`: what people ask of the ledger, and how it is shown and written."""
