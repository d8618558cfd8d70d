import { start } from "./engine.js";
import { checked, optionsOf, TenureError } from "./errors.js";
import { granted, held, heldEach, Term, Turn } from "./guards.js";
import type { CacheSpec, Hold, JobSpec, Store, Stream, Time } from "./native.js";
import type { Change, LastRun, Leader } from "./reports.js";

/** How a cache keeps its values. */
export type CacheOptions = Omit<CacheSpec, "name">;

/** How a cache of the program's own is filled. */
export type FillOptions = Pick<CacheOptions, "wait" | "overdue" | "outage">;

/** Returned by a computation if there is no value. Nobody computes again for `ttl`. */
export class Absent {
  constructor(readonly ttl: Time) {}
}

/** Returned by a computation to return a value that is not kept. */
export class Uncached<T> {
  constructor(readonly value: T) {}
}

function encoded(codec: string, value: unknown): Buffer {
  if (codec === "bytes" && value instanceof Uint8Array) return Buffer.from(value);
  if (codec === "text" && typeof value === "string") return Buffer.from(value);
  if (codec === "json") {
    const text: string | undefined = JSON.stringify(value);
    if (text !== undefined && isSame(JSON.parse(text), value)) return Buffer.from(text);
  }
  throw new TenureError("invalid", `codec ${codec}: would change ${Object.prototype.toString.call(value)}; use another codec or other types`);
}

/** Whether JSON gives a value back as it was. */
function isSame(read: any, value: any): boolean {
  if (typeof value !== "object" || value === null) return Object.is(read, value) || (value === 0 && read === 0);
  const isPlain = Array.isArray(value) || [Object.prototype, null].includes(Object.getPrototypeOf(value));
  const names = Object.keys(value).filter((name) => Array.isArray(value) || value[name] !== undefined);
  return isPlain && Array.isArray(read) === Array.isArray(value) && names.every((name) => isSame(read[name], value[name]));
}

const DECODERS = {
  json: (bytes: Buffer): any => JSON.parse(bytes.toString()),
  text: (bytes: Buffer): any => bytes.toString(),
  bytes: (bytes: Buffer): any => bytes,
};

/** Values that one caller in a fleet computes, while the others wait for it. */
export class Cache<T = any> {
  readonly #store: Store;
  readonly #options: CacheOptions;
  readonly #codec: keyof typeof DECODERS;

