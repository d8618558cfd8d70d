import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { it } from "node:test";
import ts from "typescript";

const PACKAGE = join(__dirname, "../package"), API = join(__dirname, "../../../../crates/tenure/api.txt");
const PAGE = readFileSync(join(PACKAGE, "docs/parity.md"), "utf8");
const ROWS = new Map(Array.from(PAGE.matchAll(/^\| `([*\w:]+)` \| (.*) \|$/gm), ([, row, text]) => [row as string, text as string]));

/** Types of the library whose names differ. */
const CLASSES: Record<string, string> = {
  Mutex: "Lock", FairMutex: "Lock", Multi: "Lock", ReadGuard: "RwGuard", WriteGuard: "RwGuard", UpgradeableGuard: "RwGuard",
};
/** The methods of `MultiGuard` other than those of slices, to which it dereferences. */
const OF_GUARDS = ["release", "run", "run_future", "run_recoverable", "verify", "into_guards", "is_held", "lost", "remaining"];

/** The methods and fields of each type of the library, in this package's spelling. */
function library(): Map<string, Set<string>> {
  const types = new Map<string, Set<string>>();
  for (const line of readFileSync(API, "utf8").split("\n")) {
    const [, kind, name, text] = /^(struct|enum|trait|fn|constant) ([\w:]+): (.*)$/.exec(line) ?? [];
    if (name !== undefined) {
      const fields = kind === "struct" ? Array.from((text as string).matchAll(/pub (\w+):/g), ([, field]) => field as string) : [];
      types.set(name, new Set(fields.map(spelt)));
    } else {
      const [, method] = /^    pub (?:async |const )*fn (\w+)/.exec(line) ?? [];
      const type = [...types.keys()].at(-1) as string;
      if (method !== undefined && (type !== "MultiGuard" || OF_GUARDS.includes(method))) types.get(type)?.add(spelt(method));
    }
  }
  return types;
}

const spelt = (name: string): string => name.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());

/** The members of each type that the package exports, and its functions, which have none. */
function exported(): Map<string, Set<string>> {
  const index = join(PACKAGE, "dist/index.d.ts");
  const program = ts.createProgram([index], { module: ts.ModuleKind.Node16, moduleResolution: ts.ModuleResolutionKind.Node16 });
  const checker = program.getTypeChecker(), module = checker.getSymbolAtLocation(program.getSourceFile(index) as ts.SourceFile);
  const members = (symbol: ts.Symbol) => {
    const meant = symbol.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol;
    return checker.getPropertiesOfType(checker.getDeclaredTypeOfSymbol(meant)).map((property) => property.name);
  };
  return new Map(checker.getExportsOfModule(module as ts.Symbol).map((symbol) => [symbol.name, new Set(members(symbol))]));
}

const types = exported();

it("the_page_names_every_difference", () => {
  const missing: string[] = [], needed = new Set<string>(), known = new Set<string>();
  const need = (rows: string[]) => {
    const row = rows.find((row) => ROWS.has(row));
    if (row === undefined) missing.push(rows[0] as string);
    else needed.add(row);
  };
  for (const [name, members] of library()) {
    known.add(name);
    const own = types.get(CLASSES[name] ?? (name.split("::").at(-1) as string));
    if (own === undefined) need([name]);
    for (const member of members) {
      known.add(`${name}::${member}`);
      if (own !== undefined && !own.has(member)) need([`${name}::${member}`, `*::${member}`]);
    }
  }
  assert.deepEqual(missing, [], "parity.md lacks rows");
  assert.deepEqual([...ROWS.keys()].filter((row) => known.has(row) && !needed.has(row)), [], "parity.md has rows that nothing needs");
});

it("the_page_names_what_the_package_has", () => {
  for (const [row, text] of ROWS) {
    for (const [, type, member] of text.matchAll(/`([A-Z]\w+)(?:\.(\w+))?/g)) {
      assert.ok(types.get(type as string)?.has(member ?? "") || (member === undefined && types.has(type as string)), `${row}: ${type}.${member}`);
    }
    for (const [, name] of text.matchAll(/`tenure\.(\w+)/g)) assert.ok(types.has(name as string), `${row}: ${name}`);
  }
});
