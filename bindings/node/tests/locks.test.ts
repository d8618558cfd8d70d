import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import * as tenure from "tenure";
import { directory, eventually, postgres, Redis } from "./servers.js";

let number = 0;
const name = (): string => `lock-${process.pid}-${number++}`;
const code = (code: string) => (error: unknown) => error instanceof tenure.TenureError && error.code === code;

const STORES = {
  redis: async () => (await Redis.start()).url,
  postgres,
  file: async () => `file:${directory()}/locks`,
};

for (const [store, start] of Object.entries(STORES)) {
  describe(store, { concurrency: true }, () => { // most of the time they wait
    let locks: tenure.Locks, others: tenure.Locks;
    before(async () => {
      const url = await start();
      locks = await tenure.connect(url, { opTimeout: "20s" }); // a busy machine may take long to answer
      others = locks.with({ label: "others" });
    });
    after(() => locks.close());

    it("whatever_the_work_throws_the_lock_is_released", async () => {
      const one = name();
      const odd = Object.assign(new Error("x"), { message: { code: 42 } });
      const mute = { toString() { throw new Error("mute"); } };
      for (const thrown of [odd, 404, Object.create(null), mute, null, undefined]) {
        await assert.rejects(locks.mutex(one).run(() => { throw thrown; }), (error) => error === thrown);
        assert.equal(await others.inspect(one), null);
      }
    });

    it("a_mutex_excludes_and_its_token_rises", async () => {
      const one = name();
      const guard = await locks.mutex(one, { label: "from Node" }).lock();
      assert.equal(await others.mutex(one).tryLock(), null);
      const status = await locks.inspect(one);
      assert.equal(status?.holders[0]?.owner, guard.owner);
      assert.equal(status?.holders[0]?.label, "from Node");
      // Redis keeps no token with a hold by plain commands, which are used right after another grant.
      assert.ok([guard.fence, 0n].includes(status?.holders[0]?.fence ?? -1n));
      await guard.release();
      const again = await others.mutex(one).tryLock();
      assert.ok(again !== null && again.fence > guard.fence);
      await again.release();
      assert.equal(await locks.inspect(one), null);
      await assert.rejects(again.release(), code("released"));
    });

    it("a_wait_ends_busy_or_granted", async () => {
      const one = name();
      const guard = await locks.mutex(one).lock();
      await assert.rejects(others.mutex(one).lock({ waitMs: 1000 }), code("busy"));
      await assert.rejects(others.mutex(one).lock({ waitMs: "1s" }), tenure.BusyError);
      assert.equal(await others.mutex(one).tryLock({ waitMs: 1000 }), null);
      const waiting = others.mutex(one).lock();
      await guard.release();
      await (await waiting).release();
    });

    it("run_and_await_using_release_also_after_failures", async () => {
      const one = name();
      assert.equal(await locks.mutex(one).run(async (guard) => guard.isHeld()), true);
      await assert.rejects(locks.mutex(one).run(() => Promise.reject(new RangeError("mine"))), RangeError);
      {
        await using guard = await locks.mutex(one).lock({ waitMs: 2000 });
        assert.equal(await others.mutex(one).tryLock(), null);
        assert.ok(guard.remaining() > 0);
      }
      const failed = async () => {
        await using _ = await locks.mutex(one).lock();
        throw new RangeError("mine");
      };
      await assert.rejects(failed, RangeError);
      assert.equal(await locks.inspect(one), null);
    });

    it("all_kinds_keep_their_rules", async () => {
      const fair = name(), own = name(), shared = name(), slots = name(), pair = [name(), name()];
      await using _fair = await locks.fairMutex(fair).lock();
      assert.equal(await others.fairMutex(fair).tryLock(), null);

      const mine = locks.reentrantMutex(own);
      await using _first = await mine.lock();
      await using _second = await mine.lock();
      assert.equal(await mine.holdCount(), 2);
      assert.equal(await locks.reentrantMutex(own).tryLock(), null);

      const reader = await locks.rwlock(shared).read.lock();
      assert.equal(await others.rwlock(shared).write.tryLock(), null);
      const upgradeable = await locks.rwlock(shared).upgradeable.lock();
      assert.equal(await upgradeable.upgrade({ waitMs: 1000 }), false);
      await reader.release();
      assert.equal(await upgradeable.upgrade(), true);
      assert.equal(await others.rwlock(shared).read.tryLock(), null);
      await upgradeable.downgrade();
      await (await others.rwlock(shared).read.lock()).release();
      await assert.rejects(upgradeable.upgrade(), code("invalid"));
      assert.ok(upgradeable.isHeld(), "a refused change keeps the guard");
      await upgradeable.release();

      const semaphore = locks.semaphore(slots, 3);
      assert.equal(semaphore.permits, 3);
      await using _two = await semaphore.many(2).lock();
      await using _one = await semaphore.lock();
      assert.equal(await semaphore.tryLock(), null);
      await assert.rejects(locks.semaphore(slots, 4).lock(), code("mismatch"));

      await using both = await locks.multi(...pair).lock();
      assert.equal(both.fences.length, 2);
      assert.throws(() => both.fence, code("unsupported"));
      assert.equal(await others.mutex(pair[1] as string).tryLock(), null);
    });

    it("a_multi_lock_keeps_the_store_and_options_of_each_part", async () => {
      const one = name(), two = name(), elsewhere = await tenure.connect("memory:");
      const there = locks.with({ prefix: "there:" });
      const both = await locks.multi(there.mutex(one), elsewhere.mutex(two, { maxHold: "1h" }), locks.multi(one + "x")).lock();
      assert.equal(await there.mutex(one).tryLock(), null);
      assert.equal(await elsewhere.mutex(two).tryLock(), null);
      await using _free = await locks.mutex(one).lock();
      await using _other = await locks.mutex(two).lock();
      assert.equal(both.fences.length, 3);
      const asked = both.stopRequested();
      assert.equal((await there.requestStop(one, "why"))?.name, one);
      assert.equal((await asked)?.reason, "why");
      const unasked = both.stopRequested();
      await elsewhere.close();
      assert.equal(await unasked, null);
      assert.equal(both.isHeld(), false);
      await (await there.mutex(one).lock({ waitMs: 20_000 })).release();
    });

    it("a_change_keeps_the_hold_and_its_waits", async () => {
      const shared = locks.rwlock(name()), one = name();
      const reader = await shared.read.lock();
      const guard = await shared.upgradeable.lock();
      const upgrade = guard.upgrade();
      await eventually("the writer comes first", async () => {
        const next = await others.rwlock(shared.name).read.tryLock();
        await next?.release();
        return next === null;
      });
      assert.ok(guard.isHeld() && guard.remaining() > 0);
      guard.throwIfLost();
      await reader.release();
      assert.equal(await upgrade, true);
      await guard.release();
      assert.deepEqual([guard.isHeld(), guard.remaining(), await guard.ended], [false, 0, null]);

      await using term = await locks.election(one).campaign();
      const asked = term.stopRequested();
      for (const payload of ["a", "b"]) await term.update(payload);
      await locks.election(one).requestStop("why");
      assert.equal((await asked)?.reason, "why");
      const unasked = term.stopRequested();
      await term.release();
      assert.equal(await unasked, null);
    });

    it("a_loss_fires_the_signal_and_ends_the_run", async () => {
      const one = name();
      const heard: tenure.LostError[] = [];
      const run = locks.mutex(one, { ttl: "1s" }).run(async (guard) => {
        guard.on("lost", (reason) => heard.push(reason));
        const forced = await others.forceRelease(one, { owner: guard.owner });
        assert.equal(forced.kind, "ended");
        await new Promise((fired) => guard.signal.addEventListener("abort", fired, { once: true }));
        assert.throws(() => guard.throwIfLost(), tenure.LostError);
        assert.ok(guard.signal.reason instanceof tenure.LostError);
        assert.equal(await new Promise((told) => guard.on("lost", told)), guard.signal.reason, "also afterwards");
        return "late";
      });
      await assert.rejects(run, (error) => error instanceof tenure.LostError && error.value === "late" && error.lock === one);
      assert.equal(heard.length, 1);
      const abort = new AbortController();
      await locks.mutex(one).run(async (guard) => {
        guard.on("lost", (reason) => heard.push(reason));
        abort.abort();
        await guard.verify();
      }, { signal: abort.signal });
      assert.equal(heard.length, 1, "an abort is no loss");
    });

    it("an_abort_at_any_await_leaves_nothing", async () => {
      const one = name();
      const turns = [0, 1, 2, 3, 5, 8, 13, 21, 34, 55];
      for (const free of [true, false]) {
        const holder = free ? null : await locks.mutex(one).lock();
        for (const turn of turns) {
          const abort = new AbortController();
          const reason = new Error("mine");
          const acquired = others.mutex(one).lock({ signal: abort.signal });
          const settled = acquired.then((guard) => guard.release(), (error: unknown) => assert.equal(error, reason));
          // Microtasks, then turns of the loop, then time.
          for (let at = 0; at < Math.min(turn, 3); at++) await null;
          for (let at = 3; at < Math.min(turn, 13); at++) await new Promise(setImmediate);
          if (turn > 13) await sleep(turn / 10);
          abort.abort(reason);
          await settled;
        }
        await holder?.release();
        await eventually("all is given back", async () => (await locks.inspect(one)) === null);
      }
      const abort = new AbortController();
      const run = locks.mutex(one).run(async (guard) => {
        abort.abort(new Error("stop"));
        guard.signal.throwIfAborted();
      }, { signal: abort.signal });
      await assert.rejects(run, /stop/);
      assert.equal(await locks.inspect(one), null);
      await assert.rejects(locks.mutex(one).lock({ signal: AbortSignal.abort(new Error("before")) }), /before/);
    });

    it("one_caller_computes_a_cached_value", async () => {
      const rates = locks.cache<{ rate: number }>(name(), { ttl: "1h" });
      let computed = 0;
      const compute = async () => ({ rate: ++computed });
      assert.equal(await rates.get("eur"), null);
      const all = await Promise.all(Array.from({ length: 20 }, () => rates.get("eur", compute)));
      assert.deepEqual(all, Array.from({ length: 20 }, () => ({ rate: 1 })));
      assert.deepEqual(await rates.get("eur"), { rate: 1 });
      assert.deepEqual(await rates.refresh("eur", compute), { rate: 2 });
      for (const other of [new tenure.Absent("1h"), new tenure.Uncached({ rate: 3 })]) {
        await assert.rejects(rates.refresh("eur", () => other as never), code("invalid"));
      }
      assert.deepEqual(await rates.get("eur"), { rate: 2 });
      await rates.invalidate("eur");
      assert.equal(await rates.get("eur"), null);
      assert.equal(await rates.get("none", () => new tenure.Absent("1h")), null);
      await assert.rejects(rates.get("usd", () => Promise.reject(new RangeError("mine"))), RangeError);
      await assert.rejects(locks.cache(name(), { ttl: 1000 }).get("x", () => new Map([[1, 2]])), code("invalid"));
      const bytes = locks.cache<Uint8Array>(name(), { ttl: 1000, codec: "bytes" });
      assert.deepEqual([...(await bytes.get("x", () => new Uint8Array([1, 2])))], [1, 2]);
      const kept = new Map<string, number>();
      const fill = () => locks.fill(one, () => kept.get("x"), async () => (kept.set("x", 7), 7));
      const one = name();
      assert.deepEqual([await fill(), await fill()], [7, 7]);
    });

    it("a_job_runs_once_per_window", async () => {
      const one = name();
      const job = locks.oncePer(one, tenure.daily({ at: "02:00", zone: "Europe/Berlin" }));
      const ran = await job.run(async (turn) => turn.window.end.getTime() - turn.window.start.getTime());
      assert.ok(ran.ran && ran.value >= 23 * 3_600_000);
      assert.deepEqual(await job.run(() => 1), { ran: false });
      const last = await job.last();
      assert.equal(last?.outcome, "done");
      assert.ok((await locks.jobs(one)).some((found) => found.name === one));
      await job.reset();
      await assert.rejects(job.run(() => Promise.reject(new RangeError("mine"))), RangeError);
      assert.equal((await job.last())?.why, "mine");

      const often = locks.oncePer(name(), "1s"), stop = new AbortController();
      let runs = 0;
      await often.runEach(() => void (++runs === 2 && stop.abort()), { signal: stop.signal });
      assert.equal(runs, 2);
      assert.throws(() => locks.oncePer(one, tenure.daily({ at: "noon" })), code("invalid"));
      assert.throws(() => locks.oncePer(one, "1h", { reopensOn: "never" as any }), code("invalid"));
    });

    it("a_run_that_is_not_released_has_failed", async () => {
      const job = locks.oncePer(name(), tenure.daily()), mine = new RangeError("mine");
      await assert.rejects(job.run(() => 1, { signal: AbortSignal.abort(mine) }), mine);
      assert.equal(await job.last(), null);
      const failed = async () => {
        await using _ = await job.tryBegin();
        throw mine;
      };
      await assert.rejects(failed, mine);
      assert.equal((await job.last())?.outcome, "failed");
      {
        await using turn = await job.tryBegin();
        assert.ok(turn !== null, "a failure reopens the window");
        await turn.release();
      }
      assert.equal((await job.last())?.outcome, "done");
    });

    it("one_candidate_leads", async () => {
      const one = name(), stop = new AbortController();
      const seen: string[] = [];
      const watching = (async () => {
        for await (const change of locks.election(one).observe({ signal: stop.signal })) seen.push(change.kind);
      })();
      const result = await locks.election(one, { payload: "a" }).lead(async (term) => {
        await eventually("it is seen", async () => (await locks.election(one).leader())?.payload === "a");
        const waiting = others.election(one, { payload: "b" }).campaign({ signal: AbortSignal.timeout(50) });
        await assert.rejects(waiting, { name: "TimeoutError" });
        await term.update("c");
        const [status] = await locks.elections(one);
        assert.deepEqual([status?.leader?.payload, status?.leader?.fence, status?.hold?.owner], ["c", term.fence, term.owner]);
        const asked = term.stopRequested();
        assert.equal((await locks.election(one).requestStop("enough"))?.payload, "c");
        return (await asked)?.reason;
      });
      assert.equal(result, "enough");
      assert.equal(await locks.election(one).leader(), null);
      await eventually("the changes are seen", () => seen.includes("resigned") && seen.includes("elected"));
      stop.abort();
      await assert.rejects(watching, { name: "AbortError" });
    });

    it("holds_pass_to_another_program_and_back", async () => {
      const one = name();
      const owner = await (await locks.mutex(one).lock()).detach();
      assert.ok(((await locks.renewDetached(one, owner)) ?? 0) > 0);
      const guard = await others.resume(one, owner);
      assert.ok(guard !== null);
      await guard.verify();
      await guard.renew();
      const asked = guard.stopRequested();
      assert.equal((await locks.requestStop(one, "why"))?.name, one);
      assert.equal((await asked)?.reason, "why");
      await guard.release();
      assert.equal(await others.resume(one, owner), null);
      await (await locks.mutex(one).lock()).keepFor("1s");
      assert.equal(await locks.mutex(one).tryLock(), null);
      const names: string[] = [];
      for await (const status of locks.list(one)) names.push(status.name);
      assert.deepEqual(names, [one]);
      assert.equal((await locks.forceRelease(one))?.name, one);
    });
  });
}

