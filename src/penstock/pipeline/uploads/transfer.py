"""The transfer of one file to S3: in one call, or in parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from penstock.model.exporting import Upload
from penstock.pipeline.delivery import StopSignal
from penstock.pipeline.destinations.destination import UnavailableError
from penstock.pipeline.uploads.input_files import InputFile
from penstock.pipeline.uploads.s3_calls import Body, S3Calls

_MEBIBYTE = 1024 * 1024
_MAX_PARTS = 10_000
# Larger parts need fewer calls. The AWS SDKs use the same sizes.
_LARGE_FILE = 100 * _MEBIBYTE
_LARGE_PART = 8 * _MEBIBYTE
# If the first part takes longer, the other parts are sent one at a time.
_QUICK_SECONDS = 3.0
# Seconds before each retry of a part; then the upload fails.
_PART_PAUSES = (0.1, 0.4)
# A file that takes longer in one call is sent in parts, which can be resumed after a stop.
_MAX_WHOLE_SECONDS = 30.0


class TooSlowError(Exception):
    """A file takes too long to be sent in one call."""


def choose_part_size(size: int, min_size: int) -> int:
    """Chooses the minimum, or more for a large file, because the number of parts is limited."""
    usual = _LARGE_PART if size > _LARGE_FILE else 0
    needed = -(-size // _MAX_PARTS)
    return max(min_size, usual, -(-needed // _MEBIBYTE) * _MEBIBYTE)


def send_whole(
    file: InputFile, upload: Upload, metadata: Mapping[str, str], s3: S3Calls, stop: StopSignal
) -> None:
    """Sends a file in one call. Raises InputFileError if the file changed during the call."""
    began = time.monotonic()

    def check() -> None:
        stop.check()
        if time.monotonic() - began > _MAX_WHOLE_SECONDS:
            raise TooSlowError

    body = Body(file, 0, file.size, check)
    # A file that changed while it was read is not sent. Later changes do not match the checksum.
    file.check()
    s3.put_object(upload, body, metadata)
    file.check()


def send_parts(
    file: InputFile,
    upload: Upload,
    s3: S3Calls,
    threads: int,
    stop: StopSignal,
    # Waits until this many bytes may be sent; StoppedError if the upload is stopped.
    reserve: Callable[[int], None],
    # Called with the place of a part and its entry in the upload, when it has arrived.
    note_part: Callable[[int, str], None],
) -> None:
    """Sends the missing parts of an upload. Raises UnavailableError if a part did not arrive."""

    def send(place: int) -> None:
        start = place * upload.part_size
        size = min(upload.part_size, upload.size - start)
        for pause in (*_PART_PAUSES, None):
            reserve(size)
            body = Body(file, start, size, stop.check)
            try:
                note_part(place, s3.put_part(upload, place + 1, body))
                return
            except UnavailableError:
                if pause is None or not stop.wait(pause):
                    raise

    count = -(-upload.size // upload.part_size)
    missing = [place for place in range(count) if not any(upload.parts[place : place + 1])]
    if not missing:
        return
    began = time.monotonic()
    send(missing[0])
    # On a slow line, parts that are sent in parallel may all time out.
    is_slow = time.monotonic() - began > _QUICK_SECONDS
    with ThreadPoolExecutor(1 if is_slow else threads, "penstock-part") as pool:
        sending = [pool.submit(send, place) for place in missing[1:]]
        ended, _ = wait(sending, return_when=FIRST_EXCEPTION)
        pool.shutdown(cancel_futures=True)
    for each in ended:
        each.result()
