"""The paper's experiments: rows, columns, printed numbers."""
