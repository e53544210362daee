//! Finds the golden values and the list of kernels: they are in a package, and links in a checkout. A checkout without symbolic links has
//! other files there.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_linked = package.join("golden").is_dir();
    let found = |name: &str, original: &str| package.join(if is_linked { name } else { original });
    println!("cargo:rustc-env=GOLDEN={}", found("golden", "../../tests/golden").display());
    println!("cargo:rustc-env=KERNELS={}", found("kernels.toml", "../../docs/kernels.toml").display());
}
