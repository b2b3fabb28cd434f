"""The limits of Stream Manager's model as types: a field of such a type enforces its limit."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
# The max number of milliseconds that fits into 64 bits as nanoseconds.
MILLIS_MAX = 9_223_372_036_854

# ASCII letters instead of \w, as in the Java and JavaScript clients: Python's \w matches any
# letter. \Z instead of $, which also matches before a newline.
NAME_PATTERN = r"\A[A-Za-z0-9_ ,.\-]*\Z"

Name = Annotated[str, Meta(min_length=1, max_length=255, pattern=NAME_PATTERN)]
RequestId = Annotated[str, Meta(min_length=1, max_length=1024, pattern=NAME_PATTERN)]
Text = Annotated[str, Meta(min_length=1)]

MaxSize = Annotated[int, Meta(ge=1024, le=INT64_MAX)]
SegmentSize = Annotated[int, Meta(ge=1024, le=INT32_MAX)]
MIN_TIME_TO_LIVE_MILLIS = 60_000
TimeToLiveMillis = Annotated[int, Meta(ge=MIN_TIME_TO_LIVE_MILLIS, le=MILLIS_MAX)]

Priority = Annotated[int, Meta(ge=1, le=10)]
SequenceNumber = Annotated[int, Meta(ge=0, le=INT64_MAX)]
BatchIntervalMillis = Annotated[int, Meta(ge=60_000, le=MILLIS_MAX)]
BatchOf10 = Annotated[int, Meta(ge=1, le=10)]
BatchOf100 = Annotated[int, Meta(ge=1, le=100)]
BatchOf500 = Annotated[int, Meta(ge=1, le=500)]
MultipartThreshold = Annotated[int, Meta(ge=5_242_880, le=INT64_MAX)]

MessageCount = Annotated[int, Meta(ge=1, le=INT32_MAX)]
ReadTimeoutMillis = Annotated[int, Meta(ge=0, le=MILLIS_MAX)]
Payload = Annotated[bytes, Meta(min_length=1)]