it("invalid_arguments_are_refused_at_once", async () => {
  const locks = await tenure.connect("memory:");
  assert.throws(() => locks.mutex(""), code("invalid"));
  assert.throws(() => locks.mutex("a", { ttl: -1 }), code("invalid"));
  assert.throws(() => locks.mutex("a", { ttl: "soon" }), code("invalid"));
  assert.throws(() => locks.mutex("a", { expires: 1 } as tenure.Options), code("invalid"));
  assert.throws(() => tenure.open("nonsense://x"), (error) => error instanceof tenure.TenureError);
  await assert.rejects(tenure.connect("redis://127.0.0.1:1", { opTimeout: 200, patience: 200 }), code("unreachable"));
});

it("a_wait_without_a_valid_signal_or_limit_leaves_nothing", async () => {
  const locks = await tenure.connect("memory:");
  const wrong: any = { signal: new AbortController() };
  await assert.rejects(locks.mutex("a").lock(wrong), code("invalid"));
  await assert.rejects(locks.mutex("a").run(() => assert.fail("it runs"), wrong), code("invalid"));
  assert.equal(await locks.inspect("a"), null);
  const absent: any = { signal: null, waitMs: null };
  const guard = await locks.mutex("a").lock(absent);
  assert.equal(await locks.mutex("a").tryLock(absent), null);
  await assert.rejects(guard.keepFor(undefined as any), code("invalid"));
  assert.ok(guard.isHeld());
  await guard.release();
});

