"""The broker's part of exports: due work, leases, and progress. The pipeline delivers."""
