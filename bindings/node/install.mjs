// Builds the addon if the package has none that loads here.
import { execFileSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));

function loads() {
  try {
    createRequire(import.meta.url)("./dist/index.js");
    return true;
  } catch {
    return false;
  }
}

if (existsSync(join(here, "dist")) && !loads()) {
  const target = join(here, "native/target");
  const manifest = join(here, "native/bindings/node/Cargo.toml");
  console.log(`tenure: no addon for ${process.platform}-${process.arch}, so Cargo builds one`);
  const features = process.env.TENURE_FEATURES ? ["--features", process.env.TENURE_FEATURES] : [];
  try {
    // For musl, Rust would otherwise link libc statically, and then makes no addon.
    const musl = `target.'cfg(target_env="musl")'.rustflags=["-C", "target-feature=-crt-static"]`;
    const build = ["build", "--locked", "--profile", "dist", "--manifest-path", manifest, "--target-dir", target, "--config", musl, ...features];
    execFileSync("cargo", build, { stdio: "inherit" });
  } catch (error) {
    console.error(`tenure: it needs a Rust toolchain (rustc 1.89 or later): ${error.message}`);
    process.exit(1);
  }
  const name = { darwin: "libtenure_node.dylib", win32: "tenure_node.dll" }[process.platform] ?? "libtenure_node.so";
  mkdirSync(join(here, "build"), { recursive: true });
  cpSync(join(target, "dist", name), join(here, "build/tenure.node"));
}
