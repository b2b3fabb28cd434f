"""Executes commands from standard input with the AWS SDK, in its Python environment."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

# It is installed in a separate environment and has no types.
from stream_manager import (  # type: ignore[import-not-found]
    ReadMessagesOptions,
    StreamManagerClient,
)

STREAM = "measured"


def append(client: Any, count: int, size: int, threads: int = 1) -> None:
    payload = bytes(size)

    def run() -> None:
        last = -1
        for _ in range(count // threads):
            number = client.append_message(STREAM, payload)
            assert number > last
            last = number

    if threads == 1:
        run()
        return
    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def read(client: Any, total: int, count: int) -> None:
    for start in range(0, total, count):
        options = ReadMessagesOptions(
            desired_start_sequence_number=start, min_message_count=count, max_message_count=count
        )
        assert len(client.read_messages(STREAM, options)) == count


COMMANDS: dict[str, Callable[..., None]] = {"append": append, "read": read}


def main() -> None:
    client = StreamManagerClient()
    for line in sys.stdin:
        arguments = json.loads(line)
        COMMANDS[arguments.pop("command")](client, **arguments)
        print("done", flush=True)
    client.close()


main()
