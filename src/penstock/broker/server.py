"""The broker: a store, its streams, and its listeners."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock import __version__
from penstock.broker.access import Authenticator, ensure_first_token
from penstock.broker.bulk import BrokerLocation
from penstock.broker.counters import Counters
from penstock.broker.descriptors import Shortages, plan_budget, raise_limit
from penstock.broker.exports.bandwidth import Bandwidth
from penstock.broker.exports.dead_letters import DeadLetters
from penstock.broker.exports.engine import Exports
from penstock.broker.exports.export_handlers import ExportHandlers
from penstock.broker.exports.pipelines import Pipelines
from penstock.broker.exports.statuses import Statuses
from penstock.broker.handlers import Handlers, now_millis
from penstock.broker.listener import BACKLOG, Listener, listen
from penstock.broker.memory import AnswerMemory, FrameMemory
from penstock.broker.session import Session, SessionState
from penstock.broker.streams import Stream, Streams
from penstock.broker.tls import TlsListener
from penstock.discovery import ADDRESS_FILE, Address, write_address
from penstock.errors import SettingError
from penstock.model.statistics import DiskStatistics, Statistics, StreamStatistics
from penstock.settings import Settings
from penstock.store.files import Disk
from penstock.store.store import Store

logger = logging.getLogger(__name__)

_SWEEP_SECONDS = 1.0
# How often the free space of the disk is sampled.
_SAMPLE_SECONDS = 1.0
_SYNC_THREADS = 4


class Broker:
    """Opens a root, listens, and stops cleanly, in one event loop.

    It has three kinds of threads: a pool that flushes appends, one thread that stores definition
    changes, and one that seals, removes and syncs segments in the background.
    """

    def __init__(self, settings: Settings, disk: Disk | None = None) -> None:
        self.settings = settings
        self._disk = disk or Disk()
        self._sessions: set[Session] = set()
        self._listeners: list[Listener] = []
        self._tls_listener: TlsListener | None = None
        self._started = time.monotonic()
        self.started_millis = now_millis()
        self._instance = secrets.token_hex(16)
        self._is_stopping = threading.Event()
        self.counters = Counters()
        self.shortages = Shortages()
        self.memory = FrameMemory(settings.max_frame_bytes)
        self.answers = AnswerMemory(settings.max_unsent_response_bytes)
        self.max_frame_bytes = settings.max_frame_bytes
        self.handshake_timeout = settings.handshake_timeout_ms / 1000
        self.unsent_response_timeout = settings.unsent_response_timeout_ms / 1000
        self.port = 0
        self.local_port: int | None = None
        # The URL of the dashboard; its web server sets it.
        self.http_url: str | None = None

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping.is_set()

    async def start(self) -> None:
        settings = self.settings
        root = settings.root_path
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise SettingError(f"the root {root} is not a directory, or is inside a file") from None
        tls = tls_context(settings) if settings.uses_tls else None
        limit = raise_limit()
        self.budget = plan_budget(limit, settings.max_connections)
        self._disk.pool.capacity = self.budget.segments
        # From now on, other threads also use the store.
        self._disk.pool.bind()
        self._store = Store(root, self._disk, settings.min_free_disk)
        try:
            ensure_first_token(root, self._store.catalog)
            self.authenticator = Authenticator(
                self._store.catalog, is_open=not settings.authenticate_client
            )
            self._sync_threads = ThreadPoolExecutor(_SYNC_THREADS, "penstock-sync")
            self._definition_thread = ThreadPoolExecutor(1, "penstock-definitions")
            self.streams = Streams(
                self._store,
                settings,
                self._sync_threads,
                self.counters.flushes.note,
                self._definition_thread,
                self.shortages,
            )
            location = BrokerLocation(str(root.absolute()), self._instance)
            dead_letters = DeadLetters(self.streams, settings.dead_letter_stream)
            statuses = Statuses(self.streams)
            loop = asyncio.get_running_loop()
            clock = loop.time
            self.recent_tasks = statuses.recent
            self.pipelines = Pipelines(clock, now_millis)
            bandwidth = Bandwidth(settings.exporter_max_bandwidth, clock, loop.call_later)
            self.exports = Exports(
                self._store,
                self.streams,
                bandwidth,
                dead_letters,
                statuses,
                settings.export_gather_ms / 1000,
                clock,
                now_millis,
            )
            self._export_handlers = ExportHandlers(
                self._store,
                self.streams,
                self.exports,
                self.pipelines,
                location,
                self._sync_threads,
                now_millis,
            )
            self.handlers = Handlers(
                self.streams,
                settings,
                self.counters,
                self.statistics,
                location,
                self.answers,
                self._export_handlers.table(),
            )
            # Before the first read: expired or evicted messages must not be visible.
            self.streams.trim(now_millis())
            self._max_connections = self.budget.connections
            await self._listen(tls)
        except BaseException:
            await self._close_listeners()
            self._store.close()
            raise
        self._background = threading.Thread(target=self._work, name="penstock-work", daemon=True)
        self._background.start()
        self._catalog_version = self._store.catalog.data_version()
        self._tokens = self._store.catalog.token_state()
        self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._sweep)
        self.publish()
        logger.info(
            "serving %d streams of %s on %s:%d%s",
            len(list(self.streams)),
            root,
            settings.host,
            self.port,
            " with TLS" if tls else "",
        )
        logger.info(
            "limit of %d open files: %d segments, %d clients and %d HTTP connections",
            limit,
            self.budget.segments,
            self.budget.connections,
            self.budget.http_connections,
        )

    async def _listen(self, tls: ssl.SSLContext | None) -> None:
        settings = self.settings
        with _listening_on(settings.host, settings.port):
            if tls is None:
                self.port = await self._listen_plainly(settings.host, settings.port)
            else:
                self.port = await self._listen_with_tls(settings.host, settings.port, tls)
        if settings.local_port is not None:
            with _listening_on("127.0.0.1", settings.local_port):
                self.local_port = await self._listen_plainly("127.0.0.1", settings.local_port)
        if settings.unix_socket:
            self._listen_on_unix_socket(settings.unix_socket)

    async def _listen_plainly(self, host: str, port: int) -> int:
        listener = Listener(await listen(host, port), lambda: Session(self), self.note_shortage)
        self._listeners.append(listener)
        return listener.port

    async def _listen_with_tls(self, host: str, port: int, tls: ssl.SSLContext) -> int:
        self._tls_listener = TlsListener(
            await listen(host, port),
            tls,
            lambda: Session(self),
            connections=self._sessions,
            max_connections=self._max_connections,
            handshake_seconds=self.handshake_timeout,
            on_refusal=self._note_refusal,
            on_shortage=self.note_shortage,
        )
        self._listeners.append(self._tls_listener)
        return self._tls_listener.port

    def note_shortage(self, error: OSError) -> None:
        """Called when there is no descriptor for a connection."""
        self.shortages.note("cannot accept connections", error)

    def _note_refusal(self, peer: str) -> None:
        """Called when the TLS listener has ended a handshake."""
        self.counters.connections_refused += 1
        logger.warning(
            "%s refused: its TLS handshake is unfinished, and the limit of %d connections is "
            "reached",
            peer,
            self._max_connections,
        )

    def _listen_on_unix_socket(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            # This broker holds the lock of the root: an existing socket is from a crashed broker.
            if Path(path).is_socket():
                Path(path).unlink()
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind(path)
            listening.listen(BACKLOG)
        except OSError as error:
            listening.close()
            raise SettingError(f"cannot listen on the Unix socket {path}: {error}") from None
        Path(path).chmod(0o600)
        self._listeners.append(Listener([listening], lambda: Session(self), self.note_shortage))

    def publish(self) -> None:
        """Writes the broker's address into its root, for local programs."""
        settings = self.settings
        write_address(
            settings.root_path,
            Address(
                pid=os.getpid(),
                instance=self._instance,
                host=settings.host,
                port=self.port,
                tls=settings.uses_tls,
                tls_certificate=_absolute(settings.tls_certificate),
                local_port=self.local_port,
                unix_socket=_absolute(settings.unix_socket),
                authenticate_client=settings.authenticate_client,
                http_url=self.http_url,
            ),
        )

    # Called by sessions

    def opened(self, session: Session) -> str | None:
        self._sessions.add(session)
        self.counters.connections_accepted += 1
        if self._tls_listener is not None:
            self._tls_listener.make_room()
        if self._is_stopping.is_set():
            return "the server is stopping"
        if len(self._sessions) > self._max_connections:
            return f"the server has reached its limit of {self._max_connections} connections"
        return None

    def closed(self, session: Session) -> None:
        self._sessions.discard(session)

    # Background work

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(_SWEEP_SECONDS, self._sweep)
        now = loop.time()
        for session in tuple(self._sessions):
            session.check_timeouts(now)
        self.streams.trim(now_millis())
        _attempt(self._revoke)

    def _revoke(self) -> None:
        """Closes connections whose token has expired or was revoked by another process."""
        version = self._store.catalog.data_version()
        tokens = self._tokens
        if version != self._catalog_version:
            # Most changes are the broker's own, in other tables.
            tokens = self._store.catalog.token_state()
        has_changed = tokens != self._tokens
        # A token that was created and revoked since the last check is in neither state, so
        # unknown digests are looked up.
        digests = {value for row in tokens for value in row if isinstance(value, bytes)}
        for session in tuple(self._sessions):
            if session.state is not SessionState.OPEN:
                continue
            if self.authenticator.has_expired(session.access):
                session.expire()
            elif (
                has_changed or session.access.digest not in digests
            ) and not self.authenticator.admits(session.access):
                session.revoke()
        self._catalog_version, self._tokens = version, tokens

    def _work(self) -> None:
        interval = self.settings.sync_interval_ms / 1000
        next_sync = time.monotonic() + interval
        next_sample = time.monotonic()
        while not self._is_stopping.is_set():
            self._store.wait_for_work(max(0.0, min(next_sync, next_sample) - time.monotonic()))
            _attempt(self._store.work)
            if time.monotonic() >= next_sample:
                next_sample = time.monotonic() + _SAMPLE_SECONDS
                _attempt(self._store.maintain_space)
            if time.monotonic() >= next_sync:
                began = time.monotonic()
                next_sync = began + interval
                _attempt(self._store.sync)
                self.counters.syncs.note(time.monotonic() - began)

    def statistics(self) -> Statistics:
        counters = self.counters
        now = now_millis()
        return Statistics(
            version=__version__,
            uptime_millis=int((time.monotonic() - self._started) * 1000),
            connections=len(self._sessions),
            messages_appended=counters.messages_appended,
            bytes_appended=counters.bytes_appended,
            messages_read=counters.messages_read,
            bytes_read=counters.bytes_read,
            requests_failed=counters.requests_failed,
            connections_accepted=counters.connections_accepted,
            connections_refused=counters.connections_refused,
            connections_dropped=counters.connections_dropped,
            streams=[self.statistics_of(stream, now) for stream in self.streams],
            time=now,
            descriptor_shortages=self.shortages.count,
            disk=self.statistics_of_disk(),
            exports_suspended=self.exports.suspension,
        )

    def statistics_of_disk(self) -> DiskStatistics:
        space = self._store.space
        return DiskStatistics(
            free_bytes=space.free,
            min_free_bytes=space.min_free,
            is_low=space.is_low,
            is_full=space.is_full,
            refused_messages=space.refused_messages,
        )

    def statistics_of(self, stream: Stream, now: int | None = None) -> StreamStatistics:
        return stream.statistics(self.exports.activities(stream), now or now_millis())

    # Stopping

    async def stop(self) -> None:
        """Answers open calls, syncs, and closes the store so that it needs no recovery."""
        logger.info("stopping")
        self._is_stopping.set()
        await self._close_listeners()
        self._sweeper.cancel()
        for session in tuple(self._sessions):
            session.stop()
        self.streams.finish_waits()
        deadline = time.monotonic() + self.settings.stop_timeout_ms / 1000
        while time.monotonic() < deadline and not all(s.is_idle for s in self._sessions):
            await asyncio.sleep(0.01)
        for session in tuple(self._sessions):
            session.finish()
        while time.monotonic() < deadline and self._sessions:
            await asyncio.sleep(0.01)
        for session in tuple(self._sessions):
            session.abort()
        await self.streams.finish_changes()
        await asyncio.to_thread(self._definition_thread.shutdown)
        self._export_handlers.progress.stop()
        self._store.request_work()
        await asyncio.to_thread(self._background.join)
        await asyncio.to_thread(self._sync_threads.shutdown)
        self._export_handlers.progress.finish()
        self.exports.finish()
        # While the lock is held: the next broker of this root creates files of the same names.
        for path in (
            self.settings.root_path / ADDRESS_FILE,
            *([Path(self.settings.unix_socket)] if self.settings.unix_socket else []),
        ):
            path.unlink(missing_ok=True)
        self._store.close()
        logger.info("stopped")

    async def _close_listeners(self) -> None:
        for listener in self._listeners:
            await listener.close()
        self._listeners.clear()
        self._tls_listener = None


@contextlib.contextmanager
def _listening_on(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SettingError(
            f"cannot listen on {host}:{port}: "
            f"{os.strerror(error.errno) if error.errno else error}; choose another port "
            "with --port (0 picks a free one)"
        ) from None


def _absolute(path: str) -> str | None:
    return str(Path(path).absolute()) if path else None


def _attempt(work: Callable[[], None]) -> None:
    """Runs periodic work and logs its errors."""
    try:
        work()
    except Exception:
        logger.exception("background work failed")


def tls_context(settings: Settings) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise SettingError(
            f"{settings.tls_certificate} and {settings.tls_key} are not a PEM certificate and its "
            f"key: {error}"
        ) from None
    return context