it("errors_of_every_call_are_of_one_class", async () => {
  const locks = await tenure.connect("memory:");
  const isOurs = (error: unknown) => error instanceof tenure.TenureError && error.code === "invalid";
  assert.throws(() => locks.reentrantMutex("a", { label: "a\nb" }), isOurs);
  const cache = locks.cache("a", { ttl: 1000 });
  await assert.rejects(cache.get("b", () => new tenure.Absent("1 hour")), isOurs);
  // In the command, `1w` is a calendar week.
  assert.throws(() => locks.oncePer("a", "1w"), isOurs);
});

it("the_owner_of_a_reentrant_mutex_has_the_label_of_its_store", async () => {
  const locks = (await tenure.connect("memory:")).with({ label: "shop" });
  await using guard = await locks.reentrantMutex("a").lock();
  assert.equal((await locks.inspect("a"))?.holders[0]?.label, "shop");
  assert.ok(guard.isHeld());
});

it("misspelt_options_are_refused", async () => {
  const locks = await tenure.connect("memory:");
  const misspelt: any = { timeout: 1000 };
  assert.throws(() => locks.mutex("a", misspelt), /option timeout: .*; did you mean opTimeout\?/);
  await assert.rejects(locks.mutex("a").lock(misspelt), code("invalid"));
  await assert.rejects(locks.mutex("a").tryLock(1000 as any), code("invalid"));
  await assert.rejects(locks.rwlock("a").upgradeable.run((guard) => guard.upgrade(misspelt)), code("invalid"));
  await assert.rejects(locks.fill("a", () => 1, () => 1, misspelt), code("invalid"));
  assert.throws(() => locks.cache("a", { ...misspelt, ttl: 1000 }), code("invalid"));
  assert.throws(() => locks.oncePer("a", "1h", misspelt), code("invalid"));
  await assert.rejects(locks.oncePer("a", "1h").run(() => 1, misspelt), code("invalid"));
  await assert.rejects(locks.oncePer("a", "1h").runEach(() => 1, misspelt), code("invalid"));
  assert.throws(() => locks.election("a", misspelt), code("invalid"));
  assert.throws(() => locks.election("a").observe(misspelt), code("invalid"));
  await assert.rejects(locks.election("a").campaign(misspelt), code("invalid"));
  assert.throws(() => tenure.daily(misspelt), code("invalid"));
});

