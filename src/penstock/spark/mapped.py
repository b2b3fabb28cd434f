"""The files of a segment, mapped: the way of a task that runs on the broker's machine.

What a plan names in a segment never changes: payloads and entries are only added behind it, and a
file that is removed stays readable for whoever has it open. So a task needs no lock, and cannot be
in the broker's way.
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
    """Whether the broker that told of this piece keeps its files on this machine."""
    return piece.root is not None and is_root_of(piece.root, piece.instance)


def map_piece(piece: Piece) -> StoredMessages | None:
    """A piece without copying it; None if this machine does not have all of it."""
    if piece.root is None or not has_files(piece):
        return None
    segment = piece.segment
    directory = Path(piece.root) / "streams" / piece.stream_id
    try:
        index = _map(index_path(directory, segment.first), (piece.end - segment.first) * ENTRY.size)
        entries = np.frombuffer(index, ENTRY_TYPE)
        # Not only as far as the last entry says: if that one is wrong, the others are not.
        data = _map(data_path(directory, segment.first), segment.size)
    except (OSError, ValueError):
        # It was removed, or cut by damage: what is left of it the broker tells.
        return None
    return StoredMessages(segment.first, entries, pa.py_buffer(data), 0).part(
        piece.first, piece.end
    )


def _map(path: Path, size: int) -> mmap.mmap:
    """The first bytes of a file; ValueError if it does not have so many."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Mapping what is not there works, and kills the process that reads it.
        if os.fstat(descriptor).st_size < size:
            raise ValueError(f"{path} has fewer than {size} bytes")
        return mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
