"""The paper, runnable: its experiments as code, the grid of their runs, and the engines that carry them out."""
