"""Example databases: keys that runners agree on, several stores as one, and networks that fail."""

from __future__ import annotations

import json
import zipfile
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from hypothesis.database import DirectoryBasedExampleDatabase, GitHubArtifactDatabase, InMemoryExampleDatabase

from properties import database
from properties.database import ItemDatabase, Several, Tolerant, item_key, lost_databases, opened, unreachable
from properties.tests.redis_server import running_redis

DIGEST = b"\x01.secondary of something\xff"


def test_keys_depend_on_names_alone():
    assert item_key("test[a]", "x") == item_key("test[a]", "x") != item_key("test[a", "]x")
    store = InMemoryExampleDatabase()
    ItemDatabase(store, "test[a]").save(DIGEST, b"1")
    # Another source of the same test, on another runner.
    assert list(ItemDatabase(store, "test[a]").fetch(b"another digest")) == [b"1"]
    assert list(ItemDatabase(store, "test[b]").fetch(DIGEST)) == []


def test_what_hypothesis_keeps_beside_an_example_is_kept_apart():
    item = ItemDatabase(InMemoryExampleDatabase(), "test")
    item.save(b"k", b"1")
    item.move(b"k", b"k.secondary", b"1")
    item.save(b"k.pareto", b"2")
    assert [list(item.fetch(key)) for key in (b"k", b"k.secondary", b"k.pareto")] == [[], [b"1"], [b"2"]]
    item.delete(b"k.pareto", b"2")
    assert list(item.fetch(b"k.pareto")) == []


def test_folders_start_where_the_user_is_and_the_local_one_in_the_project(tmp_path: Path):
    root, here = tmp_path / "root", tmp_path / "here"
    opened((), root=root, here=here).save(b"a", b"1")
    opened(("kept",), root=root, here=here).save(b"a", b"2")
    assert list(DirectoryBasedExampleDatabase(root / ".hypothesis" / "msda").fetch(b"a")) == [b"1"]
    assert list(DirectoryBasedExampleDatabase(here / "kept").fetch(b"a")) == [b"2"]


@pytest.mark.parametrize("address", ["", "http://host", "github://owner", "github://owner/a/b", "redis://host:port/x"])
def test_other_addresses_are_refused(tmp_path: Path, address: str):
    with pytest.raises(ValueError, match=r"database: .* given, expected a folder, redis://HOST:PORT/DB or github://"):
        opened([address], root=tmp_path, here=tmp_path)


def test_an_address_without_its_package_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "redis", None)
    with pytest.raises(ValueError, match="needs the package redis; expected the extra 'shards'"):
        opened(["redis://localhost"], root=tmp_path, here=tmp_path)


def test_what_one_runner_saves_another_one_fetches_and_each_has_its_own_copy(tmp_path: Path):
    with running_redis(tmp_path) as address:
        one, two = (opened([str(tmp_path / name), address], root=tmp_path, here=tmp_path) for name in ("one", "two"))
        one.save(b"key", b"\x00example")
        assert list(two.fetch(b"key")) == [b"\x00example"]
        assert list(DirectoryBasedExampleDatabase(tmp_path / "two").fetch(b"key")) == []
        assert unreachable([address]) is None
    assert list(one.fetch(b"key")) == [b"\x00example"]
    one.save(b"key", b"later")
    assert list(two.fetch(b"key")) == []
    assert [line.startswith("database: ") for line in (*lost_databases(one), *lost_databases(two))] == [True, True]
    assert "does not answer" in str(unreachable([address]))


def test_a_database_that_fails_takes_nothing_with_it():
    class Broken(InMemoryExampleDatabase):
        def fetch(self, key):
            raise ConnectionResetError(f"no {key!r}")

    whole, broken = InMemoryExampleDatabase(), Tolerant(Broken(), (OSError,))
    both = Several(whole, broken)
    both.save(b"a", b"1")
    assert lost_databases(both) == []
    assert list(both.fetch(b"a")) == [b"1"]
    assert lost_databases(both) == ["database: ConnectionResetError: no b'a'"]
    assert lost_databases(whole) == []


def test_an_artifact_of_github_is_read_and_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As `actions/upload-artifact` packs a folder; what the network would bring lies there already."""
    kept = DirectoryBasedExampleDatabase(tmp_path / "kept")
    kept.save(b"key", b"example")
    artifact = tmp_path / "cache" / f"{datetime.now(UTC).isoformat().replace(':', '_')}.zip"
    artifact.parent.mkdir()
    with zipfile.ZipFile(artifact, "w") as packed:
        for file in (tmp_path / "kept").rglob("*"):
            packed.write(file, file.relative_to(tmp_path / "kept"))
    monkeypatch.setattr(database, "GitHubArtifactDatabase", partial(GitHubArtifactDatabase, path=artifact.parent))
    store = opened(["github://owner/repository?artifact=examples"], root=tmp_path, here=tmp_path)
    assert list(store.fetch(b"key")) == [b"example"]
    assert lost_databases(store) == []
    # Beside it there is a folder, or nothing that is found would be kept.
    store.save(b"key", b"another")
    assert set(store.fetch(b"key")) == {b"example", b"another"}
    assert list(DirectoryBasedExampleDatabase(tmp_path / ".hypothesis" / "msda").fetch(b"key")) == [b"another"]


def test_a_github_that_cannot_be_reached_is_told_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(database, "GitHubArtifactDatabase", partial(GitHubArtifactDatabase, path=tmp_path / "cache"))
    monkeypatch.setattr(GitHubArtifactDatabase, "_fetch_artifact", lambda _: None)
    store = opened(["github://owner/repository"], root=tmp_path, here=tmp_path)
    assert list(store.fetch(b"key")) == []
    assert json.dumps(lost_databases(store)).startswith('["database: ')
