"""Executes commands from standard input with the AWS SDK, in its Python environment."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

# It is installed in a separate environment and has no types.
from stream_manager import (  # type: ignore[import-not-found]
    StreamManagerClient,
    StreamManagerException,
)
from stream_manager.exceptions import (  # type: ignore[import-not-found]
    ClientException,
    ConnectFailedException,
)

from soak.messages import make_payload


def send_answer(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def append(client: Any, task: dict[str, Any]) -> bool:
    """Appends messages and reports responses; returns whether the client is still usable."""
    for counter in range(task["first"], task["first"] + task["count"]):
        try:
            number = client.append_message(task["stream"], make_payload(task["source"], counter))
        except (ClientException, ConnectFailedException):
            return False
        except StreamManagerException as error:
            send_answer(counter=counter, refused=str(error))
        except Exception:  # noqa: BLE001 - a lost connection raises various errors
            return False
        else:
            send_answer(counter=counter, number=number)
    return True


def main() -> None:
    client: Any = None
    for line in sys.stdin:
        task = json.loads(line)
        try:
            if client is None:
                client = StreamManagerClient("127.0.0.1", task["port"], request_timeout=2)
            is_usable = append(client, task)
        except Exception:  # noqa: BLE001 - the broker is not running
            is_usable = False
        if not is_usable and client is not None:
            with contextlib.suppress(Exception):
                client.close()
            client = None
        send_answer(done=True)


main()
