"""What ingress decides: a request's life, and where it goes when no decider answers. Pure."""
