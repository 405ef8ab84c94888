"""Charts: pure functions from results to figures, used by runs, reports and the paper's figures."""
