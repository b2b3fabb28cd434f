"""The transfer of one file to its bucket: in one call, or in parts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import msgspec

from penstock.model.exporting import Upload
from penstock.pipeline.destinations.destination import UnavailableError
from penstock.pipeline.stopping import StopSignal
from penstock.pipeline.uploads.body import Body
from penstock.pipeline.uploads.bucket import Bucket
from penstock.pipeline.uploads.inputs import InputFile

_MEBIBYTE = 1024 * 1024
_MAX_PARTS = 10_000
# Each call costs something beside its bytes: this is what the AWS SDKs choose.
_LARGE_FILE = 100 * _MEBIBYTE
_LARGE_PART = 8 * _MEBIBYTE
# A part that takes longer goes alone.
_QUICK_SECONDS = 3.0
# A part that failed is sent again after so many seconds; then the upload fails.
_PART_PAUSES = (0.1, 0.4)
# A file that is sent in one call cannot be continued after a stop. One that takes longer is sent in
# parts.
_MAX_WHOLE_SECONDS = 30.0


class TooSlowError(Exception):
    """A file that takes too long to go in one call."""


def choose_part_size(size: int, least: int) -> int:
    """The least that may be; more of a large file, so that there are not too many parts."""
    usual = _LARGE_PART if size > _LARGE_FILE else 0
    needed = -(-size // _MAX_PARTS)
    return max(least, usual, -(-needed // _MEBIBYTE) * _MEBIBYTE)


def send_whole(
    file: InputFile, bucket: Bucket, key: str, metadata: Mapping[str, str], stop: StopSignal
) -> None:
    """In one call. TooSlowError if it takes too long and might as well go in parts.

    InputError if it is not the same afterwards: then somebody was still writing it.
    """
    began = time.monotonic()

    def go_on() -> None:
        stop.check()
        if time.monotonic() - began > _MAX_WHOLE_SECONDS:
            raise TooSlowError

    body = Body(file, 0, file.size, go_on)
    # What has changed while it was read is not sent. After that its digest tells.
    file.check()
    with _telling_problems(body):
        bucket.put(key, body, metadata)
    file.check()


class PartsTransfer:
    """A multipart upload, from where it stands."""

    def __init__(
        self,
        file: InputFile,
        bucket: Bucket,
        upload: Upload,
        stop: StopSignal,
        # Waits until so many bytes may be sent; False if the upload is stopped.
        reserve: Callable[[int], bool],
        # Called with the upload after each part.
        keep: Callable[[Upload], None],
    ) -> None:
        self._file = file
        self._bucket = bucket
        self._upload = upload
        self._stop = stop
        self._reserve = reserve
        self._keep = keep
        self._count = max(-(-upload.size // upload.part_size), 1)
        self._sent = {place: part for place, part in enumerate(upload.parts) if part}
        # The next one is the last.
        self._missing = [n for n in range(self._count) if n not in self._sent][::-1]
        self._lock = threading.Lock()
        self._error: Exception | None = None

    def run(self, threads: int) -> bool:
        """Whether the object is complete; parts that have arrived are kept in any case.

        UnavailableError if a part did not arrive, GoneError if there is no such upload, InputError
        if the file is not what it was when the upload began.
        """
        if self._missing:
            self._send_missing(threads)
            self._keep(self._state())
        if self._error is not None:
            raise self._error
        if len(self._sent) < self._count:
            return False
        self._stop.check()
        self._file.check()
        state = self._state()
        self._bucket.complete(state.key, state.upload_id, state.parts)
        return True

    def _send_missing(self, threads: int) -> None:
        # On a slow line several parts at once take so long that none may arrive.
        began = time.monotonic()
        self._send_parts(limit=1)
        if time.monotonic() - began > _QUICK_SECONDS:
            threads = 1
        workers = min(threads, len(self._missing))
        if workers > 1:
            with ThreadPoolExecutor(workers, "penstock-part") as pool:
                for _ in range(workers):
                    pool.submit(self._send_parts)
        elif workers:
            self._send_parts()

    def _state(self) -> Upload:
        parts = [self._sent.get(place, "") for place in range(max(self._sent, default=-1) + 1)]
        return msgspec.structs.replace(self._upload, parts=parts)

    def _send_parts(self, limit: int | None = None) -> None:
        try:
            while limit != 0 and (place := self._take()) is not None:
                part = self._send_part(place)
                with self._lock:
                    self._sent[place] = part
                    state = self._state()
                self._keep(state)
                limit = limit - 1 if limit is not None else None
        except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
            with self._lock:
                self._error = self._error or error

    def _take(self) -> int | None:
        """The place of the next part, which may be sent now."""
        with self._lock:
            if not self._missing or self._error is not None:
                return None
            place = self._missing.pop()
        if self._reserve(self._size_of(place)):
            return place
        with self._lock:
            self._missing.append(place)
        return None

    def _size_of(self, place: int) -> int:
        return min(self._upload.part_size, self._upload.size - place * self._upload.part_size)

    def _send_part(self, place: int) -> str:
        upload, size = self._upload, self._size_of(place)
        body = Body(self._file, place * upload.part_size, size, self._stop.check)
        for pause in (*_PART_PAUSES, None):
            try:
                with _telling_problems(body):
                    return self._bucket.put_part(upload.key, upload.upload_id, place + 1, body)
            except UnavailableError:
                if pause is None or not self._stop.wait(pause) or not self._reserve(size):
                    raise
        raise AssertionError("the last one raises")


@contextmanager
def _telling_problems(body: Body) -> Iterator[None]:
    try:
        yield
    except UnavailableError as error:
        raise body.problem or error from None
