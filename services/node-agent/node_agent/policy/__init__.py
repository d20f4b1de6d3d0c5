"""The node agent's pure parts: what engines say, decoded and turned into fleet terms."""
