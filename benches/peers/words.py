"""The arguments of the Python sides of `scripts/peers`, and the lines that they print: see src/main.rs."""

import json
import os
import sys

side, action = sys.argv[1:3]
port, seconds, tasks, share, ttl, hold, spread, rest = map(int, sys.argv[3:])
rows = []  # the task, and the times of its grant and release


def say(line):
    print(line, flush=True)


def ready():
    say("ready")
    if not sys.stdin.readline():
        os._exit(1)


def finish(took, turns):
    say(json.dumps({"seconds": took / 1e9, "turns": turns, "lost": 0, "rows": rows}))
    sys.stdin.readline()  # scripts/peers reads /proc until then
