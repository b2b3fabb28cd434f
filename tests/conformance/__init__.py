"""The unmodified AWS clients against a real broker process."""