it("numbers_that_are_not_whole_are_refused", async () => {
  const locks = await tenure.connect("memory:");
  for (const number of [2.9, 2 ** 32 + 2, -1, NaN, "2" as any]) {
    assert.throws(() => locks.semaphore("a", number), code("invalid"));
    assert.throws(() => locks.semaphore("a", 3).many(number), code("invalid"));
    await assert.rejects(locks.semaphore("a", 3).setPermits(number), code("invalid"));
    assert.throws(() => locks.cache("a", { ttl: 1000, maxBytes: number }), code("invalid"));
  }
});

it("a_forced_release_of_one_hold_needs_its_owner_or_token", async () => {
  const locks = await tenure.connect("memory:");
  await using guard = await locks.mutex("a").lock();
  for (const only of [{}, { owner: null }, { fence: guard.fence }, { owner: guard.owner, token: guard.fence }, null]) {
    await assert.rejects(locks.forceRelease("a", only as any), code("invalid"));
  }
  await guard.verify();
});

it("changes_of_leadership_are_observed_from_the_call_on", async () => {
  const locks = await tenure.connect("memory:");
  const changes = locks.election("a").observe();
  for (const payload of ["first", "second"]) await locks.election("a", { payload }).lead(() => 0);
  const seen = [];
  for await (const change of changes) if (seen.push(`${change.kind} ${change.leader?.payload}`) === 3) break;
  assert.deepEqual(seen, ["elected first", "resigned first", "elected second"]);
});

