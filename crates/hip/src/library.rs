//! Where ROCm's libraries are: in the folder `ISOGRAD_HIP_LIB`, where the system's loader looks, in `$ROCM_PATH`, `$HIP_PATH`, or in
//! `/opt/rocm*`.

use isograd_gpu::vendor::dynlib::{Places, within};
use std::path::{Path, PathBuf};

pub const PLACES: Places = Places {
    variable: "ISOGRAD_HIP_LIB",
    folders,
    words: if cfg!(windows) { "%HIP_PATH%\\bin" } else { "$ROCM_PATH/lib, $HIP_PATH/lib or /opt/rocm*/lib" },
};

fn folders() -> Vec<PathBuf> {
    let named = ["ROCM_PATH", "HIP_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let roots = named.chain(within(Path::new("/opt"), "rocm"));
    roots.map(|root| root.join(if cfg!(windows) { "bin" } else { "lib" })).collect()
}
