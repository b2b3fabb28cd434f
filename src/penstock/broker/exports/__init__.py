"""What leaves, when, and how far it got: the broker's part of exports. The pipeline delivers."""
