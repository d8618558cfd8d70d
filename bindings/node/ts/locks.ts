import { catchSignals, channel, native, start } from "./engine.js";
import { BusyError, checked, optionsOf, TenureError } from "./errors.js";
import { granted, Guard, held, MultiGuard, RwGuard } from "./guards.js";
import type { Hold, LockSpec, Store, StoreOptions, Time } from "./native.js";
import type { ElectionStatus, ForcedRelease, JobStatus, Status } from "./reports.js";
import { Cache, Election, OncePer, type CacheOptions, type FillOptions, type JobOptions, type Period } from "./uses.js";

const OPTIONS = [
  "ttl", "renew", "maxHold", "grace", "inheritLiveness", "opTimeout", "patience", "label", "prefix", "unfenced", "groupBy",
] as const;

/** How locks are held. */
export type Options = StoreOptions;

function configured(store: Store, options: Options | undefined): Store {
  return options === undefined ? store : checked(() => store.configured(optionsOf(options, OPTIONS)));
}

/** How long to wait for a lock. */
export interface Wait {
  /** A limit of the wait. Default: none. */
  waitMs?: Time;
  /** Ends the wait, and leaves the queue. */
  signal?: AbortSignal;
}

/** A lock of any kind. */
export class Lock<G extends Guard = Guard> {
  /** @internal */
  constructor(
    /** @internal */ readonly store: Store, /** @internal */ readonly spec: LockSpec | Lock<any>[],
    /** @internal */ readonly guard: new (hold: Hold) => G,
  ) {
    if (!Array.isArray(spec)) checked(() => store.check(spec));
  }

  /** The name, without the prefix. */
  get name(): string {
    return [this.spec].flat().map(({ name }) => name).join(", ");
  }

  async #acquire(options: Wait, limit?: Time): Promise<G | null> {
    const { spec, store } = this, { waitMs: wait = limit, signal } = optionsOf(options, ["signal", "waitMs"]);
    const all = (id: number, parts: Lock[]) => store.lockAll(id, parts.map((part) => part.store), parts.map((part) => part.spec as LockSpec), wait);
    return granted(this.guard, start((id) => (Array.isArray(spec) ? all(id, spec) : store.lock(id, spec, wait)), { signal }));
  }

  /** Waits until the lock is granted. Rejects with a `BusyError` after `waitMs`, and with the reason of `signal`. */
  async lock(options: Wait = {}): Promise<G> {
    const guard = await this.#acquire(options);
    if (guard !== null) return guard;
    const limit = typeof options.waitMs === "number" ? `${options.waitMs} ms` : options.waitMs;
    const message = `lock \`${this.name}\` is busy: it was not granted within ${limit}`;
    throw new BusyError("busy", message, { lock: this.name, store: this.store.url });
  }

  /** Tries once, or waits for at most `waitMs`. Resolves with `null` if the lock is busy. */
  tryLock(options: Wait = {}): Promise<G | null> {
    return this.#acquire(options, 0);
  }

  /**
   * Waits for the lock as `lock` does, does the work, and releases it. `guard.signal` fires if the lock is lost, or
   * when `signal` does. If the lock was lost, it rejects with a `LostError` once the work has ended.
   */
  async run<T>(work: (guard: G) => T | PromiseLike<T>, options: Wait = {}): Promise<T> {
    return held(await this.lock(options), work, options.signal);
  }
}

/** A lock with one owner at a time, who may hold it several times. */
export class ReentrantMutex extends Lock {
  /** How often the owner holds the lock. */
  holdCount(): Promise<number> {
    return start((id) => this.store.holdCount(id, this.spec as LockSpec));
  }
}

/** A lock with many readers or one writer. */
export class RwLock {
  /** The readers. */
  readonly read: Lock<RwGuard>;
  /** One reader beside the others, who may become the writer. */
  readonly upgradeable: Lock<RwGuard>;
  readonly write: Lock<RwGuard>;

  /** @internal */
  constructor(store: Store, readonly name: string) {
    this.read = new Lock(store, { kind: "read", name }, RwGuard);
    this.upgradeable = new Lock(store, { kind: "upgradeable", name }, RwGuard);
    this.write = new Lock(store, { kind: "write", name }, RwGuard);
  }
}