it("a_multi_lock_has_a_token_for_each_of_two_locks_of_one_name", async () => {
  const locks = await tenure.connect("memory:"), there = locks.with({ prefix: "there:" });
  await there.mutex("a").run(() => 0);
  await using both = await locks.multi(there.mutex("a"), locks.mutex("a")).lock();
  const held = await Promise.all([there, locks].map((of) => of.inspect("a")));
  assert.deepEqual(both.fences, held.map((status) => status?.holders[0]?.fence));
  assert.equal(new Set(both.fences).size, 2);
});

it("changes_already_made_are_observed_without_a_wait", async () => {
  const locks = await tenure.connect("memory:");
  const changes = locks.election("a").observe();
  assert.equal(await changes.tryNext(), null);
  await locks.election("a", { payload: "first" }).lead(() => 0);
  const seen = [];
  for (let change; (change = await changes.tryNext()) !== null; ) seen.push(change.kind);
  assert.deepEqual(seen, ["elected", "resigned"]);
});

it("a_leader_leads_again_after_a_loss_and_a_failure_until_it_is_stopped", async () => {
  const redis = await Redis.start(), locks = await tenure.connect(redis.url, { ttl: "1s" });
  const election = locks.election("a"), stop = new AbortController();
  const terms: bigint[] = [], failures: unknown[] = [];
  const work = async (term: tenure.Term) => {
    terms.push(term.fence);
    if (terms.length === 1) throw new RangeError("mine");
    if (terms.length === 2) await redis.ask("FLUSHALL");
    else setImmediate(() => stop.abort());
    await new Promise((fired) => term.signal.addEventListener("abort", fired, { once: true }));
  };
  await election.leadForever(work, { signal: stop.signal, onError: (error) => failures.push((error as Error).name) });
  assert.deepEqual(failures, ["RangeError", "LostError"]);
  assert.ok(terms.length === 3 && terms.every((fence, at) => at === 0 || fence > (terms[at - 1] as bigint)));
  assert.equal(await election.leader(), null);
  // A candidate that waits can be stopped too.
  await using _leader = await election.campaign();
  const again = new AbortController(), candidate = election.leadForever(work, { signal: again.signal });
  await eventually("it waits", async () => (await locks.elections("a"))[0]?.candidates.length === 1);
  again.abort();
  await candidate;
  assert.equal(terms.length, 3);
  await locks.close();
});

