"""Devices to try things out with: a small wind farm, with a cloud that fails now and then."""
