"""How Hypothesis looks for examples: as usual, but never in a hurry on a busy machine."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.register_profile("full", deadline=None, max_examples=10 * settings().max_examples)
settings.load_profile("patient")
