"""The runs of an experiment: configurations, folders, status, execution."""