/** A lock with several permits. */
export class Semaphore extends Lock {
  /** The number of permits that this program expects. */
  get permits(): number {
    return (this.spec as LockSpec).permits as number;
  }

  /** Takes this number of permits at once. */
  many(taken: number): Lock {
    return new Lock(this.store, { ...(this.spec as LockSpec), taken }, Guard);
  }

  /** Changes the number of permits for all. */
  async setPermits(permits: number): Promise<void> {
    await start((id) => this.store.setPermits(id, this.name, permits));
  }
}

async function all<T>(listed: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const one of listed) found.push(one);
  return found;
}

/** The locks of a store: see `connect`. */
export class Locks {
  /** @internal */
  constructor(/** @internal */ readonly native: Store) {
    catchSignals();
  }

  /** The URL of the store, without its credentials. */
  get url(): string {
    return checked(() => this.native.url);
  }

  /** The lease in milliseconds. */
  get ttl(): number {
    return checked(() => this.native.ttl);
  }

  /** The same store with changed options. Both are closed together. */
  with(options: Options): Locks {
    return new Locks(configured(this.native, options));
  }

  #one<G extends Guard>(spec: LockSpec, options: Options | undefined, guard: new (hold: Hold) => G): Lock<G> {
    return new Lock(configured(this.native, options), spec, guard);
  }

  /** A lock with one holder at a time. */
  mutex(name: string, options?: Options): Lock {
    return this.#one({ kind: "mutex", name }, options, Guard);
  }

  /** A lock with one holder at a time, first come, first served. */
  fairMutex(name: string, options?: Options): Lock {
    return this.#one({ kind: "fair", name }, options, Guard);
  }

  /** A lock with one owner at a time, who may hold it several times. The owner is this object, unless one is named. */
  reentrantMutex(name: string, { owner, ...options }: Options & { owner?: string } = {}): ReentrantMutex {
    const store = configured(this.native, options), by = owner ?? checked(() => native.newOwner(store.label));
    return new ReentrantMutex(store, { kind: "reentrant", name, owner: by }, Guard);
  }

  /** A lock with many readers or one writer. */
  rwlock(name: string, options?: Options): RwLock {
    return new RwLock(configured(this.native, options), name);
  }

  /** A lock with this number of permits, on which all users of the name must agree. */
  semaphore(name: string, permits: number, options?: Options): Semaphore {
    return new Semaphore(configured(this.native, options), { kind: "permits", name, permits }, Guard);
  }

  /**
   * Several locks, all or none: names of mutexes of this store, and mutexes of any kind, sides of read-write locks and
   * permits, each of its own store and with its options.
   */
  multi(...locks: (string | Lock<any>)[]): Lock<MultiGuard> {
    const parts = locks.flatMap((lock) => (typeof lock === "string" ? this.mutex(lock) : Array.isArray(lock.spec) ? lock.spec : lock));
    return new Lock(this.native, parts, MultiGuard);
  }

  /** Values that one caller computes for a whole fleet, kept in this store. */
  cache<T = any>(name: string, options: CacheOptions): Cache<T> {
    return new Cache(this.native, name, options);
  }

  /**
   * Lets one caller fill a cache of the program's own. Returns what `get` finds or, if that is `null` or `undefined`,
   * what `compute` returns, which must put the value into the cache itself. It gets the fencing token of the lock, or
   * `null` without the lock: after the wait, or in an outage.
   */
  async fill<T>(
    name: string, get: () => T | null | undefined | PromiseLike<T | null | undefined>,
    compute: (fence: bigint | null) => T | PromiseLike<T>, options: FillOptions = {},
  ): Promise<T> {
    let value: T | null | undefined;
    const answer = async (what: string, fence: bigint | null) => {
      value = await (what === "get" ? get() : compute(fence));
      return value === null || value === undefined ? undefined : { bytes: Buffer.alloc(0) };
    };
    const { wait, overdue, outage } = optionsOf(options, ["wait", "overdue", "outage"]);
    await start((id) => this.native.fill(id, name, wait, overdue, outage), { answer });
    return value as T;
  }

  /** A job that runs at most once in each window of a period. */
  oncePer(name: string, period: Period, options: JobOptions = {}): OncePer {
    return new OncePer(this.native, name, period, options);
  }

  /** An election of one leader. The payload tells others how to reach the leader. */
  election(name: string, options: { payload?: string } = {}): Election {
    return new Election(this.native, name, optionsOf(options, ["payload"]).payload ?? "");
  }

  /** The state of a lock with its holders, or `null` if it is free. */
  inspect(name: string): Promise<Status | null> {
    return start((id) => this.native.inspect(id, name));
  }

  async *#listed<T>(what: string, prefix: string): AsyncGenerator<T, void> {
    const listed = checked(() => this.native.list(what, prefix));
    for (let next; (next = await start<T | null>((id) => listed.next(id, true))) !== null; ) yield next;
  }

  /** The held locks whose names begin with `prefix`. It scans the whole store. */
  list(prefix = ""): AsyncGenerator<Status, void> {
    return this.#listed("locks", prefix);
  }

  /** The jobs of `oncePer` that have run and whose names begin with `prefix`. It scans the whole store. */
  jobs(prefix = ""): Promise<JobStatus[]> {
    return all(this.#listed("jobs", prefix));
  }

  /** The elections whose names begin with `prefix`. It scans the whole store. */
  elections(prefix = ""): Promise<ElectionStatus[]> {
    return all(this.#listed("elections", prefix));
  }

  /** Ends all holds of a lock, and returns its holders, or `null`. It breaks exclusion until the holders notice. */
  forceRelease(name: string): Promise<Status | null>;
  /** Ends the hold of this owner, or with this token, and no other. */
  forceRelease(name: string, only: { owner: string } | { token: bigint }): Promise<ForcedRelease>;
  async forceRelease(name: string, only?: { owner?: string; token?: bigint }): Promise<any> {
    const { owner, token } = only === undefined ? {} : optionsOf(only, ["owner", "token"]);
    if (only !== undefined && (owner == null) === (token == null)) throw new TenureError("invalid", "forceRelease: expected one of owner and token");
    return start((id) => this.native.forceRelease(id, name, owner, token));
  }

  /** Removes a string that another program stored as a lock, and returns it; `null` if there is none. */
  forceReleaseForeign(name: string): Promise<Status | null> {
    return start((id) => this.native.forceReleaseForeign(id, name));
  }

  /** Asks the holders of a lock to stop, and returns them; `null` if it is free. See `Guard.stopRequested`. */
  requestStop(name: string, reason = ""): Promise<Status | null> {
    return start((id) => this.native.requestStop(id, name, reason));
  }

  /** Takes over a hold that `Guard.detach` gave up, perhaps in another process; `null` if it has ended. */
  resume(name: string, owner: string): Promise<Guard | null> {
    return granted(Guard, start((id) => this.native.resume(id, name, owner)));
  }

  /** Extends a detached hold to a full ttl, and returns its remaining milliseconds; `null` if it has ended. */
  renewDetached(name: string, owner: string): Promise<number | null> {
    return start((id) => this.native.renewDetached(id, name, owner));
  }

  /** The metrics of this process and store, as Prometheus reads them. */
  prometheus(): string {
    return checked(() => this.native.prometheus());
  }

  /** Checks that the store answers. */
  ping(): Promise<void> {
    return start((id) => this.native.ping(id));
  }

  /** Waits for background releases, for at most `opTimeout`. */
  flush(): Promise<void> {
    return start((id) => this.native.flush(id));
  }

  /** Ends waits, releases all locks taken through these, and waits for the releases. Later calls are refused. */
  close(): Promise<void> {
    return start((id) => this.native.close(id));
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** Opens a store without asking it anything. */
export function open(url: string, options?: Options): Locks {
  return new Locks(configured(checked(() => native.Store.open(channel, url)), options));
}

/** Opens a store, and checks that it answers. Threads of the process that name the same URL share its connections. */
export async function connect(url: string, options?: Options): Promise<Locks> {
  const locks = open(url, options);
  try {
    await locks.ping();
  } catch (error) {
    await locks.close().catch(() => {});
    throw error;
  }
  return locks;
}

/** A majority of independent stores. */
export function quorum(members: Locks[], options?: Options): Locks {
  return new Locks(configured(checked(() => native.Store.quorum(channel, members.map((member) => member.native))), options));
}
