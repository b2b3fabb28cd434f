"""The broker's part of exports: what is due, leases, and progress. The pipeline delivers."""
