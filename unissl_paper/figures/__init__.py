"""The figures of the paper, each a function of finished runs."""
