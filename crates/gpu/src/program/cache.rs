//! Programs, compiled when first used and kept: loaded ones in memory, compiled ones on disk.

use crate::driver::{Driver, Handle};
use crate::program::folder::Folder;
use crate::program::names::Names;
use crate::program::source::{Variant, assemble};
use crate::sys::cache_folder;
use hashbrown::{Equivalent, HashMap};
use hmac_sha256::Hash as Sha256;
use isograd_core::{Error, Result};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// The source of a program.
#[derive(PartialEq, Eq, Hash, Clone)]
struct Program {
    /// The file and its definitions.
    variant: Variant,
    /// The names of its integers.
    names: Names,
}

/// The key of an entry.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    program: Program,
    entry: &'static str,
}

/// A borrowed [`Key`], by which a launch finds its entry without a copy. Its hash is that of the key with equal parts.
#[derive(Hash)]
struct KeyRef<'a> {
    variant: &'a Variant,
    names: &'a Names,
    entry: &'static str,
}

impl Equivalent<Key> for KeyRef<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        let Key { program: Program { variant, names }, entry } = key;
        self.entry == *entry && self.names == names && self.variant == variant
    }
}

/// Where the program of a text will be. It is locked while it is compiled, so that two threads do not compile the same one.
type Place = Arc<Mutex<Option<Handle>>>;

/// The programs of one device.
pub struct Programs {
    entries: Mutex<HashMap<Key, Handle>>,
    programs: Mutex<HashMap<Program, Handle>>,
    /// By the file names of their texts.
    texts: Mutex<HashMap<String, Place>>,
    path: Option<PathBuf>,
    /// Opened when the first program is compiled.
    folder: OnceLock<Option<Folder>>,
    /// Programs that a compiler made.
    compiled: AtomicUsize,
}

impl Programs {
    /// With a cache on disk in the folder `path`, if there is one. A folder that others own or may write to is not used.
    pub fn new(path: Option<PathBuf>) -> Programs {
        let (entries, programs, texts) = Default::default();
        Programs { entries, programs, texts, path, folder: OnceLock::new(), compiled: AtomicUsize::new(0) }
    }

    /// How many programs a compiler has made.
    pub fn compiled(&self) -> usize {
        self.compiled.load(Ordering::Relaxed)
    }

    fn folder(&self) -> Option<&Folder> {
        self.folder.get_or_init(|| Folder::open(self.path.as_ref()?)).as_ref()
    }

    /// The entry of a program, whose integers have these names; `generate` makes the text of one that is not a file.
    pub fn entry(
        &self,
        driver: &dyn Driver,
        (variant, names): (Variant, &Names),
        entry: &'static str,
        generate: Option<&dyn Fn() -> String>,
    ) -> Result<Handle> {
        if let Some(found) = self.entries.lock().get(&KeyRef { variant: &variant, names, entry }) {
            return Ok(found.clone());
        }
        let key = Key { program: Program { variant, names: names.clone() }, entry };
        let known = self.programs.lock().get(&key.program).cloned();
        let program = match known {
            Some(program) => program,
            None => {
                let Program { variant, names } = &key.program;
                let source = assemble(driver.dialect(), variant, names, generate.map(|g| g()).as_deref())?;
                let program = self.of_text(driver, &source);
                let program = program.map_err(|e| Error::backend("compile", format!("{variant}: {}", e.message())))?;
                self.programs.lock().insert(key.program.clone(), program.clone());
                program
            }
        };
        let made = driver.entry(&program, entry)?;
        self.entries.lock().insert(key, made.clone());
        Ok(made)
    }

    /// The program of a text, which is compiled or found in the folder once. The error is the compiler's log.
    pub fn of_text(&self, driver: &dyn Driver, source: &str) -> Result<Handle> {
        let name = name(driver, source);
        let place = self.texts.lock().entry_ref(name.as_str()).or_default().clone();
        let mut program = place.lock();
        match &*program {
            Some(program) => Ok(program.clone()),
            None => Ok(program.insert(self.build(driver, &name, source)?).clone()),
        }
    }

    /// Whether the program of a text has been compiled, or is being.
    pub fn has_text(&self, driver: &dyn Driver, source: &str) -> bool {
        self.texts.lock().contains_key(name(driver, source).as_str())
    }

    fn build(&self, driver: &dyn Driver, name: &str, source: &str) -> Result<Handle> {
        let folder = self.folder();
        let kept = || folder?.read(name).and_then(|binary| driver.load(&binary).ok());
        if let Some(program) = kept() {
            return Ok(program);
        }
        let _alone = folder.and_then(|folder| folder.lock(name));
        if let Some(program) = kept() {
            return Ok(program);
        }
        let started = std::time::Instant::now();
        let (program, binary) = driver.compile(source)?;
        self.compiled.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(name, seconds = started.elapsed().as_secs_f64(), "compiled");
        if let (Some(folder), Some(binary)) = (folder, binary) {
            folder.write(name, &binary);
        }
        Ok(program)
    }
}

/// The user's folder for compiled programs: `ISOGRAD_CACHE`, none if that is empty; by default in the system's folder for caches.
pub fn default_folder() -> Option<PathBuf> {
    match std::env::var_os("ISOGRAD_CACHE") {
        Some(folder) if folder.is_empty() => None,
        Some(folder) => Some(folder.into()),
        None => cache_folder().map(|folder| folder.join("isograd")),
    }
}

/// The file name of a program: everything that it depends on.
fn name(driver: &dyn Driver, source: &str) -> String {
    let mut hash = Sha256::new();
    for part in [driver.dialect().name, &driver.limits().name, &driver.limits().driver, source] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::names::IntegerKind;

    #[test]
    fn a_key_is_found_by_references_to_equal_parts() {
        let variant = |threads: usize| Variant::new("file.c").define("THREADS", threads);
        let names = |name: &'static str| {
            let mut names = Names::default();
            names.push(name, IntegerKind::Integer, 1);
            names
        };
        let mut entries = HashMap::new();
        let program = Program { variant: variant(64), names: names("ROWS") };
        entries.insert(Key { program, entry: "one" }, 1);
        let find = |threads, name, entry| {
            entries.get(&KeyRef { variant: &variant(threads), names: &names(name), entry }).copied()
        };
        assert_eq!(find(64, "ROWS", "one"), Some(1));
        assert_eq!([find(32, "ROWS", "one"), find(64, "COLUMNS", "one"), find(64, "ROWS", "two")], [None; 3]);
    }
}
