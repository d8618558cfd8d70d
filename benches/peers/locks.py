"""The threaded Python sides of `scripts/peers`, with one client each: redis-py's lock, python-redis-lock, kazoo's lock
on ZooKeeper, and tenure.

Arguments and protocol as in src/main.rs; default settings.
"""

import os
import random
import threading
import time
import traceback

from words import action, finish, hold, port, ready, rest, rows, say, seconds, share, side, spread, tasks, ttl

if side in ("redis-py", "python-redis-lock"):
    import redis

    client = redis.Redis(port=port, max_connections=2000)  # a pool: one connection per active thread

if side == "redis-py":

    def lock_of(key, renewed=False):
        return client.lock(key, timeout=ttl / 1000)
elif side == "tenure python":
    import tenure

    locks = tenure.connect(f"redis://127.0.0.1:{port}").configured(ttl=ttl / 1000)

    class Ours:
        """The methods of the other sides."""

        def __init__(self, key):
            self.mutex = locks.mutex(key)

        def acquire(self):
            self.guard = self.mutex.lock()

        def release(self):
            self.guard.release()

    def lock_of(key, renewed=False):
        return Ours(key)
elif side == "zookeeper: kazoo":
    from kazoo.client import KazooClient, KazooState

    client, lost_at = KazooClient(f"127.0.0.1:{port}"), [0]
    client.start()

    def heard(state):  # a session that is not confirmed may be over: SUSPENDED
        if state != KazooState.CONNECTED and not lost_at[0]:
            lost_at[0] = time.monotonic_ns()

    client.add_listener(heard)

    def lock_of(key, renewed=False):
        return client.Lock("/peers/" + key, "side")
else:
    import redis_lock

    def lock_of(key, renewed=False):
        return redis_lock.Lock(client, key, expire=ttl // 1000, auto_renewal=renewed)


def in_thread(work, *words):
    def works():
        try:
            work(*words)
        except Exception:  # an error in any task ends the run
            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=works, daemon=True).start()


def turns_for(seconds):
    """Each task locks, holds, unlocks and rests until the time is over; returns the time taken and the turns."""
    start, ended = time.monotonic_ns(), [0] * tasks
    end = start + int(seconds * 1e9)

    def turns(task):
        turn = 0
        while True:
            lock = lock_of(f"{peers}{task // share}:{0 if hold else turn % 256}")
            lock.acquire()
            if hold:
                taken = time.monotonic_ns()
                time.sleep((hold + random.random() * spread) / 1000)
                rows.append((task, taken, time.monotonic_ns()))
            lock.release()
            if time.monotonic_ns() >= end:
                return
            turn += 1
            ended[task] = turn
            time.sleep(rest / 1000) if rest else None

    for task in range(tasks):
        in_thread(turns, task)
    time.sleep(max(0, end - time.monotonic_ns()) / 1e9)
    return time.monotonic_ns() - start, sum(ended)


def look_on(turns):
    time.sleep(1)
    ready()
    start = time.monotonic_ns()
    time.sleep(seconds)
    finish(time.monotonic_ns() - start, turns())


peers = "peers:" + os.environ.get("PEERS_RUN", "")

if action == "turns":
    if not hold:
        turns_for(0.5)
    ready()
    finish(*turns_for(seconds))
elif action == "hold":
    held = lock_of(peers + "0:0")
    held.acquire()
    ready()
    say(lost_at[0])
    time.sleep(60)
elif action == "next":
    held = lock_of(peers + "0:0")
    ready()
    held.acquire()
    say(time.monotonic_ns())
    time.sleep(60)
elif action in ("wait", "crowd"):
    held, got = lock_of(peers + "0:0"), []
    if action == "wait":
        held.acquire()
    for _ in range(tasks):
        in_thread(lambda: got.append(lock_of(peers + "0:0").acquire()))
    look_on(lambda: len(got))
elif side == "redis-py":
    say("cannot: it has no renewal of its own")
else:
    kept = [lock_of(f"{peers}{task}:0", renewed=True) for task in range(tasks)]
    for lock in kept:
        lock.acquire()
    look_on(lambda: len(kept))
if side == "zookeeper: kazoo":
    client.stop()  # so that no lock stays held for the next run
os._exit(0)  # threads may wait forever
