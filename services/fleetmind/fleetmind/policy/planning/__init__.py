"""The long loop: how much work is coming, and how many replicas bear it where. Pure."""
