"""What cannot work is a ConfigError, that says what to change and shows no password."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

from celery_redlock import ConfigError, Redlock
from celery_redlock.testing import MemoryNodes

A, B, C = "redis://a:1/0", "redis://b:1/0", "redis://c:1/0"


def test_no_nodes() -> None:
    with pytest.raises(ConfigError, match="no lock nodes: give at least one URL, better three or five"):
        Redlock([])


def test_one_url_in_place_of_a_list() -> None:
    with pytest.raises(ConfigError, match=r"nodes is a list of URLs, not one URL: write \[url\]"):
        Redlock(A)


def test_any_collection_of_urls_will_do() -> None:
    assert repr(Redlock({A})) == repr(Redlock(iter([A]))) == "<Redlock on redis://a:1/0>"


def test_the_same_url_twice() -> None:
    with pytest.raises(ConfigError, match="redis://a:1/0 is listed twice"):
        Redlock([A, B, "redis://user:pw@a:1/0"])


def test_an_even_number_of_nodes_is_worth_a_warning() -> None:
    with pytest.warns(UserWarning, match="4 lock nodes survive no more failures than 3") as caught:
        Redlock([A, B, C, "redis://d:1/0"])
    assert caught[0].filename == __file__


def test_an_odd_number_of_nodes_is_not() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Redlock([A, B, C])


@pytest.mark.parametrize("url", ["", "a:6379", "http://a:6379", "memcached://a", None, 7])
def test_what_is_no_redis_url(url: str) -> None:
    with pytest.raises(
        ConfigError, match="lock node 2 is not a URL that starts with redis://, rediss://"
    ):
        Redlock([A, url, B])


@pytest.mark.parametrize(
    "rest",
    [
        "host:notaport/0",
        "host:99999/0",
        "host:6379/notadb",
        "host:6379/0?colour=blue",
        "host:6379/0?socket_timeout=soon",
        ":6379/0",
        "",
    ],
)
def test_an_unreadable_url_is_named_without_its_password(rest: str) -> None:
    with pytest.raises(
        ConfigError, match=r"the URL of lock node 2 \(redis://…\) cannot be read"
    ) as caught:
        Redlock([A, f"redis://user:hunter2@{rest}"])
    assert "hunter2" not in repr(caught.value) + str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("password", ["hun?ter2", "hun/ter2", "hun#ter2", "12?ter2", "12/3", "[hunter2"])
def test_no_part_of_a_password_with_special_characters_is_shown(password: str) -> None:
    with pytest.raises(
        ConfigError, match="special characters in a password are written as %XX"
    ) as caught:
        Redlock([f"redis://user:{password}@host:1/0"])
    assert "ter2" not in str(caught.value)
    assert "12" not in str(caught.value)


@pytest.mark.parametrize("url", ["sentinel://host:1", "sentinel:///service", "sentinel://a,,b/service"])
def test_an_unreadable_sentinel_url(url: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Redlock([url])


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), "30", None])
def test_a_ttl_that_is_no_time(ttl: float) -> None:
    with pytest.raises(ConfigError, match=r"ttl is .*: it is a number of seconds, more than 0"):
        Redlock(MemoryNodes(), ttl=ttl, restart_guard=30)
    if ttl is not None:
        with pytest.raises(ConfigError, match="ttl is"):
            Redlock(MemoryNodes()).acquire("key", ttl=ttl)


def test_a_ttl_of_which_nothing_would_be_left() -> None:
    with pytest.raises(ConfigError, match=r"ttl is 0\.05 s: below 0\.1 s"):
        Redlock(MemoryNodes(), ttl=0.05)


@pytest.mark.parametrize("wait", [-1, float("inf"), float("nan"), "5"])
def test_a_wait_that_is_no_time(wait: float) -> None:
    """Nothing waits for ever."""
    with pytest.raises(ConfigError, match=r"wait is .*: it is a number of seconds, 0 or more"):
        Redlock(MemoryNodes()).acquire("key", wait=wait)


def test_a_ttl_above_the_guard() -> None:
    with pytest.raises(ConfigError, match="ttl is 31 s, longer than the restart guard of 30 s"):
        Redlock(MemoryNodes(), ttl=31, restart_guard=30)
    with pytest.raises(ConfigError, match="longer than the restart guard"):
        Redlock(MemoryNodes(), ttl=30).acquire("key", ttl=31)


def test_any_ttl_will_do_without_a_guard_or_with_one_node() -> None:
    Redlock(MemoryNodes(3), ttl=31, restart_guard=0).acquire("key", ttl=100)
    Redlock(MemoryNodes(1), ttl=31, restart_guard=30).acquire("key", ttl=100)


@pytest.mark.parametrize("seconds", [0, -1, float("inf")])
def test_a_node_timeout_that_is_no_time(seconds: float) -> None:
    with pytest.raises(ConfigError, match="node_timeout is"):
        Redlock(MemoryNodes(), node_timeout=seconds)


def test_a_negative_guard() -> None:
    with pytest.raises(ConfigError, match="restart_guard is -1: it is a number of seconds, 0 or more"):
        Redlock(MemoryNodes(), restart_guard=-1)


def test_a_longest_hold_that_is_no_time() -> None:
    with (
        pytest.raises(ConfigError, match="max_hold is 0"),
        Redlock(MemoryNodes()).lock("key", max_hold=0),
    ):
        pass


@pytest.mark.parametrize("key", ["", "a}b", "a#1", "a\nb", "a\x00", None, b"key", 7])
def test_a_key_that_cannot_be_one(key: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a lock's key"):
        Redlock(MemoryNodes()).acquire(key)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:p@ss@host:1/0?password=x", "redis://host:1/0"),
        ("rediss://host:1/0?ssl_cert_reqs=CERT_NONE", "rediss://host:1/0"),
        ("rediss://:pw@host", "rediss://host"),
        ("unix://user:pw@/run/redis.sock?db=1", "unix:///run/redis.sock"),
        ("sentinel://u:p@a:1,b:2/service", "sentinel://a:1,b:2/service"),
    ],
)
def test_a_url_is_shown_without_credentials(url: str, shown: str) -> None:
    assert repr(Redlock([url])) == f"<Redlock on {shown}>"


def test_importing_the_package_does_not_import_redis() -> None:
    """It takes longer than the rest together, and not everyone who imports tasks takes locks."""
    code = "import sys, celery_redlock; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
