// Times are milliseconds since 1970, durations milliseconds.

/** A holder of a lock, or a waiter. */
export interface Holder {
  /** As `user/label@host:pid/id`; `null` for a lock of another program. */
  owner: string | null;
  user: string | null;
  host: string | null;
  pid: number | null;
  label: string | null;
  /** What the store has for the holder. */
  value: Uint8Array;
  fence: bigint;
  /** The rest of the lease, if the store tells it. */
  remaining: number | null;
  /** When the owner began to ask for the lock. */
  since: number | null;
  share: "whole" | "holds" | "reader" | "upgradeable" | "writer" | "permits" | "unknown";
  /** Of `holds` and `permits`. */
  count: number;
}

/** The state of a lock. */
export interface Status {
  name: string;
  kind: "mutex" | "reentrant" | "fair" | "rwlock" | "semaphore";
  permits: number | null;
  holders: Holder[];
  waiters: Holder[];
  /** How many waiters the report leaves out. */
  unlisted: number;
  /** How many wait, if the store can tell. */
  waiting: number | null;
  /** The program that holds the lock, if it is another one. */
  foreign: string | null;
}

/** A request to a holder to stop. */
export interface StopRequest {
  by: string;
  reason: string;
}

/** What a forced release found: `other` if somebody else holds the lock, and the state before. */
export interface ForcedRelease {
  kind: "free" | "ended" | "other";
  status: Status | null;
}

/** The leader of an election. */
export interface Leader {
  payload: string;
  fence: bigint;
  owner: string;
}

/** The state of an election. */
export interface ElectionStatus {
  name: string;
  leader: Leader | null;
  /** The hold of the leader, with its lease. */
  hold: Holder | null;
  /** The candidates that wait, in order. */
  candidates: Holder[];
  /** How many candidates the report leaves out. */
  unlisted: number;
}

/** A change of leadership. */
export interface Change {
  kind: "elected" | "updated" | "resigned" | "missed" | "rewritten";
  leader: Leader | null;
  /** How many changes passed unseen. */
  missed: number;
}

/** One of the last runs of a job. */
export interface PastRun {
  begun: number;
  ended: number | null;
  fence: bigint;
  outcome: "running" | "done" | "failed" | "lost";
  /** Why it failed. */
  why: string | null;
  /** The exit code of a command. */
  code: number | null;
  host: string;
}

/** The most recent run of a job. */
export interface LastRun extends Omit<PastRun, "host"> {
  window: [number, number];
  owner: string;
  /** The rest of the runner's lease. */
  remaining: number | null;
  /** When a run last succeeded. */
  succeeded: number | null;
  /** Whether the job may run now. */
  isOpen: boolean;
}

/** A job, with its last runs. */
export interface JobStatus {
  name: string;
  /** The windows as text, if the job recorded them. */
  schedule: string | null;
  last: LastRun;
  runs: PastRun[];
  /** When its next window begins. */
  next: number;
  /** For how long a run is overdue. */
  overdue: number | null;
}
