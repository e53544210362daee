//! What goes wrong is said: on the emulator of tools/simt, which stands in for ROCm, `hip::failures::unknown_architecture`.
//!
//! Without the emulator in `ISOGRAD_HIP_LIB` this is ignored; `ISOGRAD_REQUIRE=simt` makes that a failure.

use crate::is_required;
use isograd_core::{DType, Device, Result, Tensor};
use isograd_gpu::Driver;
use isograd_hip::Hip;
use libtest_mimic::{Failed, Trial};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set where this program was started by itself: libraries are opened once, and settings are read once.
pub const CHILD: &str = "ISOGRAD_TEST_CHILD";

/// What ROCm has had from version 6 on, and graphs, without which steps are not recorded.
const OPTIONAL: [&str; 3] = ["hipGetDevicePropertiesR0600", "hipStreamBeginCapture", "hipGraphInstantiate"];

/// Of a tensor, which is more than the memory of `little_memory`.
const ELEMENTS: usize = 4096;

pub fn trials() -> Vec<Trial> {
    let folder = std::env::var_os("ISOGRAD_HIP_LIB").map(PathBuf::from);
    match folder.filter(|folder| folder.join("libsimt.so").exists()) {
        Some(folder) => of(&folder),
        None => {
            let missing = || Err(Failed::from("ISOGRAD_HIP_LIB is not the emulator's folder"));
            vec![Trial::test("hip::failures::emulator", missing).with_ignored_flag(!is_required("simt"))]
        }
    }
}

fn of(emulator: &Path) -> Vec<Trial> {
    let trial = |name: &str, run: fn(&Path)| {
        let emulator = emulator.to_path_buf();
        Trial::test(format!("hip::failures::{name}"), move || {
            run(&emulator);
            Ok(())
        })
    };
    vec![
        trial("broken_code_object", broken_code_object),
        trial("source_that_is_none", source_that_is_none),
        trial("unknown_architecture", |emulator| {
            let said = said(emulator, &[("SIMT_ARCH", "gfx803")]);
            assert!(said.contains("is a \"gfx803\": the kernels run on gfx9 and later"), "{said}");
        }),
        trial("no_memory", |emulator| {
            let said = said(emulator, &[("SIMT_MEMORY", "0")]);
            assert!(said.contains("device 0, SIMT emulator") && said.contains("has no memory"), "{said}");
        }),
        trial("little_memory", |emulator| {
            let said = said(emulator, &[("SIMT_MEMORY", "8192")]);
            assert!(said.contains("OutOfMemory") && said.contains("the device has 8192"), "{said}");
        }),
        trial("missing_function", |emulator| {
            let said = said(old(emulator, &["hipModuleLaunchKernel"]).path(), &[]);
            assert!(said.contains("it has no hipModuleLaunchKernel, which ROCm has from version 5 on"), "{said}");
        }),
        trial("missing_graphs_and_properties", |emulator| {
            for wave in ["64", "32"] {
                let architecture = if wave == "64" { "gfx90a" } else { "gfx1100" };
                let said = said(old(emulator, &OPTIONAL).path(), &[("SIMT_ARCH", architecture)]);
                assert_eq!(said, format!("waves of {wave}: [1.0, 2.0, 3.0] not recorded\n"));
            }
        }),
        trial("nothing_missing", |emulator| {
            let said = said(emulator, &[("SIMT_ARCH", "gfx1100")]);
            assert_eq!(said, "waves of 32: [1.0, 2.0, 3.0] recorded\n");
        }),
    ]
}

/// What another process says that uses the device with ROCm's libraries from this folder.
fn said(folder: &Path, settings: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(CHILD, "1").env("ISOGRAD_HIP_LIB", folder).env_remove("LD_LIBRARY_PATH").env("ISOGRAD_CACHE", "");
    let output = command.envs(settings.iter().copied()).output().unwrap();
    String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
}

/// What is known of the waves, the first values of three runs of a step that adds 1, and whether that is recorded.
pub fn use_device() -> Result<String> {
    let device: Device = "hip:0".parse()?;
    let found = Device::list().into_iter().find(|(name, _)| *name == "hip").expect("the backend is linked").1?;
    let waves = found[0].description.split(", ").find(|part| part.starts_with("waves")).unwrap_or_default();
    let one = Tensor::ones(ELEMENTS, DType::F32, &device)?;
    let mut step = device.capture(|x: Tensor| x.add(&one));
    let mut first = Vec::new();
    for run in 0..3 {
        let x = Tensor::full(ELEMENTS, run, DType::F32, &device)?;
        first.push(step.run(x)?.to_vec::<f32>()?[0]);
    }
    Ok(format!("{waves}: {first:?} {}", if step.is_recorded() { "recorded" } else { "not recorded" }))
}

/// The emulator as a library of an older ROCm: the names of these functions are not found in it.
fn old(emulator: &Path, missing: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut library = fs::read(emulator.join("libamdhip64.so")).unwrap();
    for name in missing {
        let spelled = [b"\0", name.as_bytes(), b"\0"].concat();
        let at: Vec<usize> =
            (0..library.len() - spelled.len()).filter(|&i| library[i..].starts_with(&spelled)).collect();
        assert!(!at.is_empty(), "the emulator has no {name}");
        at.into_iter().for_each(|i| library[i + 1] = b'-');
    }
    fs::write(folder.path().join("libamdhip64.so.5"), library).unwrap();
    symlink(emulator.join("libsimt.so"), folder.path().join("libsimt.so")).unwrap();
    folder
}

fn broken_code_object(_: &Path) {
    let hip = Hip::new(0).unwrap();
    let refused = |binary: &[u8]| {
        let error = hip.load(binary).err().expect("what is no program is loaded").to_string();
        assert!(error.contains("load: Backend: HIP: ") && error.contains("(200)"), "{error}");
    };
    refused(&[0; 4096]);
    let (_, binary) = hip.compile("extern \"C\" __global__ void isograd_nothing() {}").unwrap();
    let mut binary = binary.unwrap();
    let program = hip.load(&binary).unwrap();
    hip.entry(&program, "nothing").unwrap();
    let error = hip.entry(&program, "something").err().expect("an entry that is none is found").to_string();
    assert!(error.contains("there is no kernel isograd_something"), "{error}");
    // The kind of processor that an ELF file is for.
    binary[18] ^= 0xff;
    refused(&binary);
}

fn source_that_is_none(_: &Path) {
    let error = Hip::new(0).unwrap().compile("#line 7 \"wrong.c\"\nint f( { }").err().expect("it compiles").to_string();
    assert!(error.contains("HIPRTC_ERROR_COMPILATION (6)") && error.contains("wrong.c:7"), "{error}");
}
