"""`python -m benchmarks.export_loop ROOT STREAM...` exports to Kinesis without a pipeline.

The peer of `edge-cost`: a simple program without stored progress, retries or priorities.
"""

from __future__ import annotations

import sys
import threading
import uuid
from typing import Any

import boto3

from penstock import NotEnoughMessagesException, ReadMessagesOptions, StreamManagerClient


def export(root: str, stream: str, kinesis: Any) -> None:
    client = StreamManagerClient(root=root)
    status = client.describe_message_stream(stream).storage_status
    number = status.newest_sequence_number + 1
    while True:
        options = ReadMessagesOptions(
            desired_start_sequence_number=number,
            min_message_count=1,
            max_message_count=500,
            read_timeout_millis=10_000,
        )
        try:
            messages = client.read_messages(stream, options)
        except NotEnoughMessagesException:
            continue
        kinesis.put_records(
            StreamName=stream,
            Records=[{"Data": each.payload, "PartitionKey": uuid.uuid4().hex} for each in messages],
        )
        number = messages[-1].sequence_number + 1


def main(root: str, *streams: str) -> None:
    kinesis = boto3.client("kinesis")
    threads = [threading.Thread(target=export, args=(root, name, kinesis)) for name in streams]
    for thread in threads:
        thread.start()
    print("exporting", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
