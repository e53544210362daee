//! What a run checks, on which devices.

use isograd_core::{DType, Device};
use regex::Regex;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// A check of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    /// Values and gradients from PyTorch.
    Golden,
    /// The result against f64 on the CPU.
    Forward,
    /// The result and gradients with NaN, infinities and zeros among the inputs.
    Special,
    /// The gradients against f64 on the CPU.
    Gradients,
    /// The gradient of each input if it is the only one with a gradient.
    Alone,
    /// Gradients of inputs that are used twice.
    Twice,
    /// The results of a fused kernel against the composite on the same device.
    Composite,
    /// `<f(x), y> = <x, f*(y)>` of a linear op.
    Adjoint,
    /// Strided and expanded inputs against plain ones.
    Strided,
    /// No kernel writes outside of its buffers.
    Guards,
    /// Two runs give the same bits.
    Repeats,
    /// The number of launches is at most that of the row.
    Launches,
    /// First derivatives against finite differences.
    Gradcheck,
    /// Second derivatives against finite differences.
    Gradgradcheck,
    /// Results without a derivative are outside of the tape.
    Unrecorded,
    /// `detect_anomaly` reports nothing where all results and gradients are finite.
    Anomalies,
    /// Where a result of finite inputs is NaN, a gradient is not finite.
    Undefined,
    /// Second derivatives are not NaN where results and gradients are finite.
    Singular,
}

impl Check {
    /// All checks, in the order of execution.
    pub const ALL: [Check; 18] = [
        Check::Golden,
        Check::Forward,
        Check::Special,
        Check::Gradients,
        Check::Alone,
        Check::Twice,
        Check::Composite,
        Check::Adjoint,
        Check::Strided,
        Check::Guards,
        Check::Repeats,
        Check::Launches,
        Check::Gradcheck,
        Check::Gradgradcheck,
        Check::Unrecorded,
        Check::Anomalies,
        Check::Undefined,
        Check::Singular,
    ];
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}").to_lowercase())
    }
}

impl FromStr for Check {
    type Err = String;

    fn from_str(s: &str) -> Result<Check, String> {
        let names = Check::ALL.map(|check| check.to_string()).join(", ");
        Check::ALL.into_iter().find(|check| check.to_string() == s).ok_or_else(|| format!("{s:?} is none of {names}"))
    }
}

/// The extent of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Extent {
    /// Every check in every dtype, at many sizes, and the speed of every op.
    #[default]
    Whole,
    /// The checks of [`Extent::Whole`] without the speeds.
    Checks,
    /// Each check for some cases, in minutes even where kernels compile slowly.
    Quick,
    /// No checks: the speed of every op.
    Speeds,
}

/// The checks that ran, for the page of the kernels' status.
impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Extent::Whole | Extent::Checks => "whole",
            Extent::Quick => "quick",
            Extent::Speeds => "speeds",
        })
    }
}

impl Extent {
    /// True if every check runs in every dtype.
    pub(crate) fn is_whole(self) -> bool {
        matches!(self, Extent::Whole | Extent::Checks)
    }

    fn has_speeds(self) -> bool {
        matches!(self, Extent::Whole | Extent::Speeds)
    }
}

/// One case of one check, to be repeated: `softmax:forward:f16:2x3:7`, or `gelu:golden:f64:gelu/tanh_2x3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// The op's name.
    pub op: String,
    /// The check.
    pub check: Check,
    /// The dtype.
    pub dtype: DType,
    /// The case: a [`Seeded`](crate::strategy::Seeded), or the name of a golden case.
    pub case: String,
}

impl fmt::Display for Repeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}", self.op, self.check, self.dtype, self.case)
    }
}

/// The command of a separate process, and the devices that need one. The process calls [`serve`](crate::serve).
#[derive(Clone, Debug)]
pub struct Apart {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Its environment, as it was before a device was opened: loaders of OpenCL truncate variables of their process.
    pub environment: Vec<(OsString, OsString)>,
    /// The names of the devices.
    pub devices: Vec<String>,
    /// The time for the checks of an op in one dtype, with all that they compile. A process that takes longer hangs: it is ended, and its checks
    /// have failed.
    pub longest: Duration,
}

impl Apart {
    /// An hour, which no checks take.
    pub const LONGEST: Duration = Duration::from_secs(60 * 60);
}

/// The options of a run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The devices.
    pub devices: Vec<Device>,
    /// Only the ops whose names match.
    pub filter: Option<Regex>,
    /// Only this dtype of the floats.
    pub dtype: Option<DType>,
    /// The number of drawn cases of a check; the default depends on the extent.
    pub cases: Option<u32>,
    /// Their seed.
    pub seed: u64,
    /// The extent.
    pub extent: Extent,
    /// This case alone.
    pub repeat: Option<Repeat>,
    /// The folder for the results of cases from outside, as `<device>/<case>.safetensors`.
    pub dump: Option<PathBuf>,
    /// The commit of the running program, for the report.
    pub commit: Option<String>,
    /// The command of separate processes, for devices that need them. A repeated case runs in this process.
    pub apart: Option<Apart>,
}

impl Options {
    pub(crate) fn has_speeds(&self) -> bool {
        self.extent.has_speeds() && self.repeat.is_none()
    }
}
