"""Checks the root, its store, its messages and the disk space."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from penstock.cli.checks.check import Check, Outcome, fail, ok, skip, warn
from penstock.cli.checks.context import CheckContext
from penstock.cli.units import human_bytes
from penstock.discovery import TOKEN_FILE
from penstock.model import Persistence

_MIN_FREE_BYTES = 1024**3
# Less than a segment of the default size.
_FULL_BYTES = 16 * 1024**2

_OTHER_ROOT = "choose another root with --root or STREAM_MANAGER_STORE_ROOT_DIR"


def check_root(context: CheckContext) -> Outcome:
    root = context.settings.root_path
    if root.is_dir():
        if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
            return fail(
                f"{root} is not readable and writable", f"change its owner, or {_OTHER_ROOT}"
            )
        return ok(f"{root} is readable and writable")
    parent = _existing(root)
    if not parent.is_dir():
        return fail(f"{parent} is not a directory", _OTHER_ROOT)
    if not os.access(parent, os.W_OK | os.X_OK):
        return fail(
            f"{root} cannot be created: {parent} is not writable",
            f"create {root} with this user as its owner, or {_OTHER_ROOT}",
        )
    return ok(f"{root} will be created when the broker starts")


def _existing(path: Path) -> Path:
    """The path, or its nearest parent that exists."""
    while not path.exists():
        path = path.parent
    return path


def check_permissions(context: CheckContext) -> Outcome:
    root = context.settings.root_path
    if not root.is_dir():
        return skip(f"{root} does not exist yet")
    status = root.stat()
    if os.geteuid() not in (0, status.st_uid):
        return warn(
            f"{root} belongs to user {status.st_uid}, and this is user {os.geteuid()}",
            "run the broker and its commands as one user",
        )
    if status.st_mode & 0o077:
        return warn(
            f"{root} has mode {status.st_mode & 0o777:o}: other users have access",
            f"chmod 700 {shlex.quote(str(root))}",
        )
    token = root / TOKEN_FILE
    if token.exists() and token.stat().st_mode & 0o077:
        return fail(f"other users can access {token}", f"chmod 600 {shlex.quote(str(token))}")
    return ok("only the owner has access")


def check_store(context: CheckContext) -> Outcome:
    root, inventory = context.settings.root_path, context.inventory
    if not inventory.exists:
        return skip(f"there is no store in {root} yet")
    if inventory.error:
        return fail(
            f"cannot read its catalog: {inventory.error}",
            "`penstock serve` repairs it if possible; else restore catalog.sqlite from a backup",
        )
    count = len(inventory.definitions)
    streams = "1 stream" if count == 1 else f"{count} streams"
    return ok(f"{streams}, {human_bytes(inventory.stored_bytes)}")


def check_messages(context: CheckContext) -> Outcome:
    contact, root = context.contact, shlex.quote(str(context.settings.root_path))
    verify = f"`penstock verify --root {root}`"
    if contact.damage:
        return fail(
            "; ".join(contact.damage),
            f"{verify} lists all damage; check the disk with `dmesg` and `smartctl`",
        )
    if contact.server is None:
        return skip(f"{verify} checks every stored message")
    if not contact.server.has_extensions:
        return skip("this server does not report damage")
    return ok("the broker has found no damage")


def check_space(context: CheckContext) -> Outcome:
    free = shutil.disk_usage(_existing(context.settings.root_path)).free
    max_bytes = sum(
        definition.max_size
        for definition in context.inventory.definitions
        if definition.persistence is Persistence.File
    )
    return judge_space(free, max_bytes, context.inventory.stored_bytes, _find_min_free(context))


def _find_min_free(context: CheckContext) -> int:
    """`min_free_disk` of the running broker, which may differ from the settings of this command."""
    if context.target.host is None and context.is_served and context.contact.disk is not None:
        return context.contact.disk.min_free_bytes
    return context.settings.min_free_disk


def judge_space(free: int, max_bytes: int, stored: int, min_free: int) -> Outcome:
    """Whether `free` bytes suffice for streams of `max_bytes` in total that hold `stored` bytes."""
    found = f"{human_bytes(free)} free"
    mend = "free disk space, move the root to a larger disk, or lower the max_size of streams"
    if free < min_free:
        limit = human_bytes(min_free)
        return fail(f"{found}, less than min_free_disk ({limit}): appends are refused", mend)
    if free < _FULL_BYTES:
        return fail(f"{found}: the disk is full", mend)
    if free < max_bytes - stored:
        return warn(
            f"{found}, and streams may still grow by {human_bytes(max_bytes - stored)}", mend
        )
    if free < _MIN_FREE_BYTES:
        return warn(found, mend)
    return ok(found)


CHECKS: dict[str, Check] = {
    "root": check_root,
    "permissions": check_permissions,
    "store": check_store,
    "messages": check_messages,
    "disk space": check_space,
}
