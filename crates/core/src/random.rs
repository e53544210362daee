//! Random generators: Philox 4x32-10, the same stream on every backend.

// The constants have the digits of their derivation, as in the source of every other backend.
#![allow(clippy::excessive_precision)]

use crate::capture::{Draw, draw};
use crate::thread::{Event, Kind, Listener, Outer, listen, tell};
use crate::{DType, Result, Tensor, bf16, f16};
use parking_lot::Mutex;
use std::sync::Arc;

/// The position of a generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RngState {
    /// The key.
    pub seed: u64,
    /// The next block of four 32-bit draws.
    pub offset: u64,
    /// Distinguishes generators of the same seed.
    pub stream: u64,
}

impl RngState {
    /// A generator at this state; `base`, an i64 `[3]`, is added if there is one.
    pub(crate) fn generator(&self, base: Option<&Tensor>) -> Result<Rng> {
        let base = base.map_or(Ok(vec![0; 3]), Tensor::to_vec::<i64>)?;
        let RngState { seed, offset, stream } = *self;
        let [seed, offset, stream] = [(seed, 0), (offset, 1), (stream, 2)].map(|(v, i)| v.wrapping_add(base[i] as u64));
        Ok(Rng::from_state(RngState { seed, offset, stream }))
    }
}

/// A counter-based random generator. Clones share their state: the layers of a model draw from one sequence, and a checkpoint saves
/// one position. Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3".
///
/// ```
/// # use isograd_core::{DType, Device, Result, Rng, Tensor};
/// # fn example(device: &Device) -> Result<()> {
/// let rng = Rng::new(42);
/// let noise = Tensor::randn((2, 3), 0.0, 1.0, DType::F32, device, &rng)?;
/// // The next numbers of the same sequence; a generator of the same seed begins anew.
/// let more = Tensor::randn((2, 3), 0.0, 1.0, DType::F32, device, &rng)?;
/// let again = Tensor::randn((2, 3), 0.0, 1.0, DType::F32, device, &Rng::new(42))?;
/// assert!(again.allclose(&noise, 0.0, 0.0)? && !again.allclose(&more, 0.1, 0.1)?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Rng(Arc<Mutex<RngState>>);

impl Rng {
    /// A generator at the start of the sequence of `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng::from_state(RngState { seed, offset: 0, stream: 0 })
    }

    /// A generator that continues from `state`.
    pub fn from_state(state: RngState) -> Rng {
        Rng(Arc::new(Mutex::new(state)))
    }

    /// The current position.
    pub fn state(&self) -> RngState {
        *self.0.lock()
    }

    /// Sets the position of this generator and all its clones.
    pub fn set_state(&self, state: RngState) {
        *self.0.lock() = state;
    }

    /// An independent generator with the same seed and another stream.
    pub fn stream(&self, stream: u64) -> Rng {
        Rng::from_state(RngState { offset: 0, stream, ..self.state() })
    }

    /// True for a clone of this generator.
    pub(crate) fn is(&self, other: &Rng) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Takes the blocks for `n` draws and returns their start.
    pub(crate) fn advance(&self, n: usize) -> Result<Draw> {
        let mut state = self.0.lock();
        let before = *state;
        state.offset = state.offset.wrapping_add(n.div_ceil(4) as u64);
        drop(state);
        tell(Kind::Draw, || Event::Draw(self, before));
        draw(self, before)
    }
}

/// The generators drawn from, each with its state before the first draw.
pub(crate) type Journal = Vec<(Rng, RngState)>;

struct Journalist(Journal);

impl Listener for Journalist {
    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Draw]
    }

    fn hear(&mut self, event: &Event<'_>) {
        if let Event::Draw(drawn, before) = event
            && !self.0.iter().any(|(rng, _)| rng.is(drawn))
        {
            self.0.push(((*drawn).clone(), *before));
        }
    }
}

/// Runs `f` and records the generators that it draws from.
pub(crate) fn journal<R>(f: impl FnOnce() -> R) -> (R, Journal) {
    let (result, Journalist(journal)) = listen(Journalist(Journal::new()), Outer::Hears, f);
    (result, journal)
}

/// Runs `f` with the generators at their recorded states, then restores their current states.
pub(crate) fn replayed<R>(journal: &Journal, f: impl FnOnce() -> R) -> R {
    struct Restore(Journal);
    impl Drop for Restore {
        fn drop(&mut self) {
            self.0.iter().for_each(|(rng, state)| rng.set_state(*state));
        }
    }
    let _restore = Restore(journal.iter().map(|(rng, _)| (rng.clone(), rng.state())).collect());
    journal.iter().for_each(|(rng, state)| rng.set_state(*state));
    f()
}

/// One block: Philox 4x32 with ten rounds.
#[inline]
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut x0, mut x1, mut x2, mut x3], [mut k0, mut k1]) = (counter, key);
    for _ in 0..10 {
        let (p0, p1) = (0xD251_1F53u64 * x0 as u64, 0xCD9E_8D57u64 * x2 as u64);
        (x0, x1, x2, x3) = ((p1 >> 32) as u32 ^ x1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ x3 ^ k1, p0 as u32);
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    [x0, x1, x2, x3]
}

