"""The ways to name a node: TCP, Unix socket, TLS, with a password, through Sentinel."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_redlock import ConfigError, LockHeld, QuorumUnreachable, Redlock
from celery_redlock.testing import Proxy, Server, servers
from celery_redlock.testing.servers import FORGETFUL, newest_server

from ..conftest import find
from ..waiting import wait_until

PASSWORD = "s3cr3t-pä/ss@word"
QUOTED = "s3cr3t-p%C3%A4%2Fss%40word"


def works(url: str, **options: float) -> None:
    redlock = Redlock([url], **options)  # type: ignore[arg-type]
    try:
        with redlock.lock("key"), pytest.raises(LockHeld):
            redlock.acquire("key")
        assert redlock.inspect("key") is None
    finally:
        redlock.close()


def fails(url: str, match: str) -> str:
    redlock = Redlock([url], node_timeout=2)
    try:
        with pytest.raises(QuorumUnreachable, match=match) as caught:
            redlock.acquire("key")
    finally:
        redlock.close()
    return f"{caught.value} {caught.value!r} {redlock!r}"


def test_tcp_with_a_database(one: Server) -> None:
    works(f"redis://127.0.0.1:{one.port}/3")
    assert one.client().dbsize() == 0


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with servers(1, find(newest_server), [*FORGETFUL, "--unixsocket", str(path)]):
        works(f"unix://{path}?db=2")


def test_an_acl_user_with_a_password(one: Server) -> None:
    one.client().execute_command("ACL", "SETUSER", "locker", "on", f">{PASSWORD}", "~*", "+@all")
    works(f"redis://locker:{QUOTED}@127.0.0.1:{one.port}/0")


def test_the_least_rights_that_an_acl_user_needs(one: Server) -> None:
    rights = "+evalsha +eval +script|load +set +get +del +pexpire +pttl +time +info +select"
    one.client().execute_command("ACL", "SETUSER", "locker", "on", ">pw", "~redlock:*", *rights.split())
    works(f"redis://locker:pw@127.0.0.1:{one.port}/0")


def test_a_user_who_may_not_load_scripts_still_locks(one: Server) -> None:
    one.client().execute_command("ACL", "SETUSER", "locker", "on", ">pw", "~*", "+@all", "-script")
    works(f"redis://locker:pw@127.0.0.1:{one.port}/0")


def test_a_wrong_password_is_an_error_that_does_not_show_it(one: Server) -> None:
    one.client().execute_command("ACL", "SETUSER", "locker", "on", f">{PASSWORD}", "~*", "+@all")
    told = fails(
        f"redis://locker:wr0ng-one@127.0.0.1:{one.port}/0", "WRONGPASS|invalid username-password"
    )
    assert "wr0ng" not in told


def test_a_node_that_does_not_tell_its_age_is_a_configuration_error() -> None:
    with servers(3, find(newest_server)) as nodes:
        for node in nodes:
            node.client().execute_command("ACL", "SETUSER", "default", "-info")
        redlock = Redlock([node.url for node in nodes])
        with pytest.raises(
            ConfigError, match=r"refuses INFO \(.*\), .*Allow the command \(ACL: \+info\)"
        ):
            redlock.acquire("key")
        for node in nodes:
            node.client().execute_command("ACL", "SETUSER", "default", "+info")
        wait_until(lambda: _stops_complaining(redlock))
        redlock.close()
        for node in nodes:
            node.client().execute_command("ACL", "SETUSER", "default", "-info")
        unguarded = Redlock([node.url for node in nodes], restart_guard=0)
        assert unguarded.acquire("key").release()
        unguarded.close()


def _stops_complaining(redlock: Redlock) -> bool:
    try:
        redlock.acquire("key").release()
    except ConfigError:
        return False
    except QuorumUnreachable as unreachable:
        return "started lately" in str(unreachable)
    return True


def test_a_single_node_need_not_tell_its_age(one: Server) -> None:
    one.client().execute_command("ACL", "SETUSER", "default", "-info")
    works(one.url)


def test_options_of_the_url_that_would_get_in_our_way_do_not(one: Server) -> None:
    works(one.url + "?decode_responses=True&socket_timeout=0.000001&protocol=3&health_check_interval=1")


def test_tls_with_a_certificate_that_we_trust(tls: Proxy, ca_file: Path) -> None:
    works(f"rediss://localhost:{tls.port}/0?ssl_ca_certs={ca_file}")


def test_many_locks_over_tls(tls: Proxy, ca_file: Path) -> None:
    redlock = Redlock([f"rediss://localhost:{tls.port}/0?ssl_ca_certs={ca_file}"], ttl=1.5)
    leases = [redlock.acquire(f"key-{'x' * 300}-{n}") for n in range(300)]
    with leases[0].channel.lock:  # several TLS records in one go, both ways
        redlock._quorum.renew(leases, leases[0].channel, 1.0)
    assert not any(lease.trouble for lease in leases)
    assert all(lease.release() for lease in leases)
    redlock.close()


def test_tls_verifies_the_certificate_by_default(tls: Proxy) -> None:
    fails(f"rediss://localhost:{tls.port}/0", "certificate verify failed")


def test_tls_verifies_the_host_name_by_default(tls: Proxy, ca_file: Path) -> None:
    fails(f"rediss://127.0.0.1:{tls.port}/0?ssl_ca_certs={ca_file}", "certificate verify failed")


def test_tls_goes_unverified_only_if_the_url_says_so(tls: Proxy) -> None:
    works(f"rediss://127.0.0.1:{tls.port}/0?ssl_cert_reqs=none")


def test_sentinel_tells_where_the_master_is(one: Server, tmp_path: Path) -> None:
    conf = tmp_path / "sentinel.conf"
    conf.write_text(f"sentinel monitor mymaster 127.0.0.1 {one.port} 1\n")
    with servers(1, find(newest_server), ["--sentinel"], conf) as (sentinel,):
        wait_until(lambda: sentinel.client().execute_command("SENTINEL", "MASTERS"))
        works(f"sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/mymaster?db=1", node_timeout=2)
        fails(f"sentinel://127.0.0.1:{sentinel.port}/other", "No master found for 'other'")


def test_one_server_under_two_names_is_a_configuration_error() -> None:
    with servers(3, find(newest_server)) as nodes, Proxy(nodes[0].port) as alias:
        redlock = Redlock([nodes[0].url, nodes[1].url, alias.url], restart_guard=0)
        with pytest.raises(ConfigError, match="are the same server") as caught:
            redlock.acquire("key")
        assert nodes[0].url in str(caught.value)
        assert alias.url in str(caught.value)
        redlock.close()
