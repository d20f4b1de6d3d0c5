"""From a request's prompt to the token ids that its engine will compute, as nearly as ingress can know them."""
