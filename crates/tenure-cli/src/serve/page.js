"use strict";
// Asks for locks.json and draws it. Whatever comes from the store is shown with textContent only.

/** Maximum number of rows. A search finds the others. */
const SHOWN = 1000;
const SVG = "http://www.w3.org/2000/svg";
const find = id => document.getElementById(id);

/** The latest answer, and when it arrived on this page's clock. */
let told = null, arrived = 0, silent = false;
/** Locks and elections by their address, such as `lock/nightly`. */
const entries = new Map();

// --- What is known -------------------------------------------------------------------------------

function merge(answer) {
  told = answer;
  arrived = performance.now();
  const start = answer.looked_ms - answer.span_ms, listed = new Set();
  for (const [kind, all] of [["lock", answer.locks], ["election", answer.elections]]) {
    for (const lock of all) {
      const key = `${kind}/${lock.name}`;
      listed.add(key);
      if (!entries.has(key)) entries.set(key, { key, kind, holds: new Map(), lanes: [], waits: [], row: null });
      const entry = entries.get(key);
      entry.lock = lock;
      record(entry, lock.holds);
      for (const [id, hold] of entry.holds) if (hold.to_ms && hold.to_ms < start) entry.holds.delete(id);
      entry.waits.push(...lock.waits);
      while (entry.waits.length > 1 && entry.waits[1].at_ms < start) entry.waits.shift();
      entry.ordered = [...entry.holds.values()].sort((a, b) => a.from_ms - b.from_ms);
      entry.expired = entry.ordered.filter(hold => hold.end === "lease expired").length;
      entry.first = oldest(lock.holders);
      entry.waiter = oldest(lock.waiters);
      entry.ends = lock.holders.filter(isLate).sort((a, b) => a.left_ms - b.left_ms)[0];
      entry.text = words(entry);
    }
  }
  for (const [key, entry] of entries) {
    if (listed.has(key)) continue;
    entry.row?.remove();
    entries.delete(key);
  }
}

/** Gives each new hold a lane and a shade that stay, and each known one its end. The latest come first. */
function record(entry, holds) {
  const id = hold => `${hold.from_ms} ${hold.token} ${hold.who}`;
  for (const hold of holds) if (entry.holds.has(id(hold))) Object.assign(entry.holds.get(id(hold)), hold);
  for (const hold of holds.toReversed().filter(hold => !entry.holds.has(id(hold)))) {
    const free = entry.lanes.findIndex(last => (last.to_ms ?? Infinity) <= hold.from_ms);
    hold.lane = free >= 0 ? free : entry.lanes.length;
    hold.isOdd = !(entry.lanes[hold.lane]?.isOdd ?? true);
    entry.lanes[hold.lane] = hold;
    entry.holds.set(id(hold), hold);
  }
}

const now = () => told.now_ms + performance.now() - arrived;
const oldest = parties => parties.filter(one => one.since_ms).sort((a, b) => a.since_ms - b.since_ms)[0];
/** Whether less than half of a lease was left at the last look. A holder renews it after a third. */
const isLate = one => one.left_ms !== null && (one.left_ms + told.now_ms - told.looked_ms) * 2 < one.lease_ms;

/** What a search looks through. */
function words({ lock, expired, ends }) {
  const parties = [...lock.holders, ...lock.waiters].map(one => `${one.who} ${one.detail}`);
  const states = [lock.held ? "held" : "free", lock.waiting ? "waiting" : "", expired ? "expired" : "",
    ends ? "not renewed" : ""];
  return [lock.name, lock.kind, ...parties, ...states].join("\n").toLowerCase();
}

// --- Words and elements ----------------------------------------------------------------------------

/** An element such as `span.count`, with texts and elements in it. */
function make(what, ...inside) {
  const [name, ...classes] = what.split("."), one = document.createElement(name);
  if (classes.length) one.className = classes.join(" ");
  one.append(...inside);
  return one;
}

