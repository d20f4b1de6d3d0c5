"""Whether a request that may not leave a place ever leaves it, over many simulated requests and every fault at once."""
