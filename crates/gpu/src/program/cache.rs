//! Programs, compiled when first used and kept: loaded ones in memory, compiled ones on disk.

use crate::driver::{Driver, Handle};
use crate::program::source::{Variant, assemble};
use isograd_core::{Error, Result};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The first bytes of a file of the cache, and its format.
const MAGIC: &[u8; 8] = b"isograd1";

/// An entry of a program: what is looked up at every launch.
#[derive(PartialEq, Eq, Hash, Clone)]
struct Key {
    variant: Variant,
    entry: &'static str,
}

/// Where a program will be. It is locked while it is compiled, so that two threads do not compile the same one.
type Place = Arc<Mutex<Option<Handle>>>;

/// The programs of one device.
pub struct Programs {
    entries: Mutex<HashMap<Key, Handle>>,
    programs: Mutex<HashMap<Variant, Place>>,
    folder: Option<PathBuf>,
}

impl Programs {
    /// With a cache on disk in `folder`, if there is one.
    pub fn new(folder: Option<PathBuf>) -> Programs {
        Programs { entries: Mutex::default(), programs: Mutex::default(), folder }
    }

    /// The entry of a variant; `generate` makes the text of one that is not a file.
    pub fn entry(
        &self,
        driver: &dyn Driver,
        variant: Variant,
        entry: &'static str,
        generate: Option<&dyn Fn() -> String>,
    ) -> Result<Handle> {
        let key = Key { variant, entry };
        if let Some(found) = self.entries.lock().get(&key) {
            return Ok(found.clone());
        }
        let place = self.programs.lock().entry(key.variant.clone()).or_default().clone();
        let mut built = place.lock();
        let program = match &*built {
            Some(program) => program.clone(),
            None => built.insert(self.build(driver, &key.variant, generate)?).clone(),
        };
        drop(built);
        let made = driver.entry(&program, entry)?;
        self.entries.lock().insert(key, made.clone());
        Ok(made)
    }

    fn build(&self, driver: &dyn Driver, variant: &Variant, generate: Option<&dyn Fn() -> String>) -> Result<Handle> {
        let source = assemble(driver.dialect(), variant, generate.map(|g| g()).as_deref())?;
        let path = self.folder.as_ref().map(|folder| folder.join(name(driver, &source)));
        let kept = || read(path.as_ref()?).and_then(|binary| driver.load(&binary).ok());
        if let Some(program) = kept() {
            return Ok(program);
        }
        let _alone = path.as_ref().and_then(|path| lock(path));
        if let Some(program) = kept() {
            return Ok(program);
        }
        let started = std::time::Instant::now();
        let (program, binary) =
            driver.compile(&source).map_err(|e| Error::backend("compile", format!("{variant}: {}", e.message())))?;
        tracing::debug!(%variant, seconds = started.elapsed().as_secs_f64(), "compiled");
        if let (Some(path), Some(binary)) = (&path, binary)
            && let Err(error) = write(path, &binary)
        {
            tracing::warn!(path = %path.display(), %error, "the program cache cannot be written");
        }
        Ok(program)
    }
}

/// The user's folder for compiled programs: `ISOGRAD_CACHE`, none if that is empty, or the system's place.
pub fn default_folder() -> Option<PathBuf> {
    match std::env::var_os("ISOGRAD_CACHE") {
        Some(folder) if folder.is_empty() => None,
        Some(folder) => Some(folder.into()),
        None => dirs::cache_dir().map(|folder| folder.join("isograd")),
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

/// Held while a program is compiled: of several processes one does it, and the others find it. A driver's own cache, as
/// PoCL's is, may not bear that two compile the same. None if there can be no lock, which costs no more than that.
fn lock(program: &Path) -> Option<File> {
    let folder = program.parent()?.join("locks");
    std::fs::create_dir_all(&folder).ok()?;
    let file = File::create(folder.join(program.file_name()?.to_str()?.get(..2)?)).ok()?;
    file.lock().ok()?;
    Some(file)
}

/// What a file of the cache holds, if it is whole.
fn read(path: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(path).ok()?;
    let (head, binary) = bytes.split_at_checked(MAGIC.len() + 32)?;
    let whole = head.starts_with(MAGIC) && head[MAGIC.len()..] == Sha256::digest(binary)[..];
    whole.then(|| binary.to_vec())
}

/// Written aside and renamed, so that no reader and no second process sees a part of it.
fn write(path: &Path, binary: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(MAGIC)?;
    file.write_all(&Sha256::digest(binary))?;
    file.write_all(binary)?;
    file.persist(path)?;
    Ok(())
}
