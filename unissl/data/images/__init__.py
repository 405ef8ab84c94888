"""Single images: decoding, resizing, issues, duplicates."""
