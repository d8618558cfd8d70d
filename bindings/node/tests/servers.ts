import { execFileSync, spawn, spawnSync, type ChildProcess } from "node:child_process";
import { chownSync, existsSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { connect as dial, createServer, type AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

process.setMaxListeners(0); // one for each server
const ROOT = process.getuid?.() === 0;
const NOBODY = 65534;
const DIES_WITH_US = ["setpriv", "--pdeathsig", "TERM", "--"];

export async function eventually(what: string, condition: () => unknown, ms = 20_000): Promise<void> {
  const end = Date.now() + ms;
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`never: ${what}`);
    await sleep(5);
  }
}

export function directory(): string {
  const path = mkdtempSync(join(tmpdir(), "tenure-node-"));
  process.on("exit", () => rmSync(path, { recursive: true, force: true }));
  return path;
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((listening) => server.once("listening", listening));
  const { port } = server.address() as AddressInfo;
  await new Promise((closed) => server.close(closed));
  return port;
}

function started(words: string[], cwd: string): ChildProcess {
  const child = spawn(words[0] as string, words.slice(1), { cwd, stdio: "ignore" });
  child.on("error", (error) => {
    throw error;
  });
  child.unref();
  process.on("exit", () => child.kill("SIGTERM"));
  return child;
}

/** A Redis server on a free port, which ends with this process. */
export class Redis {
  private constructor(readonly port: number) {}

  get url(): string {
    return `redis://127.0.0.1:${this.port}`;
  }

  static async start(): Promise<Redis> {
    const server = new Redis(await freePort());
    const name = process.env["TENURE_REDIS_SERVER"] ?? "redis-server";
    started([...DIES_WITH_US, name, "--port", String(server.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"], directory());
    await eventually("Redis answers", () => server.ask("PING").catch(() => false));
    return server;
  }

  /** The reply to a command as text. */
  ask(command: string): Promise<string> {
    return new Promise((resolve, reject) => {
      const socket = dial(this.port, "127.0.0.1", () => socket.write(`${command}\r\nQUIT\r\n`));
      let text = "";
      socket.on("data", (data) => (text += data.toString())).on("error", reject).on("close", () => resolve(text));
    });
  }
}

/** PostgreSQL on a socket in a temporary directory, which ends with this process. */
export async function postgres(): Promise<string> {
  const versions = existsSync("/usr/lib/postgresql") ? readdirSync("/usr/lib/postgresql").sort((a, b) => Number(b) - Number(a)) : [];
  const places = [...(process.env["PATH"] ?? "").split(":"), ...versions.map((version) => `/usr/lib/postgresql/${version}/bin`)];
  const programs = places.find((place) => ["initdb", "postgres", "pg_isready"].every((name) => existsSync(join(place, name))));
  if (programs === undefined) throw new Error("no PostgreSQL server; the tests need one: scripts/install-test-needs");
  const place = directory(), data = join(place, "data");
  if (ROOT) chownSync(place, NOBODY, NOBODY);
  const user = ROOT ? ["setpriv", "--reuid", String(NOBODY), "--regid", String(NOBODY), "--clear-groups", "--"] : [];
  const make = [...user, join(programs, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"];
  execFileSync(make[0] as string, make.slice(1), { cwd: place, stdio: "ignore" });
  const port = await freePort();
  started([...user, ...DIES_WITH_US, join(programs, "postgres"), "-D", data, "-k", place, "-h", "127.0.0.1", "-p", String(port), "-F"], place);
  const ready = () => spawnSync(join(programs, "pg_isready"), ["-h", "127.0.0.1", "-p", String(port)]).status === 0;
  await eventually("PostgreSQL answers", ready);
  return `postgres://postgres@127.0.0.1:${port}/postgres`;
}

/** A program in its own process, whose lines a test reads one by one. */
export class Program {
  readonly process: ChildProcess;
  readonly ended: Promise<{ code: number | null; signal: NodeJS.Signals | null }>;
  readonly #lines: AsyncIterator<string>;
  #errors = "";

  constructor(words: string[]) {
    this.process = spawn("setpriv", ["--pdeathsig", "KILL", "--", ...words], { cwd: join(__dirname, ".."), stdio: "pipe" });
    this.process.stderr?.on("data", (data) => (this.#errors += data.toString()));
    this.#lines = createInterface({ input: this.process.stdout as NodeJS.ReadableStream })[Symbol.asyncIterator]();
    this.ended = new Promise((resolve) => this.process.on("close", (code, signal) => resolve({ code, signal })));
  }

  /** Runs a script as a module, with `tenure` and `url` defined. */
  static script(url: string, source: string, ...options: string[]): Program {
    const begin = `import tenure from "tenure"; import { setTimeout as sleep } from "node:timers/promises"; const url = ${JSON.stringify(url)};`;
    return new Program([process.execPath, ...options, "--input-type=module", "-e", begin + source]);
  }

  async line(): Promise<string> {
    const { value, done } = await this.#lines.next();
    if (done) throw new Error(`the program ended: ${this.#errors}`);
    return value;
  }

  go(): void {
    this.process.stdin?.write("go\n");
  }

  /** Waits until it exits successfully, and returns the rest of its output. */
  async success(): Promise<string[]> {
    const lines: string[] = [];
    for (let next = await this.#lines.next(); !next.done; next = await this.#lines.next()) lines.push(next.value);
    const { code, signal } = await this.ended;
    if (code !== 0) throw new Error(`status ${code} ${signal}: ${this.#errors}`);
    return lines;
  }
}
