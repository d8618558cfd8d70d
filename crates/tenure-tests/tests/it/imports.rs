//! Imports run one way: no files of a crate import each other in a circle, no module of `tenure-core` or
//! `tenure` imports one above it in `CORE` or `FRONT`, and no store depends on another. The picture in
//! book/contribute/architecture.md has the crates only.
//!
//! What counts is each path that begins with `crate`, `super` or `self`, in a `use` or in code.
//! Test modules and comments do not. The `mod.rs` of a folder and the files in the folder are one:
//! it lists them, and has what they share. That of `engine` is a file like the others: the fields of the engine are
//! below it, and what uses it above.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules of a crate, bottom to top. A module may import those of its own row and of earlier rows.
type Layers = &'static [&'static [&'static str]];

const CORE: Layers = &[
    &["events", "moment", "name", "planted", "sync"],
    &["error", "platform", "runtime"],
    &["credentials", "owner", "parse"],
    &["protocol"],
    &["store"],
    &["net", "txn"],
    &["cas", "rows"],
];

const FRONT: Layers = &[
    &["fence", "metrics", "run_error"],
    &["quorum"],
    &["open", "options"],
    &["engine"],
    &["guard", "hold_id", "rwguard"],
    &[
        "fair",
        "handle",
        "locks",
        "multi",
        "mutex",
        "mysql",
        "postgres",
        "reentrant",
        "rwlock",
        "semaphore",
        "status",
        "testing",
        "uses",
    ],
    &["bindings"],
];

/// The crates of the library and its tools, with the minimum number of imports that this test must find in
/// each.
const CRATES: [(&str, usize); 11] = [
    ("tenure", 200),
    ("tenure-cli", 50),
    ("tenure-core", 50),
    ("tenure-etcd", 2),
    ("tenure-file", 20),
    ("tenure-history", 3),
    ("tenure-mysql", 10),
    ("tenure-postgres", 10),
    ("tenure-redis", 40),
    ("tenure-testkit", 50),
    ("tenure-zookeeper", 5),
];

/// The path of a module, without `crate`.
type Module = Vec<String>;

struct Import {
    line: usize,
    path: String,
    to: Module,
}

/// The files of one crate, and what each imports of the others.
struct Imports {
    files: BTreeMap<Module, PathBuf>,
    of: BTreeMap<Module, Vec<Import>>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

impl Imports {
    fn of_crate(name: &str) -> Self {
        let root = root().join(name).join("src");
        let mut files = BTreeMap::new();
        find(&root, &mut Vec::new(), &mut files);
        let text = |path: &PathBuf| fs::read_to_string(path).expect("a source file");
        let texts = files.iter().map(|(module, path)| (module.clone(), text(path))).collect();
        Self::of_texts(files, &texts)
    }

    fn of_texts(files: BTreeMap<Module, PathBuf>, texts: &BTreeMap<Module, String>) -> Self {
        let of = texts.iter().map(|(module, text)| (module.clone(), imports(module, text, &files))).collect();
        Self { files, of }
    }

    fn shown(&self, module: &Module, import: &Import) -> String {
        format!("{}:{} imports `{}`", self.files[module].display(), import.line, import.path)
    }

    /// A cycle of imports through this file, if there is one.
    fn circle(&self) -> Option<String> {
        let mut done = BTreeSet::new();
        self.files.keys().find_map(|module| self.circle_from(module, &mut Vec::new(), &mut done))
    }

    fn circle_from<'a>(
        &'a self,
        module: &'a Module,
        way: &mut Vec<(&'a Module, &'a Import)>,
        done: &mut BTreeSet<&'a Module>,
    ) -> Option<String> {
        if let Some(at) = way.iter().position(|(known, _)| *known == module) {
            let shown = way[at..].iter().map(|(module, import)| self.shown(module, import));
            return Some(shown.collect::<Vec<_>>().join("\n"));
        }
        if done.contains(module) {
            return None;
        }
        for import in &self.of[module] {
            way.push((module, import));
            let circle = self.circle_from(&import.to, way, done);
            way.pop();
            if circle.is_some() {
                return circle;
            }
        }
        done.insert(module);
        None
    }

    /// Imports of modules above the importing one.
    fn upward(&self, layers: Layers) -> Vec<String> {
        let layer = |module: &Module| {
            let name = module.first()?;
            let found = layers.iter().position(|layer| layer.contains(&name.as_str()));
            Some(found.unwrap_or_else(|| panic!("the module `{name}` has no place in CORE or FRONT")))
        };
        let mut upward = Vec::new();
        for (module, imports) in &self.of {
            for import in imports {
                if layer(module) < layer(&import.to) {
                    upward.push(self.shown(module, import));
                }
            }
        }
        upward
    }
}

/// All files below a directory, by module path.
fn find(directory: &Path, module: &mut Module, files: &mut BTreeMap<Module, PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory of sources") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
        let is_root = matches!(name.as_str(), "lib" | "main" | "mod");
        if path.is_dir() {
            module.push(name);
            find(&path, module, files);
            module.pop();
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let mut file = module.clone();
            file.extend((!is_root).then_some(name));
            files.insert(file, path);
        }
    }
}

