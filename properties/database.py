"""Example databases: where failing draws are kept, shared by processes, by runners and by whoever runs this next.

Hypothesis keeps an example under a digest of the test function's source. Here many properties draw through one
function, so each gets a key of its own, made of names alone: the same on every runner, whatever changes in the source.
"""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hypothesis.database import (
    DirectoryBasedExampleDatabase,
    ExampleDatabase,
    GitHubArtifactDatabase,
    MultiplexedDatabase,
    ReadOnlyDatabase,
)
from hypothesis.errors import HypothesisWarning

LOCAL = Path(".hypothesis") / "msda"
REDIS = ("redis", "rediss", "unix")
ARTIFACT = "hypothesis-example-db"
# Hypothesis keeps what it shrank from, and the best of what it steered for, under its key with these behind it.
PARETO = b".pareto"
SUFFIXES = (b".secondary", PARETO)
EXPECTED = "expected a folder, redis://HOST:PORT/DB or github://OWNER/REPOSITORY"


def item_key(*names: str) -> bytes:
    """Return the key of one property on one variant for one subject and device; variants must not share one."""
    return hashlib.sha256("\0".join(names).encode()).hexdigest()[:16].encode()


class ItemDatabase(ExampleDatabase):
    """The examples of one property on one variant, in a database that all of them share."""

    def __init__(self, store: ExampleDatabase, *names: str) -> None:
        super().__init__()
        self.store = store
        self.key = item_key(*names)

    def _of(self, key: bytes) -> bytes:
        return self.key + next((suffix for suffix in SUFFIXES if key.endswith(suffix)), b"")

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Yield what is kept."""
        yield from self.store.fetch(self._of(key))

    def save(self, key: bytes, value: bytes) -> None:
        """Keep an example."""
        self.store.save(self._of(key), value)

    def delete(self, key: bytes, value: bytes) -> None:
        """Forget an example."""
        self.store.delete(self._of(key), value)

    def move(self, src: bytes, dest: bytes, value: bytes) -> None:
        """Keep an example elsewhere."""
        self.store.move(self._of(src), self._of(dest), value)


class Tolerant(ExampleDatabase):
    """A database behind a network that may fail: what it should have kept is then kept by the others alone.

    Attributes:
        store: the database.
        errors: what it raises when it cannot be reached.
        failure: the first such error, None while there was none.
    """

    def __init__(self, store: ExampleDatabase, errors: tuple[type[Exception], ...]) -> None:
        super().__init__()
        self.store = store
        self.errors = errors
        self.failure: str | None = None

    @contextlib.contextmanager
    def _tolerated(self) -> Iterator[None]:
        # Hypothesis warns where GitHub does not answer, and a warning may be an error here.
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", HypothesisWarning)
            try:
                yield
            except self.errors as error:
                self.failure = self.failure or f"{type(error).__name__}: {error}"
        if told:
            self.failure = self.failure or str(told[0].message)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Yield what is kept, nothing while it cannot be reached."""
        found: list[bytes] = []
        with self._tolerated():
            found = list(self.store.fetch(key))
        yield from found

    def save(self, key: bytes, value: bytes) -> None:
        """Keep an example, if it can be reached."""
        with self._tolerated():
            self.store.save(key, value)

    def delete(self, key: bytes, value: bytes) -> None:
        """Forget an example, if it can be reached."""
        with self._tolerated():
            self.store.delete(key, value)

    def move(self, src: bytes, dest: bytes, value: bytes) -> None:
        """Keep an example elsewhere, if it can be reached."""
        with self._tolerated():
            self.store.move(src, dest, value)


class Several(MultiplexedDatabase):
    """Several databases as one.

    Attributes:
        parts: the databases.
    """

    def __init__(self, *parts: ExampleDatabase) -> None:
        super().__init__(*parts)
        self.parts = parts


def opened(addresses: Sequence[str], *, root: Path, here: Path) -> ExampleDatabase:
    """Open the databases at some addresses as one; without one that can be written, the local folder is added.

    Args:
        addresses: folders, "redis://..." and "github://owner/repository[?artifact=name]"; none for the local folder.
        root: where the local folder lies.
        here: where other folders start.

    Raises:
        ValueError: an address is none of these, or needs a package that is not installed.
    """
    stores = [_opened(address, here) for address in addresses]
    # What one process has found must be there for the next one, whatever becomes of the network.
    if not any(isinstance(store, DirectoryBasedExampleDatabase) for store in stores):
        stores.insert(0, DirectoryBasedExampleDatabase(root / LOCAL))
    return stores[0] if len(stores) == 1 else Several(*stores)


def _opened(address: str, here: Path) -> ExampleDatabase:
    scheme, separator, rest = address.partition("://")
    if scheme in REDIS and separator:
        return _redis(address)
    if scheme == "github" and separator:
        return _github(address)
    if separator or not (rest or address).strip():
        raise ValueError(f"database: {address!r} given, {EXPECTED}")
    return DirectoryBasedExampleDatabase(here / address)


def _redis(address: str) -> ExampleDatabase:
    try:
        import redis  # noqa: PLC0415 - an extra
        from hypothesis.extra.redis import RedisExampleDatabase  # noqa: PLC0415
    except ImportError:
        raise ValueError(f"database: {address!r} needs the package redis; expected the extra 'shards'") from None
    try:
        client = redis.Redis.from_url(address, socket_timeout=5.0, socket_connect_timeout=5.0)
    except ValueError as error:
        raise ValueError(f"database: {address!r} given, {EXPECTED} ({error})") from None
    return Tolerant(RedisExampleDatabase(client), (redis.RedisError, OSError))


def _github(address: str) -> ExampleDatabase:
    parts = urlsplit(address)
    repository = parts.path.strip("/")
    if not parts.netloc or not repository or "/" in repository:
        raise ValueError(f"database: {address!r} given, {EXPECTED}")
    artifact = parse_qs(parts.query).get("artifact", [ARTIFACT])[0]
    store = GitHubArtifactDatabase(parts.netloc, repository, artifact_name=artifact)
    return Tolerant(ReadOnlyDatabase(store), (OSError,))


def lost_databases(store: ExampleDatabase) -> list[str]:
    """Say which parts of a database could not be reached at times, one line each."""
    parts = store.parts if isinstance(store, Several) else (store,)
    return [f"database: {part.failure}" for part in parts if isinstance(part, Tolerant) and part.failure]


def unreachable(addresses: Sequence[str]) -> str | None:
    """Return why a database behind one of some addresses does not answer, None when all do."""
    for address in addresses:
        store = _opened(address, Path())
        ping: Callable[[], Any] | None = getattr(getattr(getattr(store, "store", None), "redis", None), "ping", None)
        if ping is None:
            continue
        try:
            ping()
        except Exception as error:  # of redis, of the network, of a wrong password
            return f"database: {address!r} does not answer: {error}"
    return None
