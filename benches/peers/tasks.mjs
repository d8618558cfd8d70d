// The Node sides of `scripts/peers`: tenure's package, and redlock on one connection of ioredis.
// Arguments and protocol as in src/main.rs; default settings, except that waiters never give up.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const require = createRequire(process.env.PEERS_NODE + "/"); // the directory of node_modules
const [, , side, action] = process.argv;
const [port, seconds, tasks, share, ttl, hold, spread, rest] = process.argv.slice(4).map(Number);
const rows = []; // the task, and the times of its grant and release
let turns = 0, lost = 0;

// `acquire` waits and returns what has a `release`; `keep` holds for ever, and counts losses.
async function locksOf(side) {
  if (side === "tenure node") {
    const locks = await require("tenure").connect(`redis://127.0.0.1:${port}`, { ttl });
    const keep = async (key) => (await locks.mutex(key).lock()).on("lost", () => lost++);
    return { acquire: (key) => locks.mutex(key).lock(), keep };
  }
  const { Redis } = require("ioredis");
  const Redlock = require("redlock").default;
  const redlock = new Redlock([new Redis({ host: "127.0.0.1", port })], { retryCount: -1 });
  redlock.on("error", () => {}); // emitted for each attempt on a held key
  const keep = (key) => new Promise((resolve) => {
    const held = (signal) => {
      resolve();
      signal.addEventListener("abort", () => lost++);
      return new Promise(() => {});
    };
    redlock.using([key], ttl, held).catch(() => lost++);
  });
  return { acquire: (key) => redlock.acquire([key], ttl), keep };
}

const locks = await locksOf(side);
const kept = []; // so that no guard is collected
const now = () => Number(process.hrtime.bigint());
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const say = (line) => new Promise((done) => process.stdout.write(line + "\n", done));
const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

async function ready() {
  await say("ready");
  if ((await input.next()).done) process.exit(1);
}

async function finish(took) {
  await say(JSON.stringify({ seconds: took / 1e9, turns, lost, rows }));
  await input.next(); // scripts/peers reads /proc until then
  process.exit(0);
}

// Each task locks, holds, unlocks and rests until the time is over; returns the time taken.
async function turnsFor(seconds) {
  const start = now(), end = start + seconds * 1e9;
  turns = 0;
  const work = async (task) => {
    for (let turn = 0; ; turn++) {
      const lock = await locks.acquire(`peers:${Math.floor(task / share)}:${hold ? 0 : turn % 256}`);
      if (hold) {
        const taken = now();
        await sleep(hold + Math.random() * spread);
        rows.push([task, taken, now()]);
      }
      await lock.release();
      if (now() >= end) return;
      turns++;
      if (rest) await sleep(rest);
    }
  };
  for (let task = 0; task < tasks; task++) work(task); // an error in any task ends the run
  await sleep(Math.max(0, end - now()) / 1e6);
  return now() - start;
}

async function lookOn() {
  await sleep(1000);
  await ready();
  const start = now();
  await sleep(seconds * 1000);
  await finish(now() - start);
}

if (action === "turns") {
  if (!hold) await turnsFor(0.5);
  await ready();
  await finish(await turnsFor(seconds));
} else if (action === "wait") {
  kept.push(await locks.acquire("peers:0:0"));
  for (let task = 0; task < tasks; task++) locks.acquire("peers:0:0").then(() => turns++);
  await lookOn();
} else {
  const all = Array.from({ length: tasks }, (_, task) => locks.keep(`peers:${task}:0`));
  kept.push(...(await Promise.all(all)));
  turns = kept.length;
  await lookOn();
}
