"""A stand-in for a vLLM engine: its HTTP API, metrics and KV events, with time and cache from the engine model."""
