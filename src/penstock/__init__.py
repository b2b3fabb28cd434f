"""Penstock, an open stream manager for the edge."""

__version__ = "0.1.0"
