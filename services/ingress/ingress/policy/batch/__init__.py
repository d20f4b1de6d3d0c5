"""What batches are decided by: their lines, deadlines, retries, and who gets the next free place."""
