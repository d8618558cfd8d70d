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

/** The name that shares most pairs of letters with a misspelt one. */
function nearest(to: string, names: readonly string[]): string {
  const pairs = (name: string) => Array.from(name.toLowerCase(), (_, at) => name.toLowerCase().slice(at, at + 2));
  const shared = (name: string) => pairs(name).filter((pair) => pairs(to).includes(pair)).length;
  return names.reduce((best, name) => (shared(name) > shared(best) ? name : best));
}

/** Reads options. Refuses unknown names, because a misspelt limit of a wait would be none. */
export function optionsOf<T extends object>(given: T, names: readonly (keyof T & string)[]): T {
  if (typeof given !== "object" || given === null) throw new TenureError("invalid", `options: got ${String(given)}, expected an object`);
  const all = Object.entries(given).filter(([, value]) => value !== undefined && value !== null);
  const unknown = all.find(([name]) => !(names as readonly string[]).includes(name))?.[0];
  if (unknown !== undefined) throw new TenureError("invalid", `option ${unknown}: expected one of ${names.join(", ")}; did you mean ${nearest(unknown, names)}?`);
  return Object.fromEntries(all) as T;
}
