"""What the broker shows over HTTP: a page for people, metrics, its health."""
