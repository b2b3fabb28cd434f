"""The transfer of one file to its bucket: in one call, or in parts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec

from penstock.model.exporting import Upload
from penstock.pipeline.destinations.destination import UnavailableError
from penstock.pipeline.stopping import StoppedError, StopSignal
from penstock.pipeline.uploads.body import Body
from penstock.pipeline.uploads.bucket import Bucket
from penstock.pipeline.uploads.input_files import InputFile

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

    InputError if the file has changed meanwhile: then it was still being written.
    """
    began = time.monotonic()

    def go_on() -> None:
        stop.check()
        if time.monotonic() - began > _MAX_WHOLE_SECONDS:
            raise TooSlowError

    body = Body(file, 0, file.size, go_on)
    # A file that changed while it was read is not sent. Later changes do not match the digest.
    file.check()
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
        # In reverse: the next part is popped from the end.
        self._missing = [n for n in range(self._count) if n not in self._sent][::-1]
        self._errors: list[Exception] = []
        self._lock = threading.Lock()

    def run(self, threads: int) -> None:
        """Completes the object; parts that have arrived are kept in any case.

        UnavailableError if a part did not arrive, GoneError if there is no such upload, InputError
        if the file is not what it was when the upload began, StoppedError if the upload is stopped.
        """
        if self._missing:
            began = time.monotonic()
            self._send_next()
            # On a slow line several parts at once take so long that none may arrive.
            is_slow = time.monotonic() - began > _QUICK_SECONDS
            helpers = 0 if is_slow else min(threads, len(self._missing)) - 1
            with ThreadPoolExecutor(threads, "penstock-part") as pool:
                for _ in range(helpers):
                    pool.submit(self._send_rest)
                self._send_rest()
            self._keep(self._state())
        if self._errors:
            raise self._errors[0]
        if len(self._sent) < self._count:
            raise StoppedError
        self._stop.check()
        self._file.check()
        state = self._state()
        self._bucket.complete(state.key, state.upload_id, state.parts)

    def _state(self) -> Upload:
        parts = [self._sent.get(place, "") for place in range(max(self._sent, default=-1) + 1)]
        return msgspec.structs.replace(self._upload, parts=parts)

    def _send_rest(self) -> None:
        while self._send_next():
            pass

    def _send_next(self) -> bool:
        """Sends the next part; False if none is missing, one has failed, or none may be sent."""
        with self._lock:
            if not self._missing or self._errors:
                return False
            place = self._missing.pop()
        try:
            part = self._send_part(place)
            if not part:
                return False
            with self._lock:
                self._sent[place] = part
                state = self._state()
            self._keep(state)
        except Exception as error:  # noqa: BLE001 - `run` raises it
            self._errors.append(error)
        return True

    def _send_part(self, place: int) -> str:
        """What `complete` needs of the part; empty if it may not be sent."""
        upload = self._upload
        start = place * upload.part_size
        size = min(upload.part_size, upload.size - start)
        if not self._reserve(size):
            return ""
        body = Body(self._file, start, size, self._stop.check)
        pauses = iter(_PART_PAUSES)
        while True:
            try:
                return self._bucket.put_part(upload.key, upload.upload_id, place + 1, body)
            except UnavailableError:
                pause = next(pauses, None)
                if pause is None or not self._stop.wait(pause) or not self._reserve(size):
                    raise