/** Changes a text only if it differs, so that nothing is laid out in vain. */
function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function span(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000)), minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
  if (seconds < 60) return `${seconds}s`;
  if (minutes < 60) return `${minutes}m ${seconds % 60}s`;
  return hours < 24 ? `${hours}h ${minutes % 60}m` : `${Math.floor(hours / 24)}d ${hours % 24}h`;
}

const clock = ms => new Date(ms).toLocaleTimeString([], { hourCycle: "h23" });
/** A time that may be on another day. */
function moment(ms) {
  const at = new Date(ms), isToday = at.toDateString() === new Date(now()).toDateString();
  const day = isToday ? {} : { month: "short", day: "numeric" };
  return at.toLocaleString([], { ...day, hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
}

const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;

function holderOf({ lock }) {
  if (lock.foreign) return `another program, ${lock.foreign}`;
  const [first] = lock.holders;
  if (!first) return "free";
  const detail = first.detail ? `, ${first.detail}` : "";
  return first.who + detail + (lock.held > 1 ? ` and ${lock.held - 1} more` : "");
}

/** For how long a lock has been held or free. */
function lasting({ lock, first, ordered }) {
  const since = lock.held ? first?.since_ms : Math.max(0, ...ordered.map(hold => hold.to_ms ?? 0));
  return since ? `for ${span(now() - since)}` : "";
}

// --- Time lines --------------------------------------------------------------------------------------

function timeline() {
  const svg = document.createElementNS(SVG, "svg");
  svg.classList.add("time");
  svg.setAttribute("role", "img");
  for (const name of ["unknown", "held even", "held odd", "waits", "tick", "halo", "cross"]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", name);
    svg.append(path);
  }
  return svg;
}

/** Draws the holds of the time span in lanes, and the number of waiters below. */
function draw(svg, entry, width, height, most) {
  const { ordered, waits } = entry;
  const end = told.looked_ms, start = end - told.span_ms;
  const x = at => Math.round(Math.min(Math.max((at - start) / told.span_ms, 0), 1) * width * 2) / 2;
  const rect = (left, top, right, bottom) => `M${left} ${top}H${right}V${bottom}H${left}z`;
  const top = 5, floor = height - Math.round(height * .33);
  const lanes = Math.min(most, 1 + Math.max(0, ...ordered.map(hold => hold.lane)));
  const tall = (floor - top) / lanes, d = { even: "", odd: "", tick: "", cross: "" };
  let ticked = -9;
  for (const hold of ordered) {
    const left = x(hold.from_ms), right = x(hold.to_ms ?? end), y = top + Math.min(hold.lane, lanes - 1) * tall;
    d[hold.isOdd ? "odd" : "even"] += rect(left, y, Math.max(right - .5, left + 1), y + tall - 1);
    // Where hand-overs are dense, the alternating shades show them.
    if (hold.end === "handed over" && right - ticked >= 6) {
      d.tick += rect(right - 1, y - 3, right + 1, y + tall + 2);
      ticked = right;
    }
    if (hold.end === "lease expired") {
      const middle = y + tall / 2 - .5, at = Math.min(Math.max(right, 5), width - 5);
      d.cross += `M${at - 4} ${middle - 4}l8 8m0-8l-8 8`;
    }
  }
  const highest = Math.max(4, ...waits.map(wait => wait.waiting)), room = height - floor - 3;
  let area = "", level = 0, from = 0;
  for (const { at_ms, waiting } of [...waits, { at_ms: end, waiting: 0 }]) {
    const at = x(at_ms);
    if (level && at > from) area += rect(from, height - 2 - level, at, height - 2);
    [level, from] = [waiting && Math.max(3, room * waiting / highest), at];
  }
  const known = x(told.started_ms);
  const paths = [known > 0 ? rect(0, top, known, floor - 1) : "", d.even, d.odd, area, d.tick, d.cross, d.cross];
  paths.forEach((path, at) => svg.children[at].setAttribute("d", path));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("aria-label", summary(entry));
}

function summary({ ordered, waits, expired }) {
  const handed = ordered.filter(hold => hold.end === "handed over").length;
  const most = Math.max(0, ...waits.map(wait => wait.waiting)), isKnown = waits.every(wait => wait.waiting !== null);
  return `In 10 minutes ${count(ordered.length, "hold")}, ${count(handed, "hand-over")}, ` +
    `${count(expired, "lease")} expired${isKnown ? `, at most ${most} waiting` : ""}.`;
}

// --- The overview ------------------------------------------------------------------------------------

/** The rows within the window, the only ones whose texts follow the clock. */
const visible = new Set();
const watcher = new IntersectionObserver(changes => {
  for (const { target, isIntersecting } of changes) {
    if (!isIntersecting) visible.delete(target);
    else if (!visible.has(target)) { visible.add(target); refresh(target.entry); }
  }
}, { rootMargin: "100px" });

const address = key => `#${encodeURIComponent(key)}`;

/** Names differ at their ends: a long one is cut in the middle. */
const TAIL = 16;
function writeName(a, name) {
  if (a.title === name) return;
  a.title = name;
  const all = [...name];
  if (all.length < 2 * TAIL) a.replaceChildren(name);
  else a.replaceChildren(make("span.cut", all.slice(0, -TAIL).join("")), make("span.tail", all.slice(-TAIL).join("")));
}

function link(key, name) {
  const a = make("a.cut");
  a.href = address(key);
  writeName(a, name);
  return a;
}

function makeRow(entry) {
  const parts = {
    kind: make("small.cut"), time: timeline(), who: make("span.cut.who"), for: make("small.cut"),
    count: make("span.count"), longest: make("small.cut"), lease: make("span"), bar: make("span"),
  };
  parts.meter = make("span.meter", parts.bar);
  entry.parts = parts;
  parts.waiting = make("div.waiting", parts.count, parts.longest);
  entry.row = make("li.row",
    make("div.name", link(entry.key, entry.lock.name), parts.kind), parts.time,
    make("div.holder", parts.who, parts.for), parts.waiting, make("div.lease", parts.lease, parts.meter));
  entry.row.entry = entry;
  watcher.observe(entry.row);
}

const UNKNOWN = "This store cannot tell how many wait.";
/** Whether the store refuses to tell of it, so that what is shown may be over. */
const isUnread = entry => entry.kind === "election" && told.uses_trouble !== null;
let width = 0;
/** Draws a row anew after an answer. */
function refresh(entry) {
  const { lock, parts, row } = entry;
  row.classList.toggle("free", !lock.held);
  const permits = lock.permits ? `, ${lock.permits.used} of ${lock.permits.all} permits` : "";
  write(parts.kind, (lock.kind ?? "election") + permits);
  const who = isUnread(entry) ? "unknown" : holderOf(entry);
  write(parts.who, who);
  parts.who.title = who;
  parts.waiting.classList.toggle("some", lock.waiting > 0);
  write(parts.count, lock.waiting ? `${lock.waiting} waiting` : entry.kind === "lock" ? lock.waiting ?? "–" : "");
  parts.count.title = entry.kind === "lock" && lock.waiting === null ? UNKNOWN : "";
  width ||= Math.round(parts.time.getBoundingClientRect().width) || 300;
  draw(parts.time, entry, width, 36, 3);
  const [holder] = entry.ends ? [entry.ends] : lock.holders.filter(one => one.left_ms !== null);
  parts.meter.hidden = !holder;
  if (holder) {
    parts.meter.classList.toggle("late", Boolean(entry.ends));
    parts.bar.style.width = `${Math.round(100 * Math.min(1, holder.left_ms / holder.lease_ms))}%`;
  }
  tick(entry);
}

/** Writes what follows the clock. */
function tick(entry) {
  const { lock, parts, waiter, ends } = entry;
  write(parts.for, lasting(entry));
  write(parts.longest, lock.waiting && waiter ? `longest ${span(now() - waiter.since_ms)}` : "");
  const text = ends ? `▲ ends in ${span(left(ends))}` : lock.holders.some(one => one.left_ms !== null) ? "renewed"
    : lock.held && entry.kind === "lock" ? "no end" : "";
  write(parts.lease, text);
  parts.lease.className = ends ? "ends" : "soft";
}

const left = one => one.left_ms - (performance.now() - arrived);

const ORDERS = {
  name: () => 0,
  wait: entry => entry.waiter?.since_ms ?? (entry.lock.waiting ? 8e15 : 9e15),
  hold: entry => entry.first?.since_ms ?? 9e15,
  lease: entry => Math.min(9e15, ...entry.lock.holders.map(one => one.left_ms ?? 9e15)),
};

/** Shows the rows of a list in this order, and moves only those that have to. */
function arrange(list, all) {
  const shown = new Set(all.map(entry => entry.row ?? (makeRow(entry), entry.row)));
  for (const row of [...list.children]) if (row.entry && !shown.has(row)) row.remove();
  let next = list.firstElementChild;
  for (const row of shown) {
    if (row === next) next = next.nextElementSibling;
    else {
      const isNew = !row.isConnected;
      list.insertBefore(row, next);
      if (isNew) refresh(row.entry);
    }
  }
}

function overview() {
  const terms = find("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const key = ORDERS[find("sort").value];
  const locks = [...entries.values()].filter(entry => entry.kind === "lock");
  const found = locks.filter(entry => terms.every(term => entry.text.includes(term)));
  // The server sends locks by name, but a lock that is new here is the last of the map.
  found.sort((a, b) => key(a) - key(b) || (a.lock.name < b.lock.name ? -1 : 1));
  arrange(find("rows"), found.slice(0, SHOWN));
  write(find("note"), found.length > SHOWN ? `and ${found.length - SHOWN} more: search for them`
    : found.length ? "" : locks.length ? "No lock matches the search." : "No lock is held, nor was in the last 10 minutes.");
  drawCards();
}

const counts = ["held", "waiting", "hand-overs/s", "leases expired"].map(name => [name, make("dd")]);
const cards = ["Longest wait", "Longest hold", "Ends next"].map(title => {
  const parts = { big: make("strong"), link: make("a.cut"), small: make("small.cut") };
  parts.card = make("article.card", make("h2", title), parts.big, parts.link, parts.small);
  return parts;
});
find("cards").append(
  make("article.card", make("dl", ...counts.map(([name, value]) => make("div", make("dt", name), value)))),
  ...cards.map(parts => parts.card));

function drawCards() {
  const locks = [...entries.values()].filter(entry => entry.kind === "lock");
  const sum = of => locks.reduce((total, entry) => total + of(entry), 0);
  const waiting = sum(entry => entry.lock.waiting ?? 0), isKnown = locks.every(entry => entry.lock.waiting !== null);
  const numbers = [sum(entry => Number(entry.lock.held > 0)), isKnown ? waiting : waiting ? `${waiting}+` : "–",
    told.handovers_per_second.toFixed(1), sum(entry => entry.expired)];
  counts.forEach(([, element], at) => write(element, String(numbers[at])));
  counts[3][1].className = numbers[3] ? "lost" : "";
  const least = key => locks.reduce((best, entry) => best && key(best) <= key(entry) ? best : entry, null);
  const found = [
    [least(ORDERS.wait), "waiter", one => span(now() - one.since_ms), "", waiting ? "of those without a queue, unknown" : isKnown ? "nobody waits" : "unknown"],
    [least(ORDERS.hold), "first", one => span(now() - one.since_ms), "", "nothing is held"],
    [least(entry => entry.ends?.left_ms ?? 9e15), "ends", one => `in ${span(left(one))}`, "not renewed, ", "every lease is renewed"],
  ];
  found.forEach(([entry, field, big, how, none], at) => {
    const parts = cards[at], one = entry?.[field];
    parts.card.classList.toggle("empty", !one);
    parts.card.classList.toggle("urgent", Boolean(one) && field !== "first");
    write(parts.big, one ? big(one) : "–");
    writeName(parts.link, one ? entry.lock.name : "");
    parts.link.href = one ? address(entry.key) : "#";
    write(parts.small, one ? how + one.who : none);
  });
}

function uses() {
  const elections = [...entries.values()].filter(entry => entry.kind === "election");
  write(find("use-note"), told.uses_trouble ? `Jobs and elections cannot be listed: ${told.uses_trouble}`
    : elections.length + told.jobs.length ? "" : "No job has run, and no candidate has led.");
  arrange(find("use-rows"), elections);
  for (const row of [...find("use-rows").children]) if (!row.entry) row.remove();
  find("use-rows").append(...told.jobs.map(jobRow));
}

const SIGNS = { running: "▶ running", done: "✓ done", failed: "✕ failed", lost: "✕ died or lost its lock" };
const sign = ({ outcome }) => make(outcome === "failed" || outcome === "lost" ? "span.failed" : "span", SIGNS[outcome]);

/** When the job may run again, and why then. */
function next({ outcome, is_open, next_ms }, overdue_ms) {
  const wait = next_ms - now();
  if (overdue_ms !== null) return [`▲ overdue for ${span(-wait)}`, "no run in this window yet"];
  if (is_open || wait <= 0) return ["now", is_open ? "its window is open again" : "no run in this window yet"];
  const retried = outcome === "lost" ? ", or now by --retry-lost" : "";
  return [`in ${span(wait)}`, `next window, from ${moment(next_ms)}${retried}`];
}

function jobRow({ name, schedule, overdue_ms, last }) {
  const run = make("span.cut.wide"), when = make("div.next", told.uses_trouble ? "unknown" : "no run is recorded");
  if (last) {
    run.append(sign(last), `, begun ${span(now() - last.begun_ms)} ago by ${last.who}${last.why && `: ${last.why}`}`);
    const [at, why] = next(last, overdue_ms);
    when.replaceChildren(make(overdue_ms === null ? "span" : "span.failed", at), make("small.cut", why));
  }
  const kind = make("small.cut", schedule ? `job, ${schedule}` : "job");
  return make("li.row.job", make("div.name", link(`job/${name}`, name), kind), run, when);
}

// --- One lock ----------------------------------------------------------------------------------------

/** Characters that a terminal would obey instead of showing them. */
const CONTROLS = "\\0-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069";
const CONTROL = new RegExp(`[${CONTROLS}]`), ESCAPED = new RegExp(`[\\\\'${CONTROLS}]`, "g");

/** A word for a POSIX shell. Control characters are escaped. */
function quoted(word) {
  if (/^[\w@%+=:,./-]+$/.test(word)) return word;
  if (!CONTROL.test(word)) return `'${word.replaceAll("'", "'\\''")}'`;
  const escape = char => char === "\\" || char === "'" ? `\\${char}` : `\\u${char.charCodeAt().toString(16).padStart(4, "0")}`;
  return `$'${word.replace(ESCAPED, escape)}'`;
}

function command(what, verb, name) {
  const prefix = told.prefix ? ["--prefix", told.prefix] : [];
  const line = ["tenure", ...verb, ...[...told.flags, ...prefix].map(quoted), "--", quoted(name)].join(" ");
  const row = make("div.command", make("span", what), make("code", line));
  if (navigator.clipboard) {
    const button = make("button", "Copy");
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(line);
      button.textContent = "Copied";
    });
    row.append(button);
  }
  return row;
}

/** What ends exactly this hold, and no later one. */
function force(one, { foreign }) {
  if (foreign) return ["--foreign"];
  return one.token ? ["--token", String(one.token)] : ["--owner", quoted(one.owner)];
}

/** Draws these commands if they have changed. */
function drawCommands(name, commands) {
  const lines = JSON.stringify([told.flags, commands]);
  if (page.lines === lines) return;
  page.lines = lines;
  const login = told.lacks_login ? [make("p.readout", "Add the login to --store, or set TENURE_STORE.")] : [];
  page.commands.replaceChildren(...commands.map(([what, verb]) => command(what, verb, name)), ...login);
}

let page = null;

const panel = (...inside) => make("section.panel", ...inside);

function openPage(key) {
  const [kind, name] = [key.slice(0, key.indexOf("/")), key.slice(key.indexOf("/") + 1)];
  const back = make("a", kind === "lock" ? "← all locks" : "← jobs and elections");
  back.href = kind === "lock" ? "#" : "#uses";
  page = { key, name, state: make("p"), kind: make("small"), commands: make("div") };
  const title = make("div.title", make("h2", name), page.kind, page.state);
  const commands = panel(make("h3", "Commands"), page.commands);
  if (kind === "job") {
    page.run = make("dl.facts");
    page.runs = make("ol.list");
    find("lock").replaceChildren(back, title, panel(make("h3", "Last run"), page.run),
      panel(make("h3", "Last runs, latest first"), page.runs), commands);
    return;
  }
  Object.assign(page, {
    time: timeline(), readout: make("p.readout"), start: make("span"), middle: make("span"), held: make("h3"),
    queue: make("h3"), holders: make("ol.list"), waiters: make("ol.list"), history: make("ol.list"),
  });
  find("lock").replaceChildren(
    back, title, panel(page.time, make("div.axis", page.start, page.middle, make("span", "now")), page.readout),
    make("div.pair", panel(page.held, page.holders), panel(page.queue, page.waiters)), commands,
    panel(make("h3", "History, latest first"), page.history));
  page.time.addEventListener("pointermove", point);
  page.time.addEventListener("pointerleave", drawPage);
}

/** Names the hold under the pointer. */
function point(event) {
  const entry = entries.get(page.key), box = page.time.getBoundingClientRect();
  const at = told.looked_ms - told.span_ms * (1 - (event.clientX - box.left) / box.width);
  const holds = entry ? entry.ordered.filter(hold => hold.from_ms <= at && (hold.to_ms ?? Infinity) >= at) : [];
  const waiting = entry?.waits.filter(wait => wait.at_ms <= at).at(-1)?.waiting ?? 0;
  const text = holds.map(hold => `${hold.who} since ${clock(hold.from_ms)}${hold.end ? `, ${hold.end} ${clock(hold.to_ms)}` : ""}`);
  write(page.readout, `${clock(at)}: ${text.join("; ") || "free"}${waiting ? `; ${waiting} waiting` : ""}`);
}

function drawJob() {
  const { last, runs = [], schedule, overdue_ms } = told.jobs.find(job => job.name === page.name) ?? {};
  write(page.kind, schedule ? `job, ${schedule}` : "job");
  write(page.state, last ? "" : told.uses_trouble ? "unknown" : "no run is recorded");
  page.runs.replaceChildren(...runs.map(run => make("li",
    make("span.when", moment(run.begun_ms)),
    make("span.who", run.host, make("br"), make("small", run.why.split("\n")[0])),
    make("span.span", run.ended_ms ? span(run.ended_ms - run.begun_ms) : "–"),
    make("span.end", sign(run), run.code === null ? "" : `, code ${run.code}`))));
  const facts = [];
  if (last) {
    const [at, why] = next(last, overdue_ms), ago = ms => `${moment(ms)}, ${span(now() - ms)} ago`;
    facts.push(["Outcome", sign(last)], ["Cause", last.why], ["Begun", ago(last.begun_ms)], ["By", last.who],
      ["Last success", last.succeeded_ms ? ago(last.succeeded_ms) : "none is known"], ["May run", `${at}: ${why}`]);
  }
  const known = facts.filter(([, fact]) => fact);
  page.run.replaceChildren(...known.flatMap(([what, fact]) => [make("dt", what), make("dd", fact)]));
  const stop = last?.outcome === "running" ? [["stop", ["stop", "--job"]]] : [];
  drawCommands(page.name, [["look", ["jobs"]], ...stop]);
}

function drawPage() {
  const kind = page.key.slice(0, page.key.indexOf("/")), entry = entries.get(page.key);
  if (kind === "job") return drawJob();
  const holds = entry?.kind === "lock" ? entry.lock.holders.slice(0, 3) : [];
  drawCommands(page.name, kind === "election"
    ? [["look", ["leader"]], ["follow", ["leader", "--watch"]], ["stop", ["stop", "--election"]]]
    : [["look", ["status"]], ["stop", ["stop"]],
      ...holds.map(one => ["by force", ["release", "--force", ...force(one, entry.lock)]])]);
  if (!entry) {
    write(page.state, "free, and was not held in the last 10 minutes");
    for (const list of [page.holders, page.waiters, page.history]) list.replaceChildren();
    return;
  }
  const { lock, ordered } = entry;
  const more = (list, all) => all > list.length ? [make("li", `and ${all - list.length} more`)] : [];
  write(page.kind, (lock.kind ?? "") + (lock.permits ? `, ${lock.permits.used} of ${lock.permits.all} permits` : ""));
  const waits = lock.waiting === null ? "" : `, ${count(lock.waiting, "waiter")}`;
  write(page.state, isUnread(entry) ? "unknown" : `${lock.held ? "held" : "free"} ${lasting(entry)}${waits}`);
  const wide = Math.round(page.time.getBoundingClientRect().width) || 600;
  draw(page.time, entry, wide, 96, 8);
  if (!page.time.matches(":hover")) write(page.readout, summary(entry));
  write(page.start, clock(told.looked_ms - told.span_ms));
  write(page.middle, clock(told.looked_ms - told.span_ms / 2));
  write(page.held, entry.kind === "election" ? "Leader" : `Held by ${lock.held}`);
  const order = lock.waiters.length ? "Waiting, next first" : "Waiting, in no order";
  write(page.queue, lock.waiting ? `${order}: ${lock.waiting}` : lock.waiting === 0 ? "Nobody waits"
    : entry.kind === "election" ? "Candidates are not shown." : UNKNOWN);
  const since = one => one.since_ms ? `for ${span(now() - one.since_ms)}` : "";
  const ends = one => one.left_ms === null ? entry.kind === "lock" ? "no end" : ""
    : isLate(one) ? `▲ not renewed, ends in ${span(left(one))}` : `lease renewed, ${span(one.left_ms)} left`;
  page.holders.replaceChildren(...lock.holders.map(one => make("li",
    make("span.who", lock.foreign ? holderOf(entry) : one.who, make("br"), make("small",
      [one.detail, one.token ? `token ${one.token}` : "", ends(one)].filter(Boolean).join(", "))),
    make("span.span", since(one)))), ...more(lock.holders, lock.held));
  page.waiters.replaceChildren(...lock.waiters.map((one, at) => make("li",
    make("span.place", `${at + 1}.`), make("span.who", one.who, ...one.detail ? [make("br"), make("small", one.detail)] : []),
    make("span.span", since(one)))), ...lock.waiters.length ? more(lock.waiters, lock.waiting) : []);
  page.history.replaceChildren(...ordered.toReversed().map(hold => make("li",
    make("span.when", clock(hold.from_ms)),
    make("span.who", hold.who, hold.token ? make("small", ` token ${hold.token}`) : ""),
    make("span.span", span((hold.to_ms ?? now()) - hold.from_ms)),
    make(hold.end === "lease expired" ? "span.end.lost" : "span.end",
      hold.end === "lease expired" ? "✕ lease expired" : hold.end ?? "holds"))));
}

// --- The address, keys, and the course of time -------------------------------------------------------

function addressed() {
  try { return decodeURIComponent(location.hash.slice(1)); } catch { return ""; }
}

function state() {
  const ms = now() - told.looked_ms, age = span(ms);
  const trouble = silent ? `tenure serve does not answer: this is ${age} old` : told.trouble ? `${age} old: ${told.trouble}`
    : ms > 2 * Math.max(1000, told.every_ms) ? `${age} old: no refresh since` : "";
  find("state").className = trouble ? "trouble" : "";
  write(find("state"), trouble || `live, every ${Math.round(told.every_ms / 100) / 10} s`);
  write(find("store"), told.store + (told.prefix && `, prefix ${told.prefix}`));
  const { connected = {}, others = [] } = told.versions ?? {};
  const seen = Object.entries(connected).map(([version, count]) => `${version} (${count})`).join(", ");
  find("versions").className = others.length ? "trouble" : "";
  find("versions").title = told.versions_trouble ?? "Clients by version of tenure.";
  write(find("versions"), seen ? `connected: ${seen}` : told.versions_trouble ? "versions connected: unknown" : "");
}

/** Draws all that an answer or another address changes. */
function show() {
  if (!told) return;
  state();
  const key = addressed(), isPage = /^(lock|election|job)\//.test(key), isUses = /^(uses$|election\/|job\/)/.test(key);
  find("overview").hidden = isPage || isUses;
  find("uses").hidden = isPage || !isUses;
  find("lock").hidden = !isPage;
  [...find("tabs").children].forEach((tab, at) => Boolean(at) === isUses ? tab.setAttribute("aria-current", "page") : tab.removeAttribute("aria-current"));
  if (isPage) {
    if (page?.key !== key) openPage(key);
    drawPage();
  } else {
    const from = entries.get(page?.key);
    page = null;
    if (isUses) uses();
    else overview();
    for (const row of visible) refresh(row.entry);
    from?.row?.querySelector("a").focus();
  }
}

function second() {
  if (!told || document.hidden) return;
  state();
  if (page) return;
  drawCards();
  for (const row of visible) tick(row.entry);
}

async function ask() {
  let pause = 2000;
  try {
    const get = async after => (await fetch(`locks.json?after=${after}`)).json();
    let answer = await get(told ? told.looked_ms : 0);
    if (told && answer.started_ms !== told.started_ms) {
      // Another server: its history is a new one.
      for (const entry of entries.values()) entry.row?.remove();
      entries.clear();
      answer = await get(0);
    }
    merge(answer);
    silent = false;
    // Just after the next refresh, or soon if it is late.
    pause = Math.max(1000, told.looked_ms + told.every_ms + 300 - told.now_ms);
  } catch (error) {
    silent = true;
    if (!told) find("state").textContent = "tenure serve does not answer";
  }
  show();
  setTimeout(() => document.hidden ? addEventListener("visibilitychange", ask, { once: true }) : ask(), pause);
}

addEventListener("hashchange", () => { scrollTo(0, 0); show(); });
addEventListener("resize", () => { width = 0; show(); });
find("search").addEventListener("input", show);
find("sort").addEventListener("change", show);
addEventListener("keydown", event => {
  const isTyping = event.target.matches("input, select");
  if (event.key === "/" && !isTyping && !page) {
    find("search").focus();
    event.preventDefault();
  } else if (event.key === "Escape") {
    if (page) location.hash = "";
    else if (find("search").value) { find("search").value = ""; show(); }
    else document.activeElement.blur();
  } else if (["ArrowDown", "ArrowUp"].includes(event.key) && !event.target.matches("select") && !page) {
    const links = [...document.querySelectorAll(".rows a")];
    const at = links.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1);
    if (at >= 0) links[at]?.focus();
    else find("search").focus();
    event.preventDefault();
  }
});
setInterval(second, 1000);
ask();
