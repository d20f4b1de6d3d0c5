"""The batch API: files and batches in Postgres, run through this ingress like other requests."""
