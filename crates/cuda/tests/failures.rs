//! A call of the driver that fails leaves nothing wrong behind: on the emulator of tools/simt, which stands in for CUDA,
//! `cuda::failures::uploads`.
//!
//! Without the emulator in `ISOGRAD_CUDA_LIB` this is ignored; `ISOGRAD_REQUIRE=simt` makes that a failure.

use crate::is_required;
use isograd_core::{Device, Result, Tensor};
use isograd_cuda as _;
use libtest_mimic::{Failed, Trial};
use std::path::PathBuf;
use std::process::Command;

/// Set where this program was started by itself: the emulator reads its settings once.
pub const CHILD: &str = "ISOGRAD_TEST_CHILD";

pub fn trials() -> Vec<Trial> {
    let folder = std::env::var_os("ISOGRAD_CUDA_LIB").map(PathBuf::from);
    match folder.filter(|folder| folder.join("libsimt.so").exists()) {
        Some(_) => vec![Trial::test("cuda::failures::uploads", uploads)],
        None => {
            let missing = || Err(Failed::from("ISOGRAD_CUDA_LIB is not the emulator's folder"));
            vec![Trial::test("cuda::failures::emulator", missing).with_ignored_flag(!is_required("simt"))]
        }
    }
}

/// The emulator runs copies late, and says where one reads or writes memory that is no more there.
fn uploads() -> std::result::Result<(), Failed> {
    for call in ["cuEventRecord", "cuMemcpyHtoDAsync", "cuMemcpyDtoDAsync"] {
        for n in [1, 2, 5, 8] {
            let mut command = Command::new(std::env::current_exe()?);
            let output = command.env(CHILD, "1").env("SIMT_FAIL", format!("{call}:{n}")).output()?;
            let (said, error) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
            if said != "1 failed, 0 are wrong\n" || !error.is_empty() {
                return Err(format!("call {n} of {call}: {said}{error}").into());
            }
        }
    }
    Ok(())
}

/// How many uploads failed, and how many others have other values afterwards. Every place of the ring is used again, and for larger copies.
pub fn use_device() -> Result<String> {
    let device: Device = "cuda:0".parse()?;
    let upload = |i: usize| {
        let values: Vec<i32> = (0..20_000 << (i / 8)).map(|k| (k * 7 + i) as i32).collect();
        (Tensor::from_slice(&values, values.len(), &device), values)
    };
    let (uploaded, failed): (Vec<_>, Vec<_>) = (0..24).map(upload).partition(|(t, _)| t.is_ok());
    let mut wrong = 0;
    for (t, values) in uploaded {
        wrong += usize::from(t?.to_vec::<i32>()? != values);
    }
    Ok(format!("{} failed, {wrong} are wrong", failed.len()))
}
