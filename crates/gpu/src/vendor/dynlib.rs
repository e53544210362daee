//! Libraries of vendors: where they are, and their functions. A library is looked for in the folder that a variable names, where the
//! system's loader looks, and in the vendor's usual folders. What was opened stays open.

// Opening a library runs its initialisers, and its functions have the types that are said.
#![allow(unsafe_code)]

pub use crate::library;
pub use libloading::Library;

use isograd_core::Error;
use std::ffi::OsStr;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Declares functions of a library, each by its name there: a struct of pointers to them, and `of`, which finds them. A library may lack
/// those that are `[optional]`.
///
/// ```
/// # #![allow(dead_code)]
/// isograd_gpu::vendor::dynlib::library! {
///     /// Functions of C.
///     struct Strings;
///     "abs" absolute: fn(i32) -> i32;
///     "strlcpy" copy [optional]: fn(*mut i8, *const i8, usize) -> usize;
/// }
/// ```
#[macro_export]
macro_rules! library {
    (
        $(#[$doc:meta])* $visibility:vis struct $library:ident;
        $($symbol:literal $field:ident $([$optional:ident])?: fn($($type:ty),* $(,)?) -> $result:ty;)*
    ) => {
        $(#[$doc])*
        #[allow(clippy::type_complexity)]
        $visibility struct $library {
            $(pub(crate) $field: $crate::library!(@type [$($optional)?] unsafe extern "C" fn($($type),*) -> $result),)*
        }

        impl $library {
            /// Finds the functions. The error names one that is missing.
            ///
            /// # Safety
            /// The functions of the library have these types.
            unsafe fn of(library: &'static $crate::vendor::dynlib::Library) -> ::std::result::Result<$library, String> {
                Ok($library { $($field: {
                    let name = $symbol;
                    // SAFETY: by the caller.
                    let found = unsafe { $crate::vendor::dynlib::symbol(library, name) };
                    $crate::library!(@found [$($optional)?] name found)
                },)* })
            }
        }
    };
    (@type [] $type:ty) => { $type };
    (@type [optional] $type:ty) => { Option<$type> };
    (@found [] $name:ident $found:ident) => { $found.ok_or_else(|| format!("it has no {}", $name))? };
    (@found [optional] $name:ident $found:ident) => { $found };
}

/// The function of this name, if the library has it.
///
/// # Safety
/// The function is a `T`.
pub unsafe fn symbol<T: Copy>(library: &'static Library, name: &str) -> Option<T> {
    // SAFETY: by the caller.
    unsafe { library.get::<T>(name) }.ok().map(|found| *found)
}

/// Opens a file.
pub fn load(path: &Path) -> Result<Library, libloading::Error> {
    // SAFETY: vendors' initialisers ask nothing of a program.
    unsafe { Library::new(path) }
}

/// A library of a device, which is opened once.
pub struct Opened<T> {
    device: &'static str,
    name: &'static str,
    library: OnceLock<Result<T, String>>,
}

impl<T> Opened<T> {
    /// The library of this name, not opened yet.
    pub const fn new(device: &'static str, name: &'static str) -> Opened<T> {
        Opened { device, name, library: OnceLock::new() }
    }

    /// The library, which the first call opens. Errors: `Device`, with why it did not open.
    pub fn get(&'static self, open: impl FnOnce() -> Result<T, String>) -> isograd_core::Result<&'static T> {
        let found = self.library.get_or_init(open).as_ref();
        found.map_err(|why| Error::device(self.device, format!("{} cannot be opened: {why}", self.name)))
    }
}

/// The folders of a vendor.
pub struct Places {
    /// The variable that names the folder which is looked at before all others.
    pub variable: &'static str,
    /// The usual ones, the best first.
    pub folders: fn() -> Vec<PathBuf>,
    /// The usual folders in words, for errors.
    pub words: &'static str,
}

/// A library by the names of its files.
pub struct Files {
    /// Whose it is.
    pub places: &'static Places,
    /// File names that the system's loader finds, the newest version first.
    pub names: &'static [&'static str],
    /// The beginning of the file name, which is the same for all versions.
    pub stem: &'static str,
    /// How to come by it.
    pub remedy: &'static str,
}

impl Files {
    /// Opens the library. The error says where it was looked for.
    pub fn open(&self) -> Result<&'static Library, String> {
        self.open_by(load)
    }

    /// [`open`](Files::open), by a function that opens a file.
    pub fn open_by<E: Display>(&self, open: impl Fn(&Path) -> Result<Library, E>) -> Result<&'static Library, String> {
        self.find(open).map(|library| &*Box::leak(Box::new(library)))
    }

    /// Opens the first path that `open` accepts. The error has the folders of the search, and the files that did not open.
    fn find<T, E: Display>(&self, open: impl Fn(&Path) -> Result<T, E>) -> Result<T, String> {
        let Places { variable, folders, words } = self.places;
        let own = std::env::var_os(variable).map(PathBuf::from);
        let in_own = own.iter().flat_map(|folder| within(folder, self.stem));
        let in_loader = self.names.iter().map(PathBuf::from);
        let in_others = std::iter::once_with(folders).flatten().flat_map(|folder| within(&folder, self.stem));
        let mut refused = None;
        for path in in_own.chain(in_loader).chain(in_others) {
            match open(&path) {
                Ok(library) => return Ok(library),
                // The loader's own search has no file to blame.
                Err(why) if path.is_file() => drop(refused.get_or_insert_with(|| (path, why.to_string()))),
                Err(_) => {}
            }
        }
        if let Some((path, why)) = refused {
            return Err(format!("{} does not load: {why} ({})", path.display(), self.remedy));
        }
        let set = own.as_ref().map_or("is not set".into(), |folder| format!("is {}", folder.display()));
        let (name, remedy) = (self.names[0], self.remedy);
        Err(format!("{variable} {set}, the loader finds no {name}, and there is none in {words} ({remedy})"))
    }
}

