"""Memory-mapped segment files, for tasks on the broker's machine.

A task needs no lock: the planned part of a segment never changes, because the broker only appends,
and a removed file stays readable while it is mapped.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.discovery import is_root_of
from penstock.spark.planning import Piece
from penstock.spark.stored import ENTRY_TYPE, StoredMessages
from penstock.store.record import ENTRY, data_path, index_path


def has_files(piece: Piece) -> bool:
    """Whether the files of the broker that located this piece are on this machine."""
    return piece.root is not None and is_root_of(piece.root, piece.instance)


def map_piece(piece: Piece) -> StoredMessages | None:
    """Maps a piece; None if its files are missing on this machine, or too short."""
    if piece.root is None or not has_files(piece):
        return None
    segment = piece.segment
    directory = Path(piece.root) / "streams" / piece.stream_id
    try:
        index = _map(index_path(directory, segment.first), (piece.end - segment.first) * ENTRY.size)
        entries = np.frombuffer(index, ENTRY_TYPE)
        # The size is not taken from the last entry: damage to it must not affect other messages.
        data = _map(data_path(directory, segment.first), segment.size)
    except (OSError, ValueError):
        # The files were removed or truncated. The broker has the intact messages, or reports the
        # loss.
        return None
    return StoredMessages(segment.first, entries, pa.py_buffer(data), 0).part(
        piece.first, piece.end
    )


def _map(path: Path, size: int) -> mmap.mmap:
    """Maps the first `size` bytes of a file; ValueError if the file is shorter."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Reading a mapping beyond the end of its file kills the process.
        if os.fstat(descriptor).st_size < size:
            raise ValueError(f"{path} has fewer than {size} bytes")
        return mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
