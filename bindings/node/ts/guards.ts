import { errorOf, LostError, optionsOf, TenureError, type Failure } from "./errors.js";
import { start } from "./engine.js";
import type { Hold, Time } from "./native.js";
import type { StopRequest } from "./reports.js";

/** The loss of a hold, as a signal and a promise. Refers to no hold, so that a dropped guard is collected. */
function lossOf(end: Promise<Failure | null>): { signal: AbortSignal; ended: Promise<LostError | null> } {
  const controller = new AbortController();
  const ended = end.then((failure) => {
    const error = failure === null ? null : errorOf(failure);
    if (error !== null) controller.abort(error);
    return error as LostError | null;
  }, () => null);
  return { signal: controller.signal, ended };
}

/**
 * A held lock. It is released by `release`, at the end of an `await using` block, or when it is collected.
 *
 * While it lives, the library renews its lease on a thread of its own, also while the event loop is blocked.
 */
export class Guard {
  #loss: ReturnType<typeof lossOf> | undefined;

  /** @internal */
  constructor(/** @internal */ readonly hold: Hold) {}

  /** The name of the lock, without the prefix. */
  get name(): string {
    return this.hold.name;
  }

  /** The fencing token: larger than that of every earlier grant of this name. */
  get fence(): bigint {
    return this.hold.fences[0] as bigint;
  }

  /** The owner, as others see it: `user/label@host:pid/id`. */
  get owner(): string {
    return this.hold.owner;
  }

  #lost(): ReturnType<typeof lossOf> {
    return (this.#loss ??= lossOf(start((id) => this.hold.ended(id), { isQuiet: true })));
  }

  /** Fires with a `LostError` as its reason if the lock is lost. */
  get signal(): AbortSignal {
    return this.#lost().signal;
  }

  /** Resolves with why the lock was lost, or with `null` once it is released. */
  get ended(): Promise<LostError | null> {
    return this.#lost().ended;
  }

  /** Calls `listener` with the reason if the lock is lost, also if that was before. */
  on(_event: "lost", listener: (reason: LostError) => void): this {
    void this.ended.then((reason) => reason && listener(reason));
    return this;
  }

  /** Whether the lock is still held, as far as can be known without a request. */
  isHeld(): boolean {
    return this.hold.isHeld();
  }

  /** Milliseconds until the lock would be lost if no further renewal succeeded. */
  remaining(): number {
    return this.hold.remaining();
  }

  /** Throws the `LostError` if the lock is lost, for code that blocks the event loop. Asks nobody: see `verify`. */
  throwIfLost(): void {
    const failure: Failure | null = this.hold.loss();
    if (failure !== null) throw errorOf(failure);
  }

  /** Asks the store whether the lock is still held, for use right before a write that cannot be fenced. */
  verify(): Promise<void> {
    return start((id) => this.hold.verify(id));
  }

  /** Extends the lease to a full ttl from now. Needed only with `renew: false`. */
  renew(): Promise<void> {
    return start((id) => this.hold.renew(id));
  }

  /** @internal */
  change<T>(what: string, text?: string, time?: Time): Promise<T> {
    return start((id) => this.hold.change(id, what, text, time));
  }

  /** Releases the lock. Rejects with a `LostError` if it was no longer held, so that another client may have held it. */
  release(): Promise<void> {
    return this.change("release");
  }

  /** Gives up the guard without releasing the lock, and returns the owner, for `Locks.resume` in another process. */
  detach(): Promise<string> {
    return this.change("detach");
  }

  /** Gives up the guard but keeps the lock taken for this time, so that work is not repeated at once. */
  keepFor(time: Time): Promise<void> {
    return this.change("keep", undefined, time);
  }

  /** Resolves when the holder is asked to stop, or with `null` once the lock is released or lost. */
  stopRequested(): Promise<StopRequest | null> {
    return start((id) => this.hold.stopRequested(id), { isQuiet: true });
  }

