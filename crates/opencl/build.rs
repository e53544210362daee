//! Finds the kernels: `kernels` and `kernels-cuda` are folders in a package, and links to folders in a checkout. A checkout without symbolic
//! links has files there.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (variable, name, original) in
        [("KERNELS", "kernels", "kernels-opencl"), ("KERNELS_CUDA", "kernels-cuda", "kernels-cuda")]
    {
        let linked = package.join(name);
        let folder = if linked.is_dir() { linked } else { package.join("../..").join(original) };
        println!("cargo:rustc-env={variable}={}", folder.display());
    }
}
