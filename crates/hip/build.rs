//! Finds the kernels: `kernels` is a folder in a package, and a link to one in a checkout. A checkout without symbolic links has a file there.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let linked = package.join("kernels");
    let folder = if linked.is_dir() { linked } else { package.join("../../kernels-hip") };
    println!("cargo:rustc-env=KERNELS={}", folder.display());
}
