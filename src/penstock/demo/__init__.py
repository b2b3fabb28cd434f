"""The demo: the devices of a small wind farm, and a cloud with outages."""
