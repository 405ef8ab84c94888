"""Tables from finished runs."""
