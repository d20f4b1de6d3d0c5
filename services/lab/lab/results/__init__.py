"""What the lab shows of its runs: plots, one HTML report per run, and docs/results.md."""
