import { AsyncResource } from "node:async_hooks";
import { constants } from "node:os";
import { join } from "node:path";
import { isMainThread } from "node:worker_threads";
import { checked, errorOf, TenureError, type Failure } from "./errors.js";
import type * as Native from "./native.js";

// Node 20 may lack it, and `await using` is compiled to it.
if (Symbol.asyncDispose === undefined) Object.defineProperty(Symbol, "asyncDispose", { value: Symbol("Symbol.asyncDispose") });

/** An event of the library: a message with fields. */
export interface LogEvent {
  level: "error" | "warn" | "info" | "debug" | "trace";
  message: string;
  [field: string]: string;
}

export type Level = LogEvent["level"] | "off";

function load(): typeof Native {
  const { platform, arch } = process;
  const files = ["build/tenure.node", ...["gnu", "musl", ""].map((libc) => `prebuilds/${platform}-${arch}${libc && "-"}${libc}/tenure.node`)];
  let last: unknown;
  for (const file of files) {
    try {
      return require(join(__dirname, "..", file));
    } catch (error) {
      if (last === undefined || (error as { code?: string }).code !== "MODULE_NOT_FOUND") last = error;
    }
  }
  throw new TenureError("unsupported", `no addon for ${platform}-${arch}: run \`npm rebuild tenure\` with a Rust toolchain`, { cause: last });
}

export const native: typeof Native = load();

/** How long the end of the process waits for releases. */
const EXIT_MS = 2000;
/** How often a process that holds a lock checks whether it still does. */
const CHECK_MS = 1000;
// What a message is, as in the addon.
const DONE = 0, ASKED = 2, EVENT = 3;

interface Call {
  resolve: (value: any) => void;
  reject: (error: unknown) => void;
  isQuiet: boolean;
  answer: Answer | undefined;
  thrown: { error: unknown } | undefined;
  forget: (() => void) | undefined;
  /** What the call is about, such as a guard, which must not be collected meanwhile. */
  about: unknown;
}

/** Answers a question of the library: a value as bytes, and how long it is to be kept. */
export type Answer = (what: string, fence: bigint | null) => Promise<{ bytes?: Buffer; ttl?: Native.Time } | undefined>;

export interface CallOptions {
  signal?: AbortSignal | undefined;
  answer?: Answer;
  /** The call keeps no process alive. */
  isQuiet?: boolean;
  /** On an abort, the call is answered rather than cancelled. */
  endsByAnswer?: boolean;
}

const calls = new Map<number, Call>();
let loud = 0; // calls that keep the process alive
let last = 0;
let isAwake = false;
let busyAt = -Infinity; // when a loud call or a hold was last seen
let listener: ((event: LogEvent) => void) | undefined;

export const channel = checked(() => new native.Channel(drain));
const timer = setInterval(settle, CHECK_MS).unref();

/** Keeps the process alive while it waits for a call or holds a lock. */
function settle(): void {
  const isBusy = loud > 0 || channel.isHolding();
  if (isBusy) busyAt = performance.now();
  // The end of a hold is told a moment later, by a call that keeps no process alive.
  const awake = isBusy || (calls.size > 0 && performance.now() - busyAt < CHECK_MS);
  if (awake !== isAwake) {
    isAwake = awake;
    if (awake) timer.ref();
    else timer.unref();
  }
}

function drain(): void {
  const all = channel.drain();
  for (let at = 0; at < all.length; at += 3) receive(all[at], all[at + 1], all[at + 2]);
  settle();
}

function receive(id: number, kind: number, value: any): void {
  if (kind === EVENT) return tell(value);
  const call = calls.get(id);
  if (call === undefined) {
    // Cancelled after it was done.
    if (value instanceof native.Hold) value.giveBack();
  } else if (kind === ASKED) {
    void reply(id, call, value[0], value[1]);
  } else {
    end(id, call);
    if (kind === DONE) call.resolve(value);
    else call.reject(call.thrown === undefined ? errorOf(value as Failure) : call.thrown.error);
  }
}

function end(id: number, call: Call): void {
  calls.delete(id);
  if (!call.isQuiet) loud -= 1;
  call.forget?.();
}

async function reply(id: number, call: Call, what: string, fence: bigint | null): Promise<void> {
  try {
    const { bytes, ttl } = (await call.answer?.(what, fence)) ?? {};
    checked(() => channel.answer(id, bytes, ttl));
  } catch (error) {
    call.thrown = { error };
    channel.refuse(id);
  }
}

/** Starts a call of the addon, whose result arrives on the channel. */
export function start<T>(begin: (id: number) => void, options: CallOptions = {}): Promise<T> {
  const { answer } = options, signal = options.signal ?? undefined;
  if (signal !== undefined && !(signal instanceof AbortSignal)) {
    return Promise.reject(new TenureError("invalid", `signal: got ${String(signal)}, expected an AbortSignal`));
  }
  if (signal?.aborted && !options.endsByAnswer) return Promise.reject(signal.reason);
  return new Promise<T>((resolve, reject) => {
    do last = (last + 1) >>> 0 || 1;
    while (calls.has(last));
    const id = last;
    checked(() => begin(id));
    const isQuiet = options.isQuiet ?? false;
    const call: Call = { resolve, reject, isQuiet, answer: answer && AsyncResource.bind(answer), thrown: undefined, forget: undefined, about: isQuiet ? undefined : begin };
    calls.set(id, call);
    if (!isQuiet) loud += 1;
    if (!isAwake) settle();
    if (signal !== undefined) {
      const abort = () => {
        if (options.endsByAnswer) return channel.answer(id);
        end(id, call);
        channel.cancel(id);
        reject(signal.reason);
      };
      if (signal.aborted) abort();
      signal.addEventListener("abort", abort, { once: true });
      call.forget = () => signal.removeEventListener("abort", abort);
    }
  });
}

function tell(event: LogEvent): void {
  // One that throws must not keep the messages behind the event.
  if (listener !== undefined) return queueMicrotask(listener.bind(undefined, event));
  const { level: _, message, ...fields } = event;
  const details = Object.entries(fields).map(([name, value]) => ` ${name}=${value}`);
  process.emitWarning(message + details.join(""), "TenureWarning");
}

/**
 * Calls `listen` with each event of the library from this level on. Without a listener, warnings and errors are
 * warnings of the process. Events are those of the whole process; they go to the thread that loaded the package first.
 */
export function log(level: Level, listen?: (event: LogEvent) => void): void {
  checked(() => native.setLogLevel(level));
  listener = listen;
}

let isCatching = false;

/** Releases all locks before a signal ends the process, unless the program listens for that signal. */
export function catchSignals(): void {
  if (isCatching || !isMainThread) return;
  isCatching = true;
  const unheard = (["SIGINT", "SIGTERM", "SIGHUP"] as const).filter((signal) => process.listenerCount(signal) === 0);
  native.releaseOnSignals?.(unheard.map((signal) => constants.signals[signal]), EXIT_MS);
}

// All threads end with the main one.
process.on("exit", () => channel.close(EXIT_MS, isMainThread));
