"""Simulates a browser that shows the dashboard, and Prometheus scrapes.

`python -m benchmarks.viewer URL` is a separate process, so that it takes no time from the measured
client. It prints a line for each round, and exits when its standard input is closed.
"""

from __future__ import annotations

import http.client
import select
import sys
import time
from urllib.parse import urlsplit

PAGE_SECONDS = 1.0
# Shorter than the usual scrape interval of 15 seconds.
SCRAPE_SECONDS = 5.0

# The requests of the overview, its plots, and the page of a stream.
_PAGE = (
    "/api/overview",
    "/api/history?since={since}",
    "/api/streams/dashboard-0",
    "/api/history?stream=dashboard-0&since={since}",
    "/api/pipeline",
    "/api/events?since=0",
)


def main(url: str) -> None:
    address = urlsplit(url).netloc
    browser, prometheus = http.client.HTTPConnection(address), http.client.HTTPConnection(address)
    scraped = 0.0
    while not select.select([sys.stdin], [], [], PAGE_SECONDS)[0]:
        since = int((time.time() - 2) * 1000)
        size = sum(_get(browser, path.format(since=since)) for path in _PAGE)
        if time.monotonic() - scraped >= SCRAPE_SECONDS:
            scraped = time.monotonic()
            size += _get(prometheus, "/metrics")
        print(size, flush=True)


def _get(connection: http.client.HTTPConnection, path: str) -> int:
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    if response.status != http.HTTPStatus.OK:
        raise RuntimeError(f"{path}: {response.status} {body[:200]!r}")
    return len(body)


if __name__ == "__main__":
    main(sys.argv[1])
