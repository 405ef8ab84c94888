"""The trained model: its manifest, its predictions for images of any kind, its evaluation and its export."""
