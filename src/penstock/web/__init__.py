"""The HTTP server of the broker: dashboard, API, metrics and health."""
