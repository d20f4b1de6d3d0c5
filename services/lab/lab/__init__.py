"""The lab: traces, replay through the real API, and comparisons."""
