//! How teams of threads take rows, and groups of threads columns.

use crate::driver::{Address, Geometry, Limits};
use crate::launch::device::Gpu;
use crate::launch::grid::group_size;
use crate::launch::words::fits;
use crate::program::source::Variant;
use isograd_core::DType;

/// Rows of fewer elements are left to one thread each.
pub const SHORT: usize = 32;
/// Local memory that a group may have on every device.
const LOCAL: usize = 48 << 10;
/// Columns of a group that joins parts.
const COLUMNS: usize = 32;

/// How the threads of a team share a row.
#[derive(Clone, Copy)]
pub struct Kept {
    /// Arrays cached in shared memory beyond what registers hold.
    pub held: usize,
    /// A team grows until each thread keeps no more than so many bytes of an array.
    pub bytes: usize,
    /// How many registers a thread of the largest team has for the numbers of an array.
    pub registers: usize,
    /// Words that a thread reads at once beyond the words that it keeps.
    pub batch: usize,
    /// Whether a word may not hold elements of two rows.
    pub is_whole: bool,
    /// Threads of the largest team. A large one keeps more of a long row; of smaller ones some read while others compute.
    pub team: usize,
    /// Threads of a multiprocessor that run together, each with the registers of a row's words.
    pub together: usize,
}

impl Kept {
    /// Every word is read when it is needed.
    pub const NONE: Kept =
        Kept { held: 0, bytes: 64, registers: 0, batch: 4, is_whole: false, team: 1024, together: 1024 };
    /// As above, for a kernel that computes more than it writes.
    pub const READ: Kept = Kept { team: 256, ..Kept::NONE };
    /// One array.
    pub const ONE: Kept = Kept { held: 1, registers: 32, batch: 2, ..Kept::NONE };
    /// One array that does not fit these registers, of a kernel that computes little: half as many threads read more at once.
    const LONG: Kept = Kept { registers: 64, batch: 8, team: 512, together: 512, ..Kept::ONE };
    /// One array of 16-bit elements.
    pub const HALVES: Kept = Kept { team: 512, ..Kept::ONE };
    /// Two arrays.
    pub const TWO: Kept = Kept { held: 2, bytes: 32, registers: 16, batch: 2, ..Kept::NONE };
    /// One array, kept whole.
    pub const ALL: Kept = Kept { registers: usize::MAX >> 8, batch: 1, ..Kept::NONE };
    /// Beside two arrays, a weight and two sums of each column.
    pub const COLUMNS: Kept = Kept { bytes: 32, registers: 8, batch: 1, is_whole: true, ..Kept::NONE };

    /// The array that a norm keeps of rows of `extent` elements.
    pub fn normalised(dtype: DType, extent: usize) -> Kept {
        let numbers = Kept::ONE.registers * size_of::<f32>() / dtype.acc().size();
        if extent > Kept::ONE.team * numbers { Kept::LONG } else { Kept::ONE }
    }
}

/// Adds how teams of threads take rows, and returns the launch.
pub fn rows(
    gpu: &Gpu,
    variant: Variant,
    dtype: DType,
    count: usize,
    extent: usize,
    addresses: &[Address],
    kept: Kept,
) -> (Variant, Geometry) {
    let limits = gpu.driver().limits();
    let size = dtype.size();
    let steps = kept.is_whole.then_some(extent);
    let vector = if fits(16 / size, steps, addresses.iter().map(|&address| (address, size))) { 16 / size } else { 1 };
    let is_whole = extent.is_multiple_of(vector);
    let words = extent / vector;
    let most = kept.registers * size_of::<f32>() / dtype.acc().size() / vector;
    // A smaller team has more registers for each thread.
    let few = (kept.bytes / size / vector).min(if most > 0 { 2 * most } else { kept.batch });
    let largest = 1 << limits.max_group.clamp(1, kept.team).ilog2();
    // Elements outside of words are one for each thread.
    let mut team = if is_whole { words.next_power_of_two().min(4) } else { 16 }.min(largest);
    while team < largest && team * few < words {
        team *= 2;
    }
    let threads = team.max(group_size(limits));
    let per = words.div_ceil(team).max(1).min(if team < largest { few.min(2 * most) } else { most });
    let mut variant = variant
        .define("THREADS", threads)
        .define("TEAM", team)
        .words(vector, size)
        .define("BATCH", kept.batch)
        .define("PER", per)
        .flag("WHOLE", is_whole);
    let mut geometry = Geometry::new([count.div_ceil(threads / team).clamp(1, 1 << 20), 1, 1], threads);
    if per > 0 && words > team * per {
        variant = variant.define("OTHERS", true).define("AT_ONCE", (kept.together / threads).max(1));
        if kept.held > 0 {
            let (most, word) = (words.div_ceil(team) - per, vector * size);
            let held = held_room(limits, kept, threads, dtype).saturating_sub(kept.held * word);
            let held = (held / (threads * word * kept.held)).min(most);
            // Whole batches, if there is room for one: a batch that is held in part is slower.
            let held = if held < kept.batch { held } else { held / kept.batch * kept.batch };
            variant = variant.define("HELD", held);
            geometry.given = kept.held * (held * threads + 1) * word;
        }
    }
    (variant, geometry)
}

/// Local memory for the words of a group of so many threads, so that groups run together. Joins have a part of their own.
fn held_room(limits: &Limits, kept: Kept, threads: usize, dtype: DType) -> usize {
    let share = limits.given_memory * threads.min(kept.together) / kept.together;
    let joined = if limits.wave > 1 { threads.div_ceil(limits.wave) } else { threads };
    // Joins are of two numbers at most, and take turns with two starts.
    share.max(limits.given_memory.min(LOCAL)).saturating_sub(4 * joined * dtype.acc().size())
}

/// Groups that take COLUMNS columns each, in several `lines` of groups.
pub fn columns(gpu: &Gpu, variant: Variant, extent: usize, lines: usize) -> (Variant, Geometry) {
    let threads = 1 << gpu.driver().limits().max_group.min(1024).ilog2();
    (variant.define("THREADS", threads), Geometry::new([extent.div_ceil(COLUMNS), lines, 1], threads))
}
