"""Habits of redis-py, side by side with redis-py itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.lock
import tenure
from conftest import Server
from tenure.compat.redis import AsyncLock, Lock, LockError, LockNotOwnedError

Make = Callable[..., Any]


@pytest.fixture(params=["redis-py", "client", "locks", "method"])
def make(request: pytest.FixtureRequest, server: Server, locks: tenure.Locks) -> Make:
    """Makes a lock, of redis-py or of tenure."""
    return {
        "redis-py": lambda name, **options: redis.lock.Lock(server.client, name, **options),
        "client": lambda name, **options: Lock(server.client, name, **options),
        "locks": lambda name, **options: Lock(locks, name, **options),
        "method": lambda name, **options: locks.lock(name, **options),
    }[request.param]


def left(server: Server, lock: Any) -> float:
    """Seconds until the hold ends."""
    return float(lock.guard.remaining() if hasattr(lock, "guard") else server.client.pttl(lock.name) / 1000)


def test_a_lock_of_redis_py_works_the_same(make: Make, server: Server, name: str) -> None:
    one, other = make(name, timeout=30), make(name, timeout=30, blocking_timeout=0.2)
    assert not one.locked() and not one.owned()
    assert one.acquire() is True and one.locked() and one.owned() and not other.owned()
    assert other.acquire(blocking=False) is False and other.acquire() is False
    assert other.acquire(blocking_timeout=0.1) is False
    assert 20 < left(server, one) <= 30 and 20_000 < server.client.pttl(name) <= 30_000
    assert one.extend(60) is True and 80 < left(server, one) <= 90 and 80_000 < server.client.pttl(name) <= 90_000
    assert one.extend(10, replace_ttl=True) is True and 5 < left(server, one) <= 10
    assert one.reacquire() is True and 20 < left(server, one) <= 30
    one.release()
    for use in (one.release, one.reacquire, lambda: one.extend(1)):
        with pytest.raises(redis.exceptions.LockError):
            use()
    with one as held:
        assert held is one and one.owned()
        with pytest.raises(redis.exceptions.LockError), other:
            pass
    assert not one.locked()
    with pytest.raises(LockNotOwnedError), one:
        server.client.delete(name)
    assert one.acquire()
    server.client.delete(name)
    assert not one.owned()
    with pytest.raises(LockNotOwnedError):
        one.extend(3)
    forgiving = make(name, timeout=30, raise_on_release_error=False)
    with forgiving:
        server.client.delete(name)


def test_a_lock_belongs_to_its_thread(locks: tenure.Locks, name: str) -> None:
    one, shared = locks.lock(name, timeout=30), locks.lock(name + "s", timeout=30, thread_local=False)
    assert one.acquire() and shared.acquire()
    raised: list[Exception] = []

    def release() -> None:
        shared.release()
        try:
            one.release()
        except redis.exceptions.LockError as error:
            raised.append(error)

    thread = threading.Thread(target=release)
    thread.start()
    thread.join(20)
    assert raised and one.owned() and not shared.locked()
    one.release()


def test_a_lock_without_a_timeout_outlives_its_lease(locks: tenure.Locks, name: str) -> None:
    lock = locks.configured(ttl=0.3).lock(name)
    with lock:
        assert lock.guard is not None and lock.guard.fence > 0
        assert not lock.guard.lost.wait(0.9)
        with pytest.raises(LockError, match="no timeout"):
            lock.extend(3)


def test_the_asyncio_lock_works_the_same(server: Server, locks: tenure.Locks, name: str) -> None:
    async def use(make: Make) -> None:
        one, other = make(name, timeout=30), make(name, timeout=30, blocking_timeout=0.2)
        async with one:
            assert await one.owned() and await other.locked() and not await other.acquire()
            assert await one.extend(60) and 80_000 < server.client.pttl(name) <= 90_000
            assert await one.reacquire() and 20 < left(server, one) <= 30
        with pytest.raises(redis.exceptions.LockError):
            await one.release()

    async def main() -> None:
        client = redis.asyncio.Redis(port=server.port)
        await use(lambda name, **options: client.lock(name, **options))
        await use(lambda name, **options: AsyncLock(client, name, **options))
        await use(lambda name, **options: AsyncLock(locks, name, **options))
        await client.aclose()

    asyncio.run(main())


def test_the_server_of_a_client_is_found() -> None:
    from redis.sentinel import Sentinel

    clients = [
        (redis.Redis(host="db", port=7000, db=2, username="ann", password="a&b/c"), "redis://db:7000/2"),
        (redis.Redis(host="db", ssl=True), "rediss://db:6379/0"),
        (redis.Redis(unix_socket_path="/run/redis.sock", password="a&b"), "redis+unix:///run/redis.sock"),
    ]
    for client, url in clients:
        assert Lock(client, "x")._locks.url.startswith(url)
        assert Lock(client, "x")._locks is Lock(client, "y")._locks
    with pytest.raises(tenure.InvalidError, match="tenure.connect"):
        Lock(Sentinel([("db", 26379)]).master_for("main"), "x")


def test_a_wrong_keyword_names_the_right_one(locks: tenure.Locks, name: str) -> None:
    for wrong, right in [("blocking_timeout", "timeout"), ("expire", "ttl"), ("auto_renewal", "renew"), ("tttl", "ttl")]:
        with pytest.raises(TypeError, match=f"{wrong}'.* use '{right}'"):
            locks.mutex(name, **{wrong: 3})  # type: ignore[arg-type]
    with pytest.raises(tenure.InvalidError, match="tenure.connect"):
        Lock(object(), name)
