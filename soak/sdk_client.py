"""Run by the interpreter of the AWS SDK: appends messages as told on standard input."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

# In an environment of its own, without types.
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
    """Whether the client can still be used. What has no answer is not told."""
    for counter in range(task["first"], task["first"] + task["count"]):
        try:
            number = client.append_message(task["stream"], make_payload(task["source"], counter))
        except (ClientException, ConnectFailedException):
            return False
        except StreamManagerException as error:
            send_answer(counter=counter, refused=str(error))
        except Exception:  # noqa: BLE001 - whatever a lost connection ends in
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
        except Exception:  # noqa: BLE001 - there is no broker just now
            is_usable = False
        if not is_usable and client is not None:
            with contextlib.suppress(Exception):
                client.close()
            client = None
        send_answer(done=True)


main()
