//! The page of PyTorch's names: each link leads to the file that defines the public item of its name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::tests::sources;

/// A public item of a file: the type or trait whose method it is, if it is a method, and its name.
type Item = (Option<String>, String);

#[test]
fn names_of_pytorch_lead_to_the_files_that_define_ours() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap();
    let page = fs::read_to_string(root.join("docs/src/pytorch.md")).unwrap();
    let items = items_of_all_files(&root);
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    let names = rows.iter().map(|row| row[0].split(", ").count()).sum::<usize>();
    assert!(names >= 300, "{names} names");
    let links = rows.iter().filter(|row| row[1] != "not there").flat_map(|row| row[1].split("), "));
    let wrong: Vec<String> = links
        .filter_map(|link| {
            let (name, file) = link.trim_start_matches("[`").trim_end_matches(')').split_once("`](").expect(link);
            wrong(&root, &items, name, file.strip_prefix("https://github.com/isograd/isograd/blob/main/").expect(file))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The files that define an item.
type Files = BTreeMap<Item, BTreeSet<String>>;

fn items_of_all_files(root: &Path) -> Files {
    let mut files = Files::new();
    for folder in fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path()) {
        for (path, text) in sources(&folder.join("src")) {
            let file = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            items(&text).into_iter().for_each(|item| _ = files.entry(item).or_default().insert(file.clone()));
        }
    }
    files
}

/// The fault of a link, if it has one.
fn wrong(root: &Path, items: &Files, name: &str, file: &str) -> Option<String> {
    let defining = |owner: Option<&str>, name: &str| {
        items.get(&(owner.map(str::to_owned), name.to_owned())).cloned().unwrap_or_default()
    };
    let is_type = |name: &str| name.starts_with(char::is_uppercase);
    let (item, files, is_method) = match name.rsplit_once("::") {
        Some((owner, name)) if is_type(owner) => (name, defining(Some(owner), name), true),
        // The item is in the module.
        Some((module, name)) => {
            let is_in = |file: &String| file.split(['/', '.']).any(|part| part == module);
            (name, defining(None, name).into_iter().filter(is_in).collect(), false)
        }
        None if is_type(name) => {
            let (nn, others) =
                defining(None, name).into_iter().partition::<BTreeSet<_>, _>(|f| f.starts_with("crates/nn/"));
            (name, if nn.is_empty() { others } else { nn }, false)
        }
        None => {
            let methods = defining(Some("Tensor"), name);
            if methods.is_empty() { (name, defining(None, name), false) } else { (name, methods, true) }
        }
    };
    if !files.contains(file) {
        return Some(format!("{name}: the link leads to {file}; defined in {files:?}"));
    }
    (!is_method && !is_exported(root, file, item)).then(|| format!("{name}: {file} does not export it"))
}

/// Whether each module on the path of a file is public, or re-exports the item.
fn is_exported(root: &Path, file: &str, item: &str) -> bool {
    let (folder, module) = file.rsplit_once('/').unwrap();
    let module = module.trim_end_matches(".rs");
    let (parent, module) = match module {
        "lib" => return true,
        "mod" => folder.rsplit_once('/').unwrap(),
        _ => (folder, module),
    };
    let above = ["lib.rs", "mod.rs"].map(|name| format!("{parent}/{name}")).into_iter().find(|f| root.join(f).exists());
    let above = above.unwrap_or_else(|| panic!("{file} has no module above"));
    let text = fs::read_to_string(root.join(&above)).unwrap();
    let statements = text.split("\npub use ").skip(1).map(|statement| statement.split(';').next().unwrap());
    let mut uses = statements.map(|list| list.trim_start_matches("self::"));
    let is_used =
        uses.any(|list| list.starts_with(module) && (list.ends_with("::*") || words(list).any(|word| word == item)));
    (text.contains(&format!("\npub mod {module};")) || is_used) && is_exported(root, &above, item)
}

/// The words of a text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The public items of a formatted source: types, traits, functions, methods, and those that a macro of the file defines from rows.
fn items(text: &str) -> BTreeSet<Item> {
    let macros: BTreeMap<&str, &str> = text
        .split("\nmacro_rules! ")
        .skip(1)
        .filter_map(|after| after.split_once(" {\n"))
        .map(|(name, body)| (name, body.split("\n}").next().unwrap()))
        .collect();
    let (mut items, mut owner, mut is_trait, mut rows) = (BTreeSet::new(), None, false, None);
    for line in text.lines() {
        if line.starts_with('}') {
            (owner, rows) = (None, None);
        } else if line.starts_with("impl") {
            (owner, is_trait) = (implementor(line), false);
        } else if let Some(name) = line.strip_suffix("! {") {
            rows = macros.get(name);
        } else if let Some((kind, name)) = public(line) {
            items.insert((None, name.to_owned()));
            is_trait = kind == "trait";
            owner = is_trait.then_some(name);
        }
        if let Some((owner, method)) = owner.zip(line.strip_prefix("    ")) {
            let of_trait = if is_trait { method.strip_prefix("fn ").and_then(|rest| words(rest).next()) } else { None };
            let name = of_trait.or(public(method).map(|(_, name)| name));
            items.extend(name.map(|name| (Some(owner.to_owned()), name.to_owned())));
        }
        if let Some(body) = rows.filter(|_| line.starts_with("    ") && !line.trim_start().starts_with(['/', '#'])) {
            items.extend(of_row(body, line));
        }
    }
    items
}

/// The kind and name of a public item that a line begins.
fn public(line: &str) -> Option<(&str, &str)> {
    let mut words = words(line.strip_prefix("pub ")?);
    match words.next()? {
        "const" if line.contains(" fn ") => Some(("fn", words.nth(1)?)),
        kind @ ("fn" | "struct" | "enum" | "trait" | "type" | "const" | "mod") => Some((kind, words.next()?)),
        _ => None,
    }
}

/// The type of the first line of an `impl`.
fn implementor(line: &str) -> Option<&str> {
    let mut depth = 0;
    let generics = line.strip_prefix("impl")?;
    let end = generics.find(|c: char| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        depth == 0
    })?;
    let named = generics[end..].trim_start_matches('>');
    words(named.split_once(" for ").map_or(named, |(_, of)| of)).next()
}