  /** @internal */
  constructor(store: Store, readonly name: string, options: CacheOptions) {
    this.#store = store;
    this.#options = optionsOf(options, ["ttl", "codec", "stale", "wait", "overdue", "outage", "early", "jitter", "maxBytes"]);
    checked(() => store.checkCache({ ...this.#options, name }));
    this.#codec = options.codec ?? "json";
    if (!(this.#codec in DECODERS)) throw new TenureError("invalid", `codec: got ${this.#codec}, expected json, text or bytes`);
  }

  async #ask(key: string, what: string, compute?: () => unknown): Promise<any> {
    const answer = async () => {
      const value = await compute?.();
      if (what === "refresh" && (value instanceof Absent || value instanceof Uncached)) throw new TenureError("invalid", "refresh: expected a value to store");
      if (value instanceof Absent) return { ttl: value.ttl };
      if (value instanceof Uncached) return { bytes: encoded(this.#codec, value.value) };
      return { bytes: encoded(this.#codec, value), ttl: this.#options.ttl };
    };
    const spec = { ...this.#options, name: `${this.name}:${key}` };
    const bytes: Buffer | null = await start((id) => this.#store.cache(id, spec, what), { answer });
    return bytes === null ? null : DECODERS[this.#codec](bytes);
  }

  /** The stored value, fresh or stale; `null` if there is none. */
  get(key: string): Promise<T | null>;
  /** The value, computed if necessary. `compute` may return `Absent`, and the value is then `null`, or `Uncached`. */
  get<V extends T>(key: string, compute: () => V | Uncached<V> | PromiseLike<V | Uncached<V>>): Promise<V>;
  get<V extends T>(key: string, compute: () => V | Absent | Uncached<V> | PromiseLike<V | Absent | Uncached<V>>): Promise<V | null>;
  get(key: string, compute?: () => unknown): Promise<any> {
    return this.#ask(key, compute === undefined ? "get" : "compute", compute);
  }

  /** Computes and stores the value even if one is stored. */
  refresh<V extends T>(key: string, compute: () => V | PromiseLike<V>): Promise<V> {
    return this.#ask(key, "refresh", compute);
  }

  /** Discards the value; call it after the outdating commit. A computation in progress is not stored. */
  invalidate(key: string): Promise<void> {
    return start((id) => this.#store.cacheInvalidate(id, { ...this.#options, name: `${this.name}:${key}` }));
  }
}

/** The windows of a job: each is of this length, or as `daily`, `weekly`, `monthly` and `cron` return them. */
export type Period = Time | Schedule;

export type Schedule = Pick<JobSpec, "period" | "at" | "expression" | "zone">;

/** When in a day, week or month: a time such as `02:30`, or how long after its start. */
export interface At {
  at?: Time;
  /** The name of a time zone. Default: UTC. */
  zone?: string;
}

/** Once a day. */
export const daily = (at: At = {}): Schedule => ({ period: "daily", ...optionsOf(at, ["at", "zone"]) });
/** Once a week, which begins on Monday. */
export const weekly = (at: At = {}): Schedule => ({ period: "weekly", ...optionsOf(at, ["at", "zone"]) });
/** Once a month. */
export const monthly = (at: At = {}): Schedule => ({ period: "monthly", ...optionsOf(at, ["at", "zone"]) });
/** At the times of a cron expression. */
export const cron = (expression: string, zone: { zone?: string } = {}): Schedule => ({ period: "cron", expression, ...optionsOf(zone, ["zone"]) });

/** How a job repeats. */
export type JobOptions = Pick<JobSpec, "openFor" | "reopensOn" | "again">;

/** Whether a job ran here, and what it returned. */
export type Run<T> = { ran: true; value: T } | { ran: false; value?: undefined };

/** How long work is repeated. */
export interface Repeated {
  /** Ends it. */
  signal?: AbortSignal;
  /** Is told of work that failed. Default: a warning of the process. */
  onError?: (error: unknown) => void;
}

function repeated(what: string, options: Repeated): Repeated & { onError: (error: unknown) => void } {
  const warn = (error: unknown) => process.emitWarning(`${what} failed: ${String(error)}`, "TenureWarning");
  return { onError: warn, ...optionsOf(options, ["signal", "onError"]) };
}

/** A job that runs at most once in each window. The store's clock decides, and the store records that the job ran. */
export class OncePer {
  readonly #store: Store;
  readonly #spec: JobSpec;

  /** @internal */
  constructor(store: Store, readonly name: string, period: Period, options: JobOptions) {
    const schedule = typeof period === "object" ? period : { period: "every", at: period };
    this.#store = store;
    this.#spec = { name, ...schedule, ...optionsOf(options, ["openFor", "reopensOn", "again"]) };
    checked(() => store.checkJob(this.#spec));
  }

  /** Begins a run unless there has been one in this window, or there is one. */
  tryBegin(): Promise<Turn | null> {
    return granted(Turn, start((id) => this.#store.begin(id, this.#spec)));
  }

  /** Runs the job unless it has run in this window. */
  async run<T>(job: (turn: Turn) => T | PromiseLike<T>, options: { signal?: AbortSignal } = {}): Promise<Run<T>> {
    optionsOf(options, ["signal"]).signal?.throwIfAborted();
    const turn = await this.tryBegin();
    return turn === null ? { ran: false } : { ran: true, value: await held(turn, job, options.signal) };
  }

  /** Runs the job in each window until `signal` fires. A run in progress is finished; one that fails goes to `onError`. */
  async runEach(job: (turn: Turn) => unknown, options: Repeated = {}): Promise<void> {
    const { signal, onError } = repeated(`job ${this.name}`, options);
    const begin = () => granted(Turn, start((id) => this.#store.beginNext(id, this.#spec), { signal, endsByAnswer: true }));
    await heldEach(begin, job, onError);
  }

  /** The most recent run. */
  last(): Promise<LastRun | null> {
    return start((id) => this.#store.job(id, this.#spec, "last", ""));
  }

  /** Asks the runner to stop, and returns its run; `null` if the job is not running. */
  requestStop(reason = ""): Promise<LastRun | null> {
    return start((id) => this.#store.job(id, this.#spec, "stop", reason));
  }

  /** Forgets the most recent run, so that the job may run again in this window. */
  reset(): Promise<void> {
    return start((id) => this.#store.job(id, this.#spec, "reset", ""));
  }
}

/** An election of one leader among many candidates. A leader stops before the next one begins. */
export class Election {
  readonly #store: Store;

  /** @internal */
  constructor(store: Store, readonly name: string, readonly payload: string) {
    this.#store = store;
  }

  /** Waits until this process leads. */
  async campaign(options: { signal?: AbortSignal } = {}): Promise<Term> {
    const { signal } = optionsOf(options, ["signal"]);
    return new Term(await start<Hold>((id) => this.#store.campaign(id, this.name, this.payload), { signal }));
  }

  /** Waits until this process leads, does the work with the term, and resigns. */
  async lead<T>(work: (term: Term) => T | PromiseLike<T>, options: { signal?: AbortSignal } = {}): Promise<T> {
    return held(await this.campaign(options), work, options.signal);
  }

  /**
   * Leads again and again until `signal` fires, which `term.signal` passes on. Once the work has ended or failed, this
   * process resigns, and is a candidate again after a second, or up to a minute if its terms are short; after a lost
   * term at once. A store that is away is waited for.
   */
  async leadForever(work: (term: Term) => unknown, options: Repeated = {}): Promise<void> {
    const { signal, onError } = repeated(`leader of ${this.name}`, options), terms = checked(() => this.#store.terms(this.name, this.payload));
    const campaign = () => granted(Term, start((id) => terms.next(id, true), { signal, endsByAnswer: true }));
    await heldEach(campaign, work, onError, signal);
  }

  /** The leader, if there is one now. */
  leader(): Promise<Leader | null> {
    return start((id) => this.#store.leader(id, this.name));
  }

  /** Asks the leader to stop, and returns it; `null` if nobody leads. */
  requestStop(reason = ""): Promise<Leader | null> {
    return start((id) => this.#store.leader(id, this.name, reason));
  }

  /** The changes of leadership from now on, until `signal` fires. The first is the leader at that time, if any. */
  observe(options: { signal?: AbortSignal } = {}): Observer {
    return new Observer(checked(() => this.#store.observe(this.name)), optionsOf(options, ["signal"]).signal);
  }
}

/** The changes of leadership of an election, in order. */
export class Observer implements AsyncIterableIterator<Change> {
  #first: Promise<Change | null> | undefined;

  /** @internal */
  constructor(private readonly changes: Stream, private readonly signal: AbortSignal | undefined) {
    this.#first = this.#ask(false);
    this.#first.catch(() => {}); // it is told by the first call
  }

  #ask(waits: boolean): Promise<Change | null> {
    const first = this.#first;
    this.#first = undefined;
    const next = () => start<Change | null>((id) => this.changes.next(id, waits), { signal: this.signal });
    return first === undefined ? next() : first.then((change) => change ?? next());
  }

  /** The next change that the store has already; `null` if there is none. */
  tryNext(): Promise<Change | null> {
    return this.#ask(false);
  }

  /** Waits for the next change. */
  async next(): Promise<IteratorYieldResult<Change>> {
    return { done: false, value: (await this.#ask(true)) as Change };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }
}
