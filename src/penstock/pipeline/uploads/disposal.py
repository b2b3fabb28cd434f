"""Files that were uploaded, deleted where a setting asks for it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from penstock.pipeline.settlements import UploadedFile
from penstock.pipeline.uploads.inputs import Enclosure, InputError

logger = logging.getLogger(__name__)


def delete_files(files: Iterable[UploadedFile], directories: Sequence[str]) -> None:
    """Those that are still what was uploaded; what cannot be deleted stays, and is told of."""
    enclosure = Enclosure(directories, root=None)
    for uploaded in files:
        try:
            enclosure.delete(uploaded.path, uploaded.fingerprint)
        except (InputError, OSError) as error:
            logger.warning("a file that was uploaded is not deleted: %s", error)
