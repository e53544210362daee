//! The folder of compiled kernels, of which others must not decide what runs on the device; on a driver that runs nothing.
#![cfg(unix)]

use isograd_core::{DType, Device, Result, Tensor};
use isograd_gpu::driver::null::NullDriver;
use isograd_gpu::{Dialect, Gpu};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

static DIALECT: Dialect = Dialect { name: "null", folders: &[], files: &[("prelude.h", "")], mma: &[] };

/// How many programs a new device compiles for an op that it runs twice.
fn compiled(folder: &Path) -> Result<usize> {
    let driver = Arc::new(NullDriver::new(&DIALECT, 1 << 20));
    let gpu = Arc::new(Gpu::with_cache(driver.clone(), Some(folder.to_path_buf())));
    let device = Device::from_backend("null:0", gpu);
    for _ in 0..2 {
        Tensor::zeros(4, DType::F32, &device)?.exp()?;
    }
    Ok(driver.compiled())
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    entries.map(|name| name.into_string().expect("a name")).collect()
}

#[test]
fn a_folder_that_others_may_write_to_is_not_used() -> Result<()> {
    let made = tempfile::tempdir().expect("a folder");
    for mode in [0o777, 0o770, 0o1777] {
        fs::set_permissions(made.path(), Permissions::from_mode(mode)).expect("it is ours");
        // Each device compiles for itself, once.
        assert_eq!((compiled(made.path())?, compiled(made.path())?), (2, 2), "{mode:o}");
        assert_eq!(names(made.path()), [""; 0], "{mode:o}");
    }
    fs::set_permissions(made.path(), Permissions::from_mode(0o755)).expect("it is ours");
    assert_eq!((compiled(made.path())?, compiled(made.path())?), (2, 0));
    // What is in it by then is not read either once others may have changed it.
    fs::set_permissions(made.path(), Permissions::from_mode(0o757)).expect("it is ours");
    assert_eq!(compiled(made.path())?, 2);
    Ok(())
}

#[test]
fn a_new_folder_and_its_files_are_the_users_alone() -> Result<()> {
    let made = tempfile::tempdir().expect("a folder");
    let folder = made.path().join("new/cache");
    assert_eq!((compiled(&folder)?, compiled(&folder)?), (2, 0));
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o077;
    assert_eq!((mode(&folder), mode(&folder.join("locks"))), (0, 0));
    assert!(names(&folder).iter().all(|name| mode(&folder.join(name)) == 0), "{:?}", names(&folder));
    Ok(())
}

#[test]
fn links_in_place_of_locks_and_kernels_are_not_followed() -> Result<()> {
    let made = tempfile::tempdir().expect("a folder");
    let (folder, other) = (made.path().join("cache"), made.path().join("other"));
    assert_eq!(compiled(&folder)?, 2);
    fs::write(&other, "kept").expect("it can be written");
    for within in ["locks", ""] {
        let place = folder.join(within);
        for name in names(&place).into_iter().filter(|name| place.join(name).is_file()) {
            fs::remove_file(place.join(&name)).expect("it is ours");
            symlink(&other, place.join(&name)).expect("a link");
        }
    }
    assert_eq!(compiled(&folder)?, 2);
    assert_eq!(fs::read(&other).expect("it is there"), b"kept");
    Ok(())
}

#[test]
fn what_a_killed_process_left_is_removed() -> Result<()> {
    let made = tempfile::tempdir().expect("a folder");
    fs::write(made.path().join(".isograd-killed.tmp"), "half of a kernel").expect("it can be written");
    assert_eq!(compiled(made.path())?, 2);
    assert!(names(made.path()).iter().all(|name| !name.starts_with('.')), "{:?}", names(made.path()));
    Ok(())
}
