"""The unmodified AWS clients against a broker process."""