  /** @internal Ends the hold unless that is done. A request without an answer goes on in the background. */
  async finish(what: "release" | "fail", why?: string): Promise<void> {
    if (this.hold.isReleased()) return;
    await this.change(what, why).catch((error: unknown) => {
      if (!(error instanceof TenureError) || error.code === "lost") throw error;
    });
  }

  /** Releases the lock unless that is done. A release without an answer goes on in the background. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.finish("release");
  }
}

/** A held side of a read-write lock. */
export class RwGuard extends Guard {
  /** Makes a writer or an upgradeable reader a reader. No other writer can hold in between. */
  downgrade(): Promise<void> {
    return this.change("downgrade");
  }

  /** Makes an upgradeable reader the writer once the other readers have left; false after `waitMs`. */
  async upgrade(options: { waitMs?: Time } = {}): Promise<boolean> {
    return this.change("upgrade", undefined, optionsOf(options, ["waitMs"]).waitMs);
  }
}

/** Several held locks. The loss of one is the loss of all. */
export class MultiGuard extends Guard {
  /** The fencing token of each lock, in the order in which the locks were given. There is none of all. */
  get fences(): bigint[] {
    return this.hold.fences;
  }

  override get fence(): bigint {
    throw new TenureError("unsupported", "several locks have a token each: use `fences`", { lock: this.name });
  }
}

/** A leader's term. */
export class Term extends Guard {
  /** Changes the leader's payload. */
  update(payload: string): Promise<void> {
    return this.change("update", payload);
  }
}

/** A run of a job. A release is its success. */
export class Turn extends Guard {
  /** The start and the end of the window, by the clock of the store. */
  get window(): { start: Date; end: Date } {
    const [from, to] = this.hold.window ?? [0, 0];
    return { start: new Date(from), end: new Date(to) };
  }

  /** How many milliseconds after the start of its window the run began, by the clock of the store. */
  get lateBy(): number {
    return this.hold.window?.[2] ?? 0;
  }

  /** Ends the run as failed. */
  fail(why: unknown): Promise<void> {
    return this.change("fail", textOf(why));
  }

  /** Ends the run as failed, unless it has been released: a block that throws does not reach its `release`. */
  override [Symbol.asyncDispose](): Promise<void> {
    return this.finish("fail", "the block ended without a release");
  }
}

function textOf(why: unknown): string {
  try {
    return String(why instanceof Error ? why.message : why);
  } catch {
    return "its message cannot be shown";
  }
}

/**
 * Does the work under a guard, and releases it. `guard.signal` fires at a loss, and when `signal` does. The guard stays
 * until the work has ended, which should heed the signal.
 */
export async function held<T, G extends Guard>(guard: G, work: (guard: G) => T | PromiseLike<T>, signal?: AbortSignal): Promise<T> {
  let value: T;
  try {
    if (signal !== undefined) Object.defineProperty(guard, "signal", { value: AbortSignal.any([guard.signal, signal]) });
    value = await work(guard);
  } catch (error) {
    const failure: Failure | null = guard.hold.loss();
    await guard.finish("fail", textOf(error)).catch(() => {});
    if (failure === null || error instanceof LostError) throw error;
    throw new LostError("lost", failure.message, { ...failure, cause: error });
  }
  try {
    await guard.finish("release");
  } catch (error) {
    if (error instanceof LostError) error.value = value;
    throw error;
  }
  return value;
}

/** Does the work under each guard that `next` gets, until that is `null`. */
export async function heldEach<G extends Guard>(
  next: () => Promise<G | null>, work: (guard: G) => unknown, onError: (error: unknown) => void, signal?: AbortSignal,
): Promise<void> {
  for (let guard; (guard = await next()) !== null; ) await held(guard, work, signal).catch(onError);
}

/** The guard of a hold, or `null` for a busy lock. */
export async function granted<G extends Guard>(kind: new (hold: Hold) => G, asked: Promise<Hold | null>): Promise<G | null> {
  const hold = await asked;
  return hold === null ? null : new kind(hold);
}
