/// <reference lib="esnext.disposable" preserve="true" />
export { log, type Level, type LogEvent } from "./engine.js";
export { BusyError, LostError, TenureError, type Code } from "./errors.js";
export { Guard, MultiGuard, RwGuard, Term, Turn } from "./guards.js";
export { connect, Lock, Locks, open, quorum, ReentrantMutex, RwLock, Semaphore, type Options, type Wait } from "./locks.js";
export type { Time } from "./native.js";
export type * from "./reports.js";
export {
  Absent, Cache, cron, daily, Election, monthly, Observer, OncePer, Uncached, weekly,
  type At, type CacheOptions, type FillOptions, type JobOptions, type Period, type Repeated, type Run, type Schedule,
} from "./uses.js";
