"""What is shipped: the model, its manifest, predictions for files, exporters."""