/// What one file imports of others, in the order of its lines.
fn imports(module: &Module, text: &str, files: &BTreeMap<Module, PathBuf>) -> Vec<Import> {
    let mut imports = Vec::new();
    let own = |module: &Module| module.first().is_some_and(|name| name == "engine") && module.len() == 1;
    let child = |name: &str| files.contains_key(&[&**module, &[name.to_owned()]].concat());
    for (line, path) in paths(&without_tests(tokens(text)), &|name| own(module) && child(name)) {
        let mut words: Vec<&str> = path.split("::").collect();
        let mut to: Module = match words[0] {
            "crate" => Vec::new(),
            _ => module.clone(),
        };
        while matches!(words.first(), Some(&("crate" | "self" | "super"))) {
            if words.remove(0) == "super" {
                to.pop();
            }
        }
        to.extend(words.into_iter().map(str::to_owned));
        while !files.contains_key(&to) && to.pop().is_some() {}
        let is_one = to.starts_with(module) || module.starts_with(&to);
        if to != *module && (!is_one || own(&to) || own(module)) {
            imports.push(Import { line, path, to });
        }
    }
    imports
}

/// A word or a punctuation mark (`::` is one token), and its line.
type Token = (usize, String);

/// The tokens of a source without comments, string literals and lifetimes.
fn tokens(text: &str) -> Vec<Token> {
    let (mut rest, mut line, mut tokens) = (text, 1, Vec::new());
    while let Some(first) = rest.chars().next() {
        let is_word = |char: char| char.is_alphanumeric() || char == '_';
        let word = rest.find(|char| !is_word(char)).unwrap_or(rest.len());
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            text_len(rest)
        } else if let Some(len) = raw_text_len(rest) {
            len
        } else if first == '\'' {
            char_len(rest)
        } else {
            let len = if word > 0 {
                word
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            if !first.is_whitespace() {
                tokens.push((line, rest[..len].to_owned()));
            }
            len
        };
        line += rest[..len].matches('\n').count();
        rest = &rest[len..];
    }
    tokens
}