/// The items that a row of a macro with this body defines: methods of `Tensor`, or types.
fn of_row<'a>(body: &'a str, row: &'a str) -> impl Iterator<Item = Item> + use<'a> {
    let (has_methods, has_types) =
        (body.contains("impl Tensor {"), body.contains("pub struct $") || body.contains("pub type $"));
    // Names stand before a row's expression, and outside of strings.
    let before = row.split("=>").next().unwrap().split('|').next().unwrap();
    before.split('"').step_by(2).flat_map(words).filter_map(move |word| match word.starts_with(char::is_uppercase) {
        true => has_types.then(|| (None, word.to_owned())),
        false => has_methods.then(|| (Some("Tensor".to_owned()), word.to_owned())),
    })
}

#[test]
fn items_are_found_where_they_are_defined() {
    let text = "\
pub struct Cell;

impl<const N: usize> Forward for Cell<N> {
    fn forward(&self) {}
}

impl Tensor {
    /// Calls other().
    pub fn chunk(&self) { self.split() }
    fn hidden(&self) {}
}

pub trait Module {
    fn visit(&self);
}

macro_rules! unary {
    ($($name:ident $row:ident;)*) => { impl Tensor {$( pub fn $name(&self) {} )*} };
}

unary! {
    /// The negative of x.
    relu Relu;
}

fn private() {}
";
    let found: Vec<String> =
        items(text).into_iter().map(|(owner, name)| owner.map_or(name.clone(), |o| format!("{o}::{name}"))).collect();
    assert_eq!(found, ["Cell", "Module", "Module::visit", "Tensor::chunk", "Tensor::relu"]);
}
