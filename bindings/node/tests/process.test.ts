import assert from "node:assert/strict";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { Worker } from "node:worker_threads";
import * as tenure from "tenure";
import { directory, eventually, Program, Redis } from "./servers.js";

let number = 0;
const name = (): string => `lock-${process.pid}-${number++}`;
/** Locks `lock` for so long that only a release frees it within the test. */
const holds = (lock: string, ttl = "10m") => `const locks = await tenure.connect(url, { opTimeout: "20s" });
  const guard = await locks.mutex("${lock}", { ttl: "${ttl}" }).lock(); console.log("held");`;

describe("processes and threads", { concurrency: true }, () => {
  let redis: Redis, locks: tenure.Locks;
  before(async () => {
    redis = await Redis.start();
    locks = await tenure.connect(redis.url, { opTimeout: "20s" });
  });
  after(() => locks.close());
  const isFree = async (lock: string) => (await locks.inspect(lock)) === null;

  it("a_killed_holder_loses_its_lock_with_its_lease", async () => {
    const one = name();
    const program = Program.script(redis.url, holds(one, "500ms"));
    await program.line();
    assert.equal(await locks.mutex(one).tryLock(), null);
    program.process.kill("SIGKILL");
    await (await locks.mutex(one).lock({ waitMs: 20_000 })).release();
  });

  it("a_blocked_loop_costs_no_lease", async () => {
    const one = name();
    const program = Program.script(redis.url, holds(one, "1s") + `
      const end = Date.now() + 5000; while (Date.now() < end); // five leases
      guard.throwIfLost(); await guard.verify(); console.log(String(guard.fence));`);
    await program.line();
    const fence = (await locks.inspect(one))?.holders[0]?.fence;
    assert.equal(await locks.mutex(one).tryLock({ waitMs: 4000 }), null);
    assert.equal(await program.line(), String(fence));
    program.process.kill("SIGKILL");
  });

  it("an_idle_process_ends_and_a_holder_stays", async () => {
    const one = name();
    await Program.script(redis.url, `await (await tenure.connect(url)).mutex("${one}").run(() => 0);`).success();
    await Program.script(redis.url, `tenure.open(url).mutex("${one}");`).success();
    const started = Date.now();
    await Program.script(redis.url, holds(one) + "setTimeout(() => guard.release(), 1500).unref(); ").ended;
    assert.ok(Date.now() - started >= 1500 && (await isFree(one)), "held until the release");
    // A waiter stays too, until it is granted.
    const guard = await locks.mutex(one).lock();
    const waiting = Program.script(redis.url, `const locks = await tenure.connect(url); console.log("waits");
      locks.mutex("${one}").run(() => console.log("granted"));`);
    await waiting.line();
    await eventually("it waits", async () => ((await locks.inspect(one))?.waiting ?? 1) > 0);
    await guard.release();
    assert.deepEqual(await waiting.success(), ["granted"]);
    // The loss of its lock lets a process end.
    const lost = Program.script(redis.url, holds(one, "1s"));
    await lost.line();
    await locks.forceRelease(one);
    await lost.success();
  });

  for (const [end, script] of Object.entries({
    exit: "process.exit(0);",
    error: "Promise.reject(new Error('mine'));",
    SIGINT: "",
    SIGTERM: "for (;;);", // a blocked loop
  })) {
    it(`the_end_by_${end}_gives_back`, async () => {
      const one = name();
      const program = Program.script(redis.url, holds(one) + script);
      await program.line();
      if (end.startsWith("SIG")) program.process.kill(end as NodeJS.Signals);
      const { code, signal } = await program.ended;
      assert.deepEqual([code, signal], end === "exit" ? [0, null] : end === "error" ? [1, null] : [null, end]);
      assert.ok(await isFree(one));
    });
  }

  it("a_listener_of_the_program_takes_a_signal_over", async () => {
    const one = name();
    for (const order of ["before", "after"]) {
      const listen = 'process.on("SIGINT", async () => { console.log(guard.isHeld()); await guard.release(); process.exit(3); });';
      const source = order === "before" ? `let guard; ${listen}${holds(one).replace("const guard", "guard")}` : holds(one) + listen + 'console.log("ready");';
      const program = Program.script(redis.url, source);
      await program.line();
      if (order === "after") await program.line();
      program.process.kill("SIGINT");
      assert.equal(await program.line(), "true");
      assert.equal((await program.ended).code, 3);
      assert.ok(await isFree(one));
    }
  });

  it("an_exit_ends_waits_too", async () => {
    const one = name();
    const guard = await locks.fairMutex(one).lock();
    const program = Program.script(redis.url, `const locks = await tenure.connect(url); locks.fairMutex("${one}").lock(); console.log("waits");
      process.stdin.once("data", () => process.exit(0));`);
    await program.line();
    await eventually("it waits", async () => (await locks.inspect(one))?.waiting === 1);
    program.go();
    await program.ended;
    assert.equal((await locks.inspect(one))?.waiting, 0);
    await guard.release();
  });

  const WORKER = `
    const { parentPort, workerData } = require("node:worker_threads");
    const { readFileSync, writeFileSync } = require("node:fs");
    const tenure = require("tenure");
    (async () => {
      const locks = await tenure.connect(workerData.url, { opTimeout: "20s" });
      for (let turn = 0; turn < 25; turn++) {
        await locks.mutex(workerData.lock).run(() => writeFileSync(workerData.file, String(Number(readFileSync(workerData.file)) + 1)));
      }
      if (workerData.holds) await locks.mutex(workerData.holds, { ttl: "10m" }).lock();
      parentPort.postMessage("done");
    })();`;
  const worker = (data: object) => new Worker(WORKER, { eval: true, workerData: { url: redis.url, ...data } });
  const said = (one: Worker) => new Promise((resolve, reject) => one.once("message", resolve).once("error", reject));

  it("worker_threads_exclude_each_other_on_one_engine", async () => {
    const file = join(directory(), "counter"), lock = name();
    writeFileSync(file, "0");
    const own = await Redis.start();
    const workers = Array.from({ length: 4 }, () => worker({ url: own.url, lock, file, holds: name() }));
    await Promise.all(workers.map(said));
    assert.equal(readFileSync(file, "utf8"), "100");
    const clients = (await own.ask("CLIENT LIST")).match(/ addr=/g)?.length ?? 0;
    assert.ok(clients <= 4, `${clients} connections for 4 threads`); // one asks
    await Promise.all(workers.map((one) => one.terminate()));
  });

  it("a_terminated_worker_gives_back_and_waits_no_more", async () => {
    const file = join(directory(), "counter");
    for (let round = 0; round < 5; round++) {
      const held = name();
      writeFileSync(file, "0");
      const one = worker({ lock: name(), file, holds: held });
      await said(one);
      assert.equal(await locks.mutex(held).tryLock(), null);
      await one.terminate();
      await (await locks.mutex(held).lock({ waitMs: 20_000 })).release();
    }
    // In the midst of its calls.
    writeFileSync(file, "0");
    const lock = name();
    for (let round = 0; round < 5; round++) {
      const one = worker({ lock, file });
      await eventually("it works", () => Number(readFileSync(file)) > round * 3 || Number(readFileSync(file)) % 25 === 24);
      await one.terminate();
      await (await locks.mutex(lock).lock({ waitMs: 20_000 })).release();
    }
  });

  it("a_worker_that_is_terminated_while_it_is_granted_locks_keeps_none", async () => {
    const source = `
      const { parentPort, workerData } = require("node:worker_threads");
      const tenure = require("tenure");
      (async () => {
        const locks = await tenure.connect(workerData.url, { opTimeout: "20s" });
        const short = locks.with({ ttl: "1s" });
        const all = Array.from({ length: 300 }, (_, at) => short.mutex(workerData.lock + at).lock());
        parentPort.postMessage(await all[0]?.name);
      })();`;
    const url = `file:${directory()}/locks`, granted = await tenure.connect(url);
    for (let round = 0; round < 4; round++) {
      const one = new Worker(source, { eval: true, workerData: { url, lock: name() } });
      await said(one);
      await one.terminate();
      await eventually("all are free", async () => (await granted.list().next()).done);
    }
    await granted.close();
  });

  it("a_worker_alone_loads_and_unloads_the_addon", async () => {
    const source = `const { Worker } = require("node:worker_threads");
      (async () => { for (let round = 0; round < 10; round++) {
        const code = 'const tenure = require("tenure"); tenure.connect("memory:").then((locks) => locks.mutex("a").lock()).then(() => process.exit(0))';
        const worker = new Worker(code, { eval: true });
        await new Promise((resolve, reject) => worker.once("exit", resolve).once("error", reject));
      }
      console.log("unloaded"); })();`;
    assert.deepEqual(await new Program([process.execPath, "-e", source]).success(), ["unloaded"]);
  });

  it("workers_of_a_cluster_exclude_each_other", async () => {
    const file = join(directory(), "counter"), script = join(directory(), "cluster.cjs"), lock = name();
    writeFileSync(file, "0");
    writeFileSync(script, `const cluster = require("node:cluster");
      const { readFileSync, writeFileSync } = require("node:fs");
      const tenure = require(${JSON.stringify(require.resolve("tenure"))});
      if (cluster.isPrimary) for (let at = 0; at < 3; at++) cluster.fork();
      else (async () => {
        const locks = await tenure.connect("${redis.url}", { opTimeout: "20s" });
        for (let turn = 0; turn < 20; turn++) {
          await locks.mutex("${lock}").run(() => writeFileSync("${file}", String(Number(readFileSync("${file}")) + 1)));
        }
        cluster.worker.disconnect();
      })();`);
    await new Program([process.execPath, script]).success();
    assert.equal(readFileSync(file, "utf8"), "60");
  });

  it("a_listener_of_events_that_throws_loses_no_result", async () => {
    const program = Program.script("memory:", `process.on("uncaughtException", (error) => (uncaught = error));
      let uncaught;
      tenure.log("trace", () => { throw new Error("mine"); });
      const locks = await tenure.connect(url);
      setTimeout(() => process.exit(1), 20_000).unref();
      await (await locks.mutex("a").lock()).release();
      for (; uncaught === undefined; await sleep(1));
      console.log(uncaught.message);`);
    assert.deepEqual(await program.success(), ["mine"]);
  });

  it("20000_dropped_guards_are_given_back", async () => {
    const program = Program.script("memory:", `const locks = await tenure.connect(url);
      const held = () => Number(/^tenure_held\\{[^}]*\\} (\\d+)/m.exec(locks.prometheus())?.[1] ?? NaN);
      let most = 0;
      for (let batch = 0; batch < 20; batch++) {
        await Promise.all(Array.from({ length: 1000 }, (_, at) => locks.mutex(batch + ":" + at).lock().then(() => 0)));
        most = Math.max(most, held());
        gc();
      }
      for (let waited = 0; held() > 0 && waited < 1000; waited++) { gc(); await sleep(10); }
      await locks.flush();
      console.log(most > 0, held(), await locks.inspect("0:0"));`, "--expose-gc");
    assert.deepEqual(await program.success(), ["true 0 null"]);
  });

  it("both_systems_of_modules_share_one_implementation", async () => {
    const source = `import { createRequire } from "node:module"; import { connect } from "tenure"; import tenure from "tenure";
      const required = createRequire(process.cwd() + "/")("tenure");
      console.log(required.connect === connect, tenure.Guard === required.Guard, required.default === required);`;
    assert.deepEqual(await new Program([process.execPath, "--input-type=module", "-e", source]).success(), ["true true true"]);
  });
});

it("the_package_has_types_for_both_systems", () => {
  const manifest = createRequire(__filename)("tenure/package.json");
  for (const { types, default: file } of Object.values<{ types: string; default: string }>(manifest.exports["."])) {
    for (const part of [types, file]) assert.ok(existsSync(join(__dirname, "../package", part)), part);
  }
});