/// The length of the string literal that starts here, with its quotes.
fn text_len(rest: &str) -> usize {
    let mut is_escaped = true; // the first quote
    for (at, char) in rest.char_indices() {
        match char {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// The same for a raw string; `None` if none starts here.
fn raw_text_len(rest: &str) -> Option<usize> {
    let behind = rest.strip_prefix('r')?;
    let hashes = behind.len() - behind.trim_start_matches('#').len();
    let body = behind[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(1 + hashes + 1 + body.find(&end)? + end.len())
}

/// The length of a character literal, or of the quote of a lifetime.
fn char_len(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => rest[3..].find('\'').map_or(1, |end| end + 4),
        _ => match chars.next() {
            Some((at, '\'')) => at + 1,
            _ => 1,
        },
    }
}

/// The tokens without test-only items.
fn without_tests(tokens: Vec<Token>) -> Vec<Token> {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut left = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let mark = tokens[at..].iter().map(|(_, token)| token.as_str()).take(MARK.len());
        if !mark.eq(MARK) {
            left.push(tokens[at].clone());
            at += 1;
            continue;
        }
        // The item ends with its braces, or without any at a semicolon.
        at += MARK.len();
        let is_use = tokens[at..].iter().take(6).any(|(_, token)| token == "use");
        let mut depth = 0;
        while at < tokens.len() {
            let token = tokens[at].1.as_str();
            at += 1;
            match token {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth -= 1,
                _ => {}
            }
            if depth == 0 && (token == ";" || token == "}" && !is_use) {
                break;
            }
        }
    }
    left
}

/// All paths into this crate, in imports and in code.
fn paths(tokens: &[Token], is_child: &dyn Fn(&str) -> bool) -> Vec<(usize, String)> {
    let (mut paths, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let word = tokens[at].1.as_str();
        let is_start = matches!(word, "crate" | "self" | "super") || is_child(word);
        let goes_on = tokens.get(at + 1).is_some_and(|(_, token)| token == "::");
        if is_start && goes_on && (at == 0 || tokens[at - 1].1 != "::") {
            at = tree(tokens, at, "", &mut paths);
        } else {
            at += 1;
        }
    }
    paths
}

/// Parses a path or a group (`a::{b, c::d}`); returns the position after it.
fn tree(tokens: &[Token], mut at: usize, before: &str, paths: &mut Vec<(usize, String)>) -> usize {
    let (mut path, line) = (before.to_owned(), tokens[at].0);
    while let Some((_, token)) = tokens.get(at) {
        match token.as_str() {
            "::" => path.push_str("::"),
            "{" if path.ends_with("::") => {
                at += 1;
                while tokens.get(at).is_some_and(|(_, token)| token != "}") {
                    at = tree(tokens, at, &path, paths);
                    if tokens.get(at).is_some_and(|(_, token)| token == ",") {
                        at += 1;
                    }
                }
                return at + 1;
            }
            word if path.is_empty() || path.ends_with("::") => path.push_str(word),
            // The new name of an import, or the end of the path.
            "as" => {
                at += 2;
                break;
            }
            _ => break,
        }
        at += 1;
    }
    paths.push((line, path));
    at
}

#[test]
fn no_files_of_a_crate_import_each_other_in_a_circle() {
    for (name, least) in CRATES {
        let imports = Imports::of_crate(name);
        let count: usize = imports.of.values().map(Vec::len).sum();
        assert!(count > least, "{name} has {count} imports: they are not read any more");
        assert_eq!(imports.circle(), None, "{name}: these import each other in a circle");
    }
}

#[test]
fn no_module_of_the_library_imports_one_above_it() {
    for (name, layers) in [("tenure-core", CORE), ("tenure", FRONT)] {
        let upward = Imports::of_crate(name).upward(layers);
        assert!(upward.is_empty(), "imports run from top to bottom:\n{}", upward.join("\n"));
    }
}

/// A store imports the core and no other store.
#[test]
fn stores_depend_on_the_core_alone() {
    for (name, _) in CRATES.iter().filter(|(name, _)| {
        ["redis", "file", "postgres", "mysql", "etcd", "zookeeper"].iter().any(|store| name.ends_with(store))
    }) {
        let manifest = root().join(name).join("Cargo.toml");
        let manifest = fs::read_to_string(manifest).expect("a manifest");
        let normal = manifest.split("[dev-dependencies]").next().expect("a first part");
        let (_, normal) = normal.split_once("[dependencies]").expect("dependencies");
        let ours: Vec<_> = normal.lines().filter(|line| line.starts_with("tenure")).collect();
        assert_eq!(ours, ["tenure-core.workspace = true"], "{name}");
    }
}

fn library() -> impl Iterator<Item = &'static str> {
    let is_tool = |name: &&str| ["tenure-cli", "tenure-history", "tenure-testkit"].contains(name);
    CRATES.into_iter().map(|(name, _)| name).filter(move |name| !is_tool(name))
}

/// The types that a file defines, without associated types, which are inside braces.
fn type_names(tokens: &[Token]) -> Vec<&str> {
    let (mut names, mut depth) = (Vec::new(), 0);
    for (at, (_, token)) in tokens.iter().enumerate() {
        match token.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            "struct" | "enum" | "trait" | "union" | "type" if depth == 0 || token != "type" => {
                names.extend(tokens.get(at + 1).map(|(_, name)| name.as_str()));
            }
            _ => {}
        }
    }
    names
}

