"""The asyncio side of `scripts/peers`: tenure's Python package, with one client.

Arguments and protocol as in src/main.rs.
"""

import asyncio
import random
import time

import tenure
from words import action, finish, hold, port, ready, rest, rows, seconds, share, spread, tasks, ttl


async def turns_for(locks, seconds):
    """Each task locks, holds, unlocks and rests until the time is over; returns the time taken and the turns."""
    start, ended = time.monotonic_ns(), [0] * tasks
    end = start + int(seconds * 1e9)

    async def turns(task):
        turn = 0
        while True:
            async with locks.mutex(f"peers:{task // share}:{0 if hold else turn % 256}"):
                if hold:
                    taken = time.monotonic_ns()
                    await asyncio.sleep((hold + random.random() * spread) / 1000)
                    rows.append((task, taken, time.monotonic_ns()))
            if time.monotonic_ns() >= end:
                return
            turn += 1
            ended[task] = turn
            if rest:
                await asyncio.sleep(rest / 1000)

    running = [asyncio.ensure_future(turns(task)) for task in range(tasks)]
    await asyncio.sleep(max(0, end - time.monotonic_ns()) / 1e9)
    took, count = time.monotonic_ns() - start, sum(ended)
    await asyncio.gather(*running)
    return took, count


async def look_on(count):
    await asyncio.sleep(1)
    ready()
    start = time.monotonic_ns()
    await asyncio.sleep(seconds)
    finish(time.monotonic_ns() - start, count())


async def main():
    locks = (await tenure.aconnect(f"redis://127.0.0.1:{port}")).configured(ttl=ttl / 1000)
    if action == "turns":
        if not hold:
            await turns_for(locks, 0.5)
        ready()
        finish(*await turns_for(locks, seconds))
    elif action == "wait":
        held = await locks.mutex("peers:0:0").alock()
        got = []

        async def waits():
            got.append(await locks.mutex("peers:0:0").alock())

        waiting = [asyncio.ensure_future(waits()) for _ in range(tasks)]
        await look_on(lambda: len(got))
        for task in waiting:
            task.cancel()
        await held.arelease()
    else:
        kept = [await locks.mutex(f"peers:{task}:0").alock() for task in range(tasks)]
        await look_on(lambda: len(kept))


asyncio.run(main())
