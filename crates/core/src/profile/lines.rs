//! The source line of a call: the innermost stack frame outside of this library.

use std::collections::HashMap;
use std::ffi::c_void;
use std::path::Path;
use std::sync::{LazyLock, Mutex};

/// The beginning of the names of this library's crates, whose frames are skipped.
const OURS: &str = "isograd_";

/// Other crates whose frames are skipped: those that run closures and tests.
const OTHERS: [&str; 6] = ["backtrace", "core", "std", "alloc", "rayon_core", "test"];

/// The folder and the crate of the program `isograd`, whose lines are a user's.
const PROGRAM: &str = "cli";
const PROGRAM_CRATE: &str = "isograd_cli";

/// The source lines of instructions, each of which is found once in a process.
static LINES: LazyLock<Mutex<HashMap<usize, Option<String>>>> = LazyLock::new(Mutex::default);

/// `file:line` of the caller of this library, or the function's name in a program without line numbers.
pub fn here() -> Option<String> {
    let mut known = LINES.lock().unwrap_or_else(|e| e.into_inner());
    let mut found = None;
    backtrace::trace(|frame| {
        found = known.entry(frame.ip() as usize).or_insert_with(|| resolve(frame.ip())).clone();
        found.is_none()
    });
    found
}

/// The source line of the instruction before `ip`, unless it is in this library.
fn resolve(ip: *mut c_void) -> Option<String> {
    let mut found = None;
    backtrace::resolve((ip as usize).wrapping_sub(1) as *mut c_void, |symbol| {
        let Some(name) = symbol.name().map(|name| format!("{name:#}")) else { return };
        if found.is_some() || is_ours(&name, symbol.filename()) {
            return;
        }
        found = match (symbol.filename(), symbol.lineno()) {
            (Some(file), Some(line)) => Some(format!("{}:{line}", relative(file).display())),
            _ => Some(name),
        };
    });
    found
}

/// True for a function of this library or of the standard library. A trait method belongs to its type.
fn is_ours(name: &str, file: Option<&Path>) -> bool {
    let start = name.trim_start_matches(['<', '&', '*', '(', '[', ' ']);
    let start = ["mut ", "const ", "dyn "].iter().fold(start, |start, word| start.trim_start_matches(word));
    let start = start.split('<').next().unwrap_or(start);
    match (start.split_once("::"), file) {
        // A closure's method is in a file of the standard library.
        (Some((first, _)), file) => {
            let is_own = first.starts_with(OURS) && first != PROGRAM_CRATE;
            is_own || OTHERS.contains(&first) || file.is_some_and(is_our_file)
        }
        // An inlined function may have no path.
        (None, Some(file)) => is_our_file(file),
        // `__libc_start_main`.
        (None, None) => true,
    }
}

/// True for sources of this library, of dependencies, and of the standard library.
fn is_our_file(file: &Path) -> bool {
    let is_in = |folder: &str| file.components().any(|part| part.as_os_str() == folder);
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("");
    let mut inner = file.strip_prefix(crates).into_iter().flat_map(Path::components).map(|part| part.as_os_str());
    let is_own = inner.next().is_some_and(|name| name != PROGRAM) && inner.next().is_some_and(|next| next == "src");
    is_in("registry") || is_in("rustc") || is_own
}

fn relative(file: &Path) -> &Path {
    let folder = std::env::current_dir().unwrap_or_default();
    file.strip_prefix(folder).unwrap_or(file)
}

#[cfg(test)]
mod tests {
    use super::is_ours;
    use std::path::Path;

    #[test]
    fn functions_of_the_library_are_told_from_others() {
        for name in [
            "isograd_core::ops::softmax::<impl isograd_core::tensor::Tensor>::softmax",
            "<isograd_nn::layers::Linear as isograd_nn::module::Forward>::forward",
            "isograd_linalg::cholesky::cholesky",
            "<&mut isograd_core::tape::Pass as core::ops::Drop>::drop",
            "core::ops::function::FnOnce::call_once",
            "main",
        ] {
            assert!(is_ours(name, None), "{name}");
        }
        for name in [
            "isograd::train::Mlp::forward",
            "isograd_cli::train::sample::step",
            "<mine::Net as isograd_nn::module::Forward>::forward",
            "a::f",
        ] {
            assert!(!is_ours(name, None), "{name}");
        }
        assert!(is_ours("trace<isograd_parity::diff::Places>", Some(Path::new("/home/me/.cargo/registry/src/a/b.rs"))));
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("core").join("src/tensor.rs");
        assert!(is_ours("{closure#0}", Some(&own)));
        assert!(!is_ours("{closure#0}", Some(Path::new("/home/me/net/src/main.rs"))));
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("cli").join("src/train/models.rs");
        assert!(!is_ours("{closure#0}", Some(&program)));
        let test = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/diff.rs");
        assert!(!is_ours("{closure#0}", Some(&test)));
        let shim = Path::new("/rustc/5980/library/core/src/ops/function.rs");
        assert!(is_ours("<mine::step::{closure#0} as core::ops::FnOnce>::call_once", Some(shim)));
    }
}