#[test]
fn each_type_of_the_library_has_a_name_of_its_own() {
    let mut defined = BTreeMap::<String, Vec<String>>::new();
    for name in library() {
        for path in Imports::of_crate(name).files.values() {
            let tokens = without_tests(tokens(&fs::read_to_string(path).expect("a source file")));
            // Variants of one type for several systems are in one file.
            for name in BTreeSet::from_iter(type_names(&tokens)) {
                defined.entry(name.to_owned()).or_default().push(path.display().to_string());
            }
        }
    }
    assert!(defined.len() > 400, "{} types", defined.len());
    let twice: Vec<_> = defined.iter().filter(|(_, paths)| paths.len() > 1).collect();
    assert!(twice.is_empty(), "{twice:#?}");
}

/// The library and its core count as one crate. Stores share names with each other, because a file of one is the
/// counterpart of that in another.
#[test]
fn each_file_of_the_library_has_a_name_of_its_own() {
    // Roots and errors; and of a kind of lock, the machine in the core and its public handle.
    const SHARED: [&str; 5] = ["error.rs", "lib.rs", "mod.rs", "mutex.rs", "reentrant.rs"];
    // The two files without scripts: of a connection, and of its requests.
    const OF_A_STORE: [&str; 1] = ["scriptless.rs"];
    let mut named = BTreeMap::<(&str, String), Vec<String>>::new();
    for name in library() {
        let part = if name == "tenure-core" { "tenure" } else { name };
        for path in Imports::of_crate(name).files.values() {
            let file = path.file_name().and_then(|file| file.to_str()).expect("a name").to_owned();
            if !SHARED.contains(&&*file) && !OF_A_STORE.contains(&&*file) {
                named.entry((part, file)).or_default().push(path.display().to_string());
            }
        }
    }
    assert!(named.len() > 200, "{} files", named.len());
    let twice: Vec<_> = named.values().filter(|paths| paths.len() > 1).collect();
    assert!(twice.is_empty(), "{twice:#?}");
}

/// Platform-specific code is in `tenure-core/platform.rs`, for directories in `system.rs` and
/// `inotify.rs` of `tenure-file`, and for the command in its `platform/`. `scripts/targets` shows that the rest
/// compiles elsewhere.
#[test]
fn only_the_platform_modules_name_an_operating_system() {
    const NAMES: [&str; 7] =
        ["target_os", "target_vendor", "target_family", "rustix", "nix", "UnixStream", "UnixDatagram"];
    const PLATFORM: [&str; 3] = ["platform", "system", "inotify"];
    let mut named = Vec::new();
    for name in library().chain(["tenure-cli"]) {
        // The file store and the command need a Unix; their platform modules select variants.
        let names = if ["tenure-file", "tenure-cli"].contains(&name) { &NAMES[..3] } else { &NAMES[..] };
        for (module, path) in Imports::of_crate(name).files {
            let is_platform = module.first().is_some_and(|name| PLATFORM.contains(&name.as_str()));
            // A URL and two re-exports depend on whether `file:` exists.
            let opens = name == "tenure" && (module.is_empty() || module == ["open"]);
            let text = fs::read_to_string(&path).expect("a source file");
            let tokens = without_tests(tokens(&text));
            for (line, token) in tokens.iter().filter(|_| !is_platform && !opens) {
                if names.contains(&token.as_str()) {
                    named.push(format!("{}:{line}: {token}", path.display()));
                }
            }
            if !is_platform && text.contains("\"/proc/") {
                named.push(format!("{}: /proc", path.display()));
            }
        }
    }
    assert!(named.is_empty(), "{named:#?}");
}
