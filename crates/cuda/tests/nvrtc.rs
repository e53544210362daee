//! Every kernel compiles in every dtype it runs on, for three generations of GPUs: `nvrtc::sm_90::softmax_rows`.
//!
//! A machine without NVRTC ignores this; `ISOGRAD_REQUIRE=nvrtc` makes it a failure.

use isograd_core::DType;
use isograd_cuda::{DIALECT, Nvrtc};
use isograd_gpu::table::{Entry, entries};
use libtest_mimic::{Arguments, Failed, Trial};

/// Ampere, Hopper and Blackwell.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_100"];

const DTYPES: [DType; 8] =
    [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8, DType::Bool];

fn main() {
    let arguments = Arguments::from_args();
    let trials = match Nvrtc::open() {
        Ok(nvrtc) => trials(nvrtc),
        Err(error) => {
            let required = std::env::var("ISOGRAD_REQUIRE").unwrap_or_default();
            let is_required = required.split(',').any(|name| name.trim() == "nvrtc");
            let missing = move || Err(Failed::from(error.to_string()));
            vec![Trial::test("nvrtc::library", missing).with_ignored_flag(!is_required)]
        }
    };
    libtest_mimic::run(&arguments, trials).exit();
}

fn trials(nvrtc: &'static Nvrtc) -> Vec<Trial> {
    let all = entries(&DIALECT).expect("the kernels' files are in the program");
    let each = ARCHITECTURES.iter().flat_map(|&architecture| all.iter().map(move |entry| (architecture, entry)));
    let trial = |(architecture, entry): (&'static str, &Entry)| {
        let entry = entry.clone();
        let name = format!("nvrtc::{architecture}::{}", entry.name);
        Trial::test(name, move || compile(nvrtc, &entry, architecture))
    };
    each.map(trial).collect()
}

/// Compiles a kernel in every dtype; one that runs on none is a failure.
fn compile(nvrtc: &Nvrtc, entry: &Entry, architecture: &str) -> Result<(), Failed> {
    let mut compiled = 0;
    for dtype in DTYPES {
        let Ok(source) = entry.source(&DIALECT, dtype) else { continue };
        nvrtc.compile(&source, architecture).map_err(|error| format!("{dtype}: {error}"))?;
        compiled += 1;
    }
    if compiled == 0 { Err("it has no source".into()) } else { Ok(()) }
}
