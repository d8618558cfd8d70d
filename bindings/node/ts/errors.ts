/** The kind of an error as one word, as in the library's `ErrorKind`, and a few of this package. */
export type Code =
  | "lost" | "busy" | "unreachable" | "overdue" | "unknown" | "refused" | "mismatch" | "unsupported" | "invalid"
  | "released" | "closed";

/** What the addon tells of an error. */
export interface Failure {
  code: Code;
  message: string;
  lock: string | null;
  store: string | null;
}

/** An error of the library. Its message is the same as in Rust, Python and the command. */
export class TenureError extends Error {
  override name = "TenureError";
  /** The kind, stable between versions. */
  readonly code: Code;
  /** The lock concerned. */
  readonly lock: string | null;
  /** The URL of the store concerned, without credentials. */
  readonly store: string | null;

  constructor(code: Code, message: string, options: { lock?: string | null; store?: string | null; cause?: unknown } = {}) {
    super(message, "cause" in options ? { cause: options.cause } : undefined);
    this.code = code;
    this.lock = options.lock ?? null;
    this.store = options.store ?? null;
  }
}

/** The lock is no longer held: its lease expired, another client took it, or the store lost it. */
export class LostError extends TenureError {
  override name = "LostError";
  /** What the work returned that ran under the lock, if it ended. */
  value: unknown = undefined;
}

/** Another client held the lock until the end of the wait. */
export class BusyError extends TenureError {
  override name = "BusyError";
}

export function errorOf(failure: Failure): TenureError {
  const kind = failure.code === "lost" ? LostError : TenureError;
  return new kind(failure.code, failure.message, failure);
}

/** Calls the addon, whose errors have a code. */
export function checked<T>(call: () => T): T {
  try {
    return call();
  } catch (error) {
    if (error instanceof Error && "code" in error && !(error instanceof TenureError)) {
      const code = /^[a-z]+$/.test(String(error.code)) ? (error.code as Code) : "invalid";
      throw new TenureError(code, error.message);
    }
    throw error;
  }
}

/** Refuses a number that the addon would round or cut. */
export function whole(what: string, number: number): number {
  if (Number.isInteger(number) && number >>> 0 === number) return number;
  throw new TenureError("invalid", `${what}: got ${String(number)}, expected a whole number below 2^32`);
}

/** Milliseconds, or a text such as `500ms`, `2s`, `15m`, `1h` or `1d`. */
export type Time = number | string;

const UNITS: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };

export function millis(what: string, time: Time): number {
  const [, number, unit] = typeof time === "string" ? (/^(\d+(?:\.\d+)?)\s*(ms|[smhdw])$/.exec(time) ?? []) : [];
  const value = unit === undefined ? time : Number(number) * (UNITS[unit] as number);
  if (typeof value !== "number" || !(value >= 0)) {
    throw new TenureError("invalid", `${what}: got ${String(time)}, expected milliseconds or a text such as "15s"`);
  }
  return value;
}

/** Options of the addon whose times may be texts. */
export type Timed<T, K> = { [P in keyof T]: P extends K ? Time : T[P] };

/** Options as the addon takes them: times are milliseconds. */
type Plain<T> = { [K in keyof T]: Time extends T[K] ? Exclude<T[K], string> : T[K] };

/** The name that shares most pairs of letters with a misspelt one. */
function nearest(to: string, names: readonly string[]): string {
  const pairs = (name: string) => Array.from(name.toLowerCase(), (_, at) => name.toLowerCase().slice(at, at + 2));
  const shared = (name: string) => pairs(name).filter((pair) => pairs(to).includes(pair)).length;
  return names.reduce((best, name) => (shared(name) > shared(best) ? name : best));
}

/** Reads options. Refuses unknown names, because a misspelt limit of a wait would be none. */
export function optionsOf<T extends object>(given: T, others: readonly (keyof T & string)[], times: readonly (keyof T & string)[] = []): Plain<T> {
  if (typeof given !== "object" || given === null) throw new TenureError("invalid", `options: got ${String(given)}, expected an object`);
  const names: string[] = [...times, ...others], all = Object.entries(given).filter(([, value]) => value !== undefined);
  const unknown = all.find(([name]) => !names.includes(name))?.[0];
  if (unknown !== undefined) throw new TenureError("invalid", `option ${unknown}: expected one of ${names.join(", ")}; did you mean ${nearest(unknown, names)}?`);
  const isTime = (name: string) => names.indexOf(name) < times.length;
  return Object.fromEntries(all.map(([name, value]) => [name, isTime(name) ? millis(name, value) : value])) as Plain<T>;
}