/// The files in a folder whose names begin so, the newest version first.
pub fn within(folder: &Path, stem: &str) -> Vec<PathBuf> {
    let is_one = |name: &OsStr| name.to_str().is_some_and(|name| name.starts_with(stem) && !name.contains(".alt."));
    entries(folder).into_iter().filter(|path| path.file_name().is_some_and(is_one)).collect()
}

/// The files of a folder in descending order of their names, so that the newest version comes first. None if there is no folder.
pub fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    all.sort_by(|a, b| b.cmp(a));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOWHERE: Places =
        Places { variable: "ISOGRAD_NO_SUCH_LIB", folders: || vec!["/no/such/lib".into()], words: "/no/such/lib" };

    #[test]
    fn what_was_looked_for_is_said() {
        let names = &["libnone.so", "libnone.so.1"];
        let files = Files { places: &NOWHERE, names, stem: "libnone.so", remedy: "nobody has it" };
        let why = files.find(|_| Err::<(), _>("no")).unwrap_err();
        let expected = "ISOGRAD_NO_SUCH_LIB is not set, the loader finds no libnone.so, and there is none in /no/such/lib \
                        (nobody has it)";
        assert_eq!(why, expected);
        assert_eq!(files.find(|path| Ok::<_, String>(path.to_path_buf())).unwrap(), Path::new("libnone.so"));
    }

    #[test]
    fn a_file_that_does_not_load_is_named() {
        const HERE: Places = Places {
            variable: "ISOGRAD_NO_SUCH_LIB",
            folders: || vec![env!("CARGO_MANIFEST_DIR").into()],
            words: "here",
        };
        let files = Files { places: &HERE, names: &["libnone.so"], stem: "Cargo.toml", remedy: "nobody has it" };
        let why = files.find(|_| Err::<(), _>("it is no library")).unwrap_err();
        let expected =
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml does not load: it is no library (nobody has it)");
        assert_eq!(why, expected);
    }

    #[test]
    fn the_newest_version_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["libx.so", "libx.so.5", "libx.so.6", "libx.alt.so.7", "liby.so"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let found = within(folder.path(), "libx");
        let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(names, ["libx.so.6", "libx.so.5", "libx.so"]);
    }
}
