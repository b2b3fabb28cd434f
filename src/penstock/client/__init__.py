"""Programs that talk to a broker."""
