"""Waits for the end of an upload with the AWS SDK, as in the documentation of Stream Manager.

The code is unchanged, except for its comments and the parts that it leaves to the reader: the logger,
the URL of the file, and the imports of exceptions.
"""

# ruff: noqa: E501, F401, B030, PLW0711
# mypy: ignore-errors
import asyncio
import logging
import sys
import time

from greengrasssdk.stream_manager import (
    ReadMessagesOptions,
    Status,
    StatusConfig,
    StatusLevel,
    StatusMessage,
    StreamManagerClient,
    StreamManagerException,
)
from greengrasssdk.stream_manager.util import Util

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
logger = logging.getLogger("monitor")
file_url = sys.argv[1]

client = StreamManagerClient()

try:
    is_file_uploaded_to_s3 = False
    while not is_file_uploaded_to_s3:
        try:
            messages_list = client.read_messages(
                "StatusStreamName",
                ReadMessagesOptions(min_message_count=1, read_timeout_millis=1000),
            )
            for message in messages_list:
                status_message = Util.deserialize_json_bytes_to_obj(message.payload, StatusMessage)

                if status_message.status == Status.Success:
                    logger.info("Successfully uploaded file at path " + file_url + " to S3.")
                    is_file_uploaded_to_s3 = True
                elif (
                    status_message.status == Status.Failure
                    or status_message.status == Status.Canceled
                ):
                    logger.info(
                        "Unable to upload file at path "
                        + file_url
                        + " to S3. Message: "
                        + status_message.message
                    )
                    is_file_uploaded_to_s3 = True
            time.sleep(5)
        except StreamManagerException:
            logger.exception("Exception while running")
except StreamManagerException:
    pass
except ConnectionError or asyncio.TimeoutError:
    pass

client.close()
