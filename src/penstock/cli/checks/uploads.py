"""Checks the directories that files may be uploaded from to S3."""

from __future__ import annotations

import os

from penstock.cli.checks.check import Check, Outcome, ok, skip, warn
from penstock.cli.checks.context import CheckContext
from penstock.settings import original_variables


def check_input_directories(context: CheckContext) -> Outcome:
    contact, inventory = context.contact, context.inventory
    # Paused exports count too: they carry out their tasks once they are resumed.
    streams = [
        definition.name
        for definition in contact.definitions or inventory.definitions
        if definition.export_definition.s3_task_executor
    ]
    if not streams:
        is_known = contact.server is not None or inventory.exists
        return skip(
            "no stream has an export to S3"
            if is_known
            else "unknown: there is no broker and no store"
        )
    (variable,) = original_variables("read_only_dirs")
    directories = context.settings.read_only_directories
    if not directories:
        return warn(
            "any program that may append can upload all files that the pipeline's user may read, "
            f"through {_enumerate(streams)}",
            f"set {variable} to the allowed directories, separated by commas",
        )
    problems = [problem for directory in directories if (problem := _find_problem(directory))]
    if problems:
        return warn(", ".join(problems), f"fix the directories, or change {variable}")
    return ok(f"only from {', '.join(directories)}")


def _find_problem(directory: str) -> str:
    """The reason why files in the directory cannot be read; empty if they can."""
    try:
        # With the dot, `stat` requires search permission. Read permission is not needed, because
        # tasks name their files.
        os.stat(f"{directory}/.")  # noqa: PTH116 - a Path would drop the dot
    except OSError as error:
        return f"{directory}: {error.strerror}"
    return ""


def _enumerate(streams: list[str]) -> str:
    shown = ", ".join(streams[:3])
    return shown if len(streams) <= 3 else f"{shown} and {len(streams) - 3} more"


CHECKS: dict[str, Check] = {"S3 files": check_input_directories}
