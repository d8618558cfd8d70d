"""Habits of redis-py, side by side with redis-py itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable
from typing import Any, Optional

import pytest
import redis
import redis.asyncio
import redis.lock
import tenure
from conftest import Program, Server, eventually
from tenure import testing
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


def test_a_wrong_keyword_of_a_lock_names_the_right_one(locks: tenure.Locks, name: str) -> None:
    wrong: Any = locks.lock
    assert not wrong(name, 10, 0.2, blocking=False).locked()
    for keyword, right in {"ttl": "timeout", "wait": "blocking_timeout", "blocking_timout": "blocking_timeout"}.items():
        with pytest.raises(TypeError, match=f"'{keyword}': use '{right}'"):
            wrong(name, **{keyword: 3})


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


def test_a_failed_acquire_keeps_the_held_lock(make: Make, name: str) -> None:
    for thread_local in (True, False):
        one = make(name, timeout=30, thread_local=thread_local)
        assert one.acquire() and not one.acquire(blocking=False) and not one.acquire(blocking_timeout=0.1)
        assert one.owned()
        one.release()
        assert not one.locked()


def test_a_lock_with_a_timeout_outlives_its_object(make: Make, server: Server, name: str) -> None:
    assert make(name, timeout=30).acquire(blocking=False)
    gc.collect()
    again = make(name, timeout=30)
    assert again.locked() and not again.acquire(blocking=False) and server.client.pttl(name) > 20_000


def test_a_lock_with_a_timeout_outlives_its_program(
    server: Server, locks: tenure.Locks, name: str, program: Callable[..., Program]
) -> None:
    program(
        """
        import sys, tenure
        for number in range(2):
            kept = tenure.connect(sys.argv[1], op_timeout=20).lock(f"{sys.argv[2]}{number}", timeout=30)
            assert kept.acquire()
        forgotten = tenure.connect(sys.argv[1], op_timeout=20).lock(sys.argv[2], thread_local=False)
        assert forgotten.acquire()
        """,
        server.url,
        name,
    ).end()
    assert server.client.exists(f"{name}0", f"{name}1", name) == 2
    assert locks.lock(name).acquire(blocking=False)  # without a timeout, its end is the end of its object
    eventually(lambda: not server.client.exists(name))


def test_a_released_guard_is_no_longer_owned(locks: tenure.Locks, name: str) -> None:
    lock, forgiving = locks.lock(name, timeout=30), locks.lock(name, timeout=30, raise_on_release_error=False)
    for use in (lock.release, lock.reacquire, lambda: lock.extend(3)):
        assert lock.acquire() and lock.guard is not None
        lock.guard.release()
        with pytest.raises(LockNotOwnedError):
            use()
    with forgiving:
        assert forgiving.guard is not None
        forgiving.guard.release()


def test_a_token_is_refused(locks: tenure.Locks, name: str) -> None:
    with pytest.raises(tenure.InvalidError, match="token"):
        locks.lock(name).acquire(token="mine")
    with pytest.raises(tenure.InvalidError, match="token"):
        asyncio.run(AsyncLock(locks, name).acquire(token="mine"))


def test_a_shorter_lease_ends_sooner() -> None:
    locks, control = testing.store()
    lock = locks.lock("report", timeout=60)
    assert lock.acquire() and lock.guard is not None
    guard = lock.guard
    assert lock.extend(30) and guard.remaining() > 80
    assert lock.extend(10, replace_ttl=True) and lock.guard is guard
    control.advance(9)
    assert guard.is_held()
    control.advance(2)
    assert guard.lost.is_set()
    with pytest.raises(LockNotOwnedError):
        lock.release()


def test_an_extension_that_fails_keeps_the_lock() -> None:
    locks, control = testing.store()
    lock = locks.lock("report", timeout=30)
    with lock:
        with control.outage(), pytest.raises(tenure.UnreachableError):
            lock.extend(10)
        assert lock.owned() and lock.extend(10)


def test_an_extension_that_is_cancelled_keeps_the_lock() -> None:
    locks, control = testing.store()

    async def cancelled(lock: AsyncLock, call: Callable[[], Any], after: int) -> bool:
        """Whether the call was cancelled while its request of this number was in flight."""
        control.forget_requests()
        control.slow(0.2)
        task = asyncio.create_task(call())
        while len(control.requests()) < after and not task.done():
            await asyncio.sleep(0.001)
        task.cancel()
        control.slow(0)
        await asyncio.gather(task, return_exceptions=True)
        assert await lock.owned() and control.elsewhere().inspect("report") is not None
        return task.cancelled()

    async def main() -> None:
        lock = AsyncLock(locks.configured(op_timeout=20), "report", timeout=60)
        async with lock:
            for call in (lambda: lock.extend(10), lock.reacquire):
                after = 1
                while await cancelled(lock, call, after):
                    after += 1
                assert after > 1
        assert control.elsewhere().inspect("report") is None

    asyncio.run(main())


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
            assert not await one.acquire(blocking=False) and await one.owned()
        with pytest.raises(redis.exceptions.LockError):
            await one.release()

    async def main() -> None:
        client = redis.asyncio.Redis(port=server.port)
        await use(lambda name, **options: client.lock(name, **options))
        await use(lambda name, **options: AsyncLock(client, name, **options))
        await use(lambda name, **options: AsyncLock(locks, name, **options))
        await client.aclose()

    asyncio.run(main())


def test_the_server_of_a_client_is_found(server: Server) -> None:
    from redis.sentinel import Sentinel

    clients = [
        (redis.Redis(host="db", port=7000, db=2, username="ann", password="a&b/c"), "redis://db:7000/2"),
        (redis.Redis(host="db", ssl=True), "rediss://db:6379/0"),
        (redis.Redis(unix_socket_path="/run/redis.sock", password="a&b"), "redis+unix:///run/redis.sock"),
        (redis.Redis(host="::1", port=7000), "redis://[::1]:7000/0"),
        (redis.from_url("redis:///2"), "redis://localhost:6379/2"),
    ]
    for client, url in clients:
        assert Lock(client, "x")._locks.url.startswith(url)
        assert Lock(client, "x")._locks is Lock(client, "y")._locks
    with pytest.raises(tenure.InvalidError, match="tenure.connect"):
        Lock(Sentinel([("db", 26379)]).master_for("main"), "x")
    with pytest.raises(tenure.Error, match="/no/such/ca"):
        Lock(redis.Redis(port=server.port, ssl=True, ssl_ca_certs="/no/such/ca"), "x").acquire(blocking_timeout=1)
    with pytest.raises(tenure.InvalidError, match="ssl_ca_data"):
        Lock(redis.Redis(host="db", ssl=True, ssl_ca_data="data"), "x")


def test_the_error_of_a_block_is_kept(name: str) -> None:
    store, control = testing.store()

    def chain(error: Optional[BaseException]) -> list[str]:
        return [] if error is None else [type(error).__name__, *chain(error.__cause__ or error.__context__)]

    def block(timeout: float, work: Callable[[], Any]) -> list[str]:
        try:
            with store.lock(name, timeout=timeout):
                work()
                raise KeyError("body")
        except BaseException as error:
            return chain(error)

    def expires() -> None:
        control.advance(1)

    assert block(30, lambda: None) == ["KeyError"]
    assert block(0.5, expires) == ["LockNotOwnedError", "LostError", "KeyError"]
    with pytest.raises(KeyError), contextlib.ExitStack() as outage, store.lock(name, timeout=30):
        outage.enter_context(control.outage())
        raise KeyError("body")


def test_a_forked_child_keeps_its_exit_code() -> None:
    program = Program(
        """
        import os, sys, tenure
        with tenure.connect("memory:").lock("x", timeout=30) as lock:
            child = os.fork()
            if child == 0:
                assert not lock.owned()
                sys.exit(7)
            assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 7
        """
    )
    program.end()


def test_extensions_at_the_same_time_add_up(server: Server, locks: tenure.Locks, name: str) -> None:
    async def main() -> None:
        lock = AsyncLock(locks, name, 10, 0.1, True, None, False, True)
        async with lock:
            await asyncio.gather(*(lock.extend(10) for _ in range(3)))
            assert 35_000 < server.client.pttl(name) <= 40_000

    asyncio.run(main())


def test_a_wrong_keyword_names_the_right_one(locks: tenure.Locks, name: str) -> None:
    for wrong, right in [("blocking_timeout", "timeout"), ("expire", "ttl"), ("auto_renewal", "renew"), ("tttl", "ttl")]:
        with pytest.raises(TypeError, match=f"{wrong}'.* use '{right}'"):
            locks.mutex(name, **{wrong: 3})  # type: ignore[arg-type]
    with pytest.raises(tenure.InvalidError, match="tenure.connect"):
        Lock(object(), name)
