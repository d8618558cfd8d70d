// Builds the package in a folder: `node build.mjs FOLDER [PROFILE]`. Needs a Rust toolchain, and the packages of
// package.json in FOLDER/node_modules, or above. CARGO_TARGET_DIR says where Cargo works, and TENURE_FEATURES adds stores.
import { execFileSync } from "node:child_process";
import { appendFileSync, cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const [folder, profile = "dist"] = process.argv.slice(2);
if (folder === undefined) throw new Error("usage: node build.mjs FOLDER [PROFILE]");
const out = resolve(folder, "package");
const target = resolve(process.env.CARGO_TARGET_DIR ?? join(here, "target"));

/** Builds the addon; Cargo's macros write its types. */
function addon() {
  const types = join(target, "types");
  mkdirSync(types, { recursive: true });
  const features = process.env.TENURE_FEATURES ? ["--features", process.env.TENURE_FEATURES] : [];
  // For musl, as in install.mjs.
  const musl = `target.'cfg(target_env="musl")'.rustflags=["-C", "target-feature=-crt-static"]`;
  const build = ["build", "--quiet", "--locked", "--profile", profile, "--manifest-path", join(here, "Cargo.toml"), "--config", musl, ...features];
  execFileSync("cargo", build, { stdio: "inherit", env: { ...process.env, CARGO_TARGET_DIR: target, NAPI_TYPE_DEF_TMP_FOLDER: types } });
  const name = { darwin: "libtenure_node.dylib", win32: "tenure_node.dll" }[process.platform] ?? "libtenure_node.so";
  return { file: join(target, profile === "dev" ? "debug" : profile, name), types: join(types, "tenure-node") };
}

/** The types of the addon, from lines of JSON: a class has its methods in lines of their own. */
function declarations(file) {
  const all = readFileSync(file, "utf8").split("\n").filter(Boolean).map((line) => JSON.parse(line));
  const methods = (name) => all.filter((one) => one.kind === "impl" && one.name === name).map((one) => one.def).join("\n");
  const text = all.map(({ kind, name, def, js_doc = "" }) => {
    if (kind === "struct") return `${js_doc}export declare class ${name} {\n${def}\n${methods(name)}\n}`;
    if (kind === "interface") return `${js_doc}export interface ${name} {\n${def}\n}`;
    return kind === "fn" ? `${js_doc}export declare ${def}` : "";
  });
  const time = '/** Milliseconds, or a text such as `500ms`, `2s`, `15m`, `1h` or `1d`. */\nexport type Time = number | string;';
  return [time, ...text].filter(Boolean).join("\n\n") + "\n";
}

const { file, types } = addon();
for (const old of ["dist", "build", "ts"]) rmSync(join(out, old), { recursive: true, force: true });
mkdirSync(join(out, "dist"), { recursive: true });
mkdirSync(join(out, "build"));
cpSync(file, join(out, "build/tenure.node"));
for (const part of ["package.json", "README.md", "install.mjs", "docs"]) cpSync(join(here, part), join(out, part), { recursive: true });
for (const licence of ["LICENSE-APACHE", "LICENSE-MIT"]) cpSync(join(here, "../..", licence), join(out, licence));

// The sources are compiled beside the types of the addon.
cpSync(join(here, "ts"), join(out, "ts"), { recursive: true });
for (const part of ["ts", "dist"]) writeFileSync(join(out, part, "native.d.ts"), declarations(types));
const tsc = createRequire(join(resolve(folder), "package.json")).resolve("typescript/bin/tsc");
const options = ["--rootDir", join(out, "ts"), "--outDir", join(out, "dist"), "--typeRoots", join(resolve(folder), "node_modules/@types")];
writeFileSync(join(out, "ts/tsconfig.json"), readFileSync(join(here, "tsconfig.json")));
execFileSync(process.execPath, [tsc, "--project", join(out, "ts"), ...options], { stdio: "inherit" });
rmSync(join(out, "ts"), { recursive: true });

// A default import that a compiler has turned into `require`.
appendFileSync(join(out, "dist/index.js"), "exports.default = exports;\n");
appendFileSync(join(out, "dist/index.d.ts"), 'declare const self: typeof import("./index.js");\nexport default self;\n');
// One implementation for both systems of modules, so that a process has one engine.
writeFileSync(join(out, "dist/index.mjs"), 'import tenure from "./index.js";\nexport * from "./index.js";\nexport default tenure;\n');
writeFileSync(join(out, "dist/index.d.mts"), 'import * as tenure from "./index.js";\nexport * from "./index.js";\nexport default tenure;\n');
