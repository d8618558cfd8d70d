"""Locks as redis-py has them, for the tests of what they and ours make of each other. Orders come on standard input, a line
each; each is answered by a line. Argument: the server's port."""

import sys
import threading
import time

import redis
from redis.exceptions import LockError

port = int(sys.argv[1])
client = redis.Redis(port=port)
locks = {}


def acquire(name, timeout, wait):
    """Takes a lock for so many seconds, and says its token, or `busy`."""
    lock = locks[name] = client.lock(name, timeout=float(timeout), blocking_timeout=float(wait))
    return lock.local.token.decode() if lock.acquire() else "busy"


def of(verb):
    """Something done to a lock that was taken, or asked of it; the name of the error if there is one."""

    def answer(name, *args):
        try:
            return str(getattr(locks[name], verb)(*map(float, args)))
        except LockError as error:
            return type(error).__name__

    return answer


def turns(name, count):
    """Takes turns, and says how often somebody else was inside."""
    lock = client.lock(name, timeout=30, sleep=0.001)
    overlaps = 0
    for turn in range(int(count)):
        with lock:
            # As the other side does it: whoever is inside says so, and nobody else may have.
            overlaps += not client.set("inside", "python", nx=True)
            seen = int(client.get("turns") or 0)
            time.sleep(0.0005)
            client.set("turns", seen + 1)
            client.delete("inside")
        time.sleep(0.001 + 0.0005 * (turn % 4))
    return str(overlaps)


def crowd(name, pollers, held, paused):
    """So many pollers, each holding and pausing for so many seconds, over and over; goes on in the background."""

    def poll():
        lock = redis.Redis(port=port).lock(name, timeout=30, sleep=0.1, thread_local=False)
        while True:
            with lock:
                time.sleep(float(held))
                client.incr("crowd")
            time.sleep(float(paused))

    for _ in range(int(pollers)):
        threading.Thread(target=poll, daemon=True).start()
    return "ok"


verbs = {verb: of(verb) for verb in ["release", "owned", "locked", "extend", "reacquire"]}
verbs |= {"acquire": acquire, "turns": turns, "crowd": crowd}
for line in sys.stdin:
    verb, *args = line.split()
    print(verbs[verb](*args), flush=True)