/// Block `block` of a generator: four 32-bit draws.
#[inline]
pub fn draws(state: RngState, block: u64) -> [u32; 4] {
    let at = state.offset.wrapping_add(block);
    let low_high = |v: u64| (v as u32, (v >> 32) as u32);
    let ((c0, c1), (c2, c3), (k0, k1)) = (low_high(at), low_high(state.stream), low_high(state.seed));
    philox([c0, c1, c2, c3], [k0, k1])
}

/// A draw as a float in [0, 1).
#[inline]
pub fn uniform(draw: u32) -> f32 {
    (draw >> 8) as f32 * f32::from_bits(0x3380_0000)
}

/// `[lo, hi)` as drawn by every backend: `min(fma(width, uniform(draw), lo), last)` in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UniformRange {
    /// The lower end.
    pub lo: f32,
    /// The difference of the ends.
    pub width: f32,
    /// The largest number of the output's dtype below the upper end; `lo` if the range is empty.
    pub last: f32,
}

impl UniformRange {
    /// The range of draws for a float `dtype`. Both ends are rounded to f32 first.
    pub fn new(lo: f64, hi: f64, dtype: DType) -> UniformRange {
        let (lo, hi) = (lo as f32, hi as f32);
        let last = match dtype {
            _ if lo == hi => lo,
            DType::F16 => below16(hi, |v| f16::from_f32(v).to_bits(), |bits| f16::from_bits(bits).to_f32()),
            DType::BF16 => below16(hi, |v| bf16::from_f32(v).to_bits(), |bits| bf16::from_bits(bits).to_f32()),
            _ => hi.next_down(),
        };
        UniformRange { lo, width: hi - lo, last }
    }

    /// The value of a draw, not yet rounded to a 16-bit dtype.
    #[inline]
    pub fn value(self, draw: u32) -> f32 {
        self.width.mul_add(uniform(draw), self.lo).min(self.last)
    }
}

/// The largest number of a 16-bit float dtype below `v`.
fn below16(v: f32, bits: impl Fn(f32) -> u16, value: impl Fn(u16) -> f32) -> f32 {
    let rounded = bits(v);
    if value(rounded) < v {
        return value(rounded);
    }
    // The next smaller number, by its bits: the bits of a positive number count up with it, and the neighbour of zero is the
    // smallest negative number.
    value(match rounded {
        0 | 0x8000 => 0x8001,
        b if b & 0x8000 != 0 => b + 1,
        b => b - 1,
    })
}

/// Two independent normal draws of mean 0 and deviation 1. The method is Box and Muller's, in operations that every IEEE device
/// rounds alike, so that all devices compute the same bits.
#[inline]
pub fn normal2(a: u32, b: u32) -> (f32, f32) {
    const LOG: [f32; 8] = [
        -1.151_461_031_0e-1,
        1.167_699_874_0e-1,
        -1.242_014_084_6e-1,
        1.424_932_278_7e-1,
        -1.666_805_766_5e-1,
        2.000_071_476_5e-1,
        -2.499_999_399_3e-1,
        3.333_333_117_4e-1,
    ];
    // L = -2 ln((a + 1) / 2^32) from exponent and mantissa.
    let n = a as u64 + 1;
    let mut exponent = 63 - n.leading_zeros() as i32;
    let mut m = f32::from_bits(0x3F80_0000 | (((n << (63 - exponent)) >> 40) as u32 & 0x7F_FFFF));
    if m.to_bits() > 0x3FB5_04F3 {
        m *= 0.5;
        exponent += 1;
    }
    let (k, f) = ((exponent - 32) as f32, m - 1.0);
    let z = f * f;
    let p = LOG.iter().fold(7.037_683_629_2e-2_f32, |p, &c| p.mul_add(f, c));
    let mut y = (f * z) * p;
    y = k.mul_add(-2.121_944_4e-4, y);
    y = (-0.5f32).mul_add(z, y);
    let r = k.mul_add(0.693_359_375, f + y);
    let l = if r < 0.0 { -2.0 * r } else { 0.0 };
    // R = sqrt(L) by Newton's steps for 1 / sqrt(L).
    let mut radius = 0.0;
    if l > 0.0 {
        let h = 0.5 * l;
        let mut q = f32::from_bits(0x5F37_59DF - (l.to_bits() >> 1));
        for _ in 0..3 {
            q *= (-(h * q)).mul_add(q, 1.5);
        }
        let s = l * q;
        radius = (-s).mul_add(s, l).mul_add(0.5 * q, s);
    }
    // Sine and cosine of b's angle within its quadrant. The two highest bits of b select the quadrant.
    let t = ((b & 0x3FFF_FFFF) >> 6) as i32 - (1 << 23);
    let x = t as f32 * f32::from_bits(0x33C9_0FDB);
    let w = x * x;
    let sine = (-1.951_529_589_1e-4_f32).mul_add(w, 8.332_160_873_6e-3).mul_add(w, -1.666_665_461_1e-1);
    let sine = (x * w).mul_add(sine, x);
    let cosine = 2.443_315_711_809_948e-5_f32.mul_add(w, -1.388_731_625_493_765e-3);
    let cosine = (w * w).mul_add(cosine.mul_add(w, 4.166_664_568_298_827e-2), (-0.5f32).mul_add(w, 1.0));
    let (c, s) = match b >> 30 {
        0 => (cosine, sine),
        1 => (-sine, cosine),
        2 => (-cosine, -sine),
        _ => (sine, -cosine),
    };
    (radius * c, radius * s)
}