it("close_ends_waits_and_gives_back", async () => {
  const url = `file:${directory()}/locks`;
  const one = await tenure.connect(url), two = await tenure.connect(url);
  const guard = await one.mutex("a").lock();
  const waiting = assert.rejects(one.with({ label: "x" }).mutex("a").lock(), code("closed"));
  const patient = two.mutex("a").lock();
  await one.close();
  await waiting;
  await (await patient).release();
  assert.equal(guard.isHeld(), false);
  assert.throws(() => one.mutex("a"), code("closed"));
});

it("a_dropped_guard_gives_back", async () => {
  const locks = await tenure.connect("memory:");
  assert.ok(globalThis.gc, "node --expose-gc");
  let end: unknown = "none";
  await (async () => void (await locks.mutex("a").lock()).ended.then((lost) => (end = lost)))();
  await eventually("it is collected", async () => {
    globalThis.gc?.();
    return (await locks.inspect("a")) === null;
  });
  // `ended` keeps no process alive; this wait does.
  await eventually("the guard has ended", () => end !== "none");
  assert.equal(end, null);
});

it("events_reach_the_listener", async () => {
  const events: tenure.LogEvent[] = [];
  tenure.log("trace", (event) => events.push(event));
  const locks = await tenure.connect("memory:");
  await (await locks.mutex("heard").lock()).release();
  await eventually("an event", () => events.some((event) => Object.values(event).some((text) => text.includes("heard"))));
  tenure.log("warn");
  assert.match(locks.prometheus(), /tenure_/);
});
