from __future__ import annotations

from tests.segments import leave_no_segments_open

__all__ = ["leave_no_segments_open"]
