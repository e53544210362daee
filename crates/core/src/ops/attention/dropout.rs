//! Dropout of attention's weights.

use crate::backend::{Kernel, Random};
use crate::capture::Draw;
use crate::ops::random::draw::threshold;
use crate::tensor::{Attributes, run};
use crate::{DType, Device, Result, Rng, RngState, Shape, Tensor};
use smallvec::SmallVec;
use std::ops::Range;

const OP: &str = "scaled_dot_product_attention";

/// The draws that decide which weights are kept: one for each element of `[B, Hq, Tq, Tk]`.
#[derive(Clone)]
pub struct Kept {
    pub draw: Draw,
    /// Draws below this number keep a weight.
    pub threshold: i64,
    /// The factor of kept weights.
    pub scale: f64,
    dims: [usize; 4],
}

impl Kept {
    /// Takes the draws for the scores. `None` if all weights are kept.
    pub fn new(dropout: Option<&(f64, Rng)>, dims: [usize; 4]) -> Result<Option<Kept>> {
        let Some((p, rng)) = dropout.filter(|(p, _)| *p > 0.0) else { return Ok(None) };
        let scale = if *p == 1.0 { 0.0 } else { 1.0 / (1.0 - p) };
        let draw = rng.advance(dims.iter().product())?;
        Ok(Some(Kept { draw, threshold: threshold(1.0 - p), scale, dims }))
    }

    /// The draws from a state, or from a state on the device, relative to which it is.
    pub fn from_state(state: RngState, base: Option<&Tensor>, threshold: i64, scale: f64, dims: [usize; 4]) -> Kept {
        Kept { draw: Draw { state, base: base.cloned() }, threshold, scale, dims }
    }

    /// The factors of the weights of some queries and keys, `[B, Hq, rows, keys]`: 0, or the scale.
    pub fn factors(&self, rows: &Range<usize>, keys: &Range<usize>, dtype: DType, device: &Device) -> Result<Tensor> {
        let [b, h, queries, width] = self.dims;
        let size = rows.len() * width;
        let bits = if rows.len() == queries {
            self.bits(0, b * h * size, device)?
        } else {
            let of_head = |head: usize| self.bits((head * queries + rows.start) * width, size, device);
            let heads = (0..b * h).map(of_head).collect::<Result<Vec<_>>>()?;
            Tensor::concat(&heads.iter().collect::<Vec<_>>(), 0)?
        };
        let bits = bits.reshape((b, h, rows.len(), width))?.narrow(3, keys.start, keys.len())?;
        bits.cast(dtype)?.mul_scalar(self.scale)
    }

    /// `n` draws from element `first` on, as u8: 1 for a weight that is kept.
    fn bits(&self, first: usize, n: usize, device: &Device) -> Result<Tensor> {
        // Draws come in blocks of four.
        let (block, before) = (first / 4, first % 4);
        let y = Tensor::allocate(OP, &Shape::from(before + n), DType::U8, device)?;
        let state = self.draw.state;
        let state = RngState { offset: state.offset.wrapping_add(block as u64), ..state };
        let ints = Draw { state, base: None }.ints(self.threshold);
        let base: SmallVec<[&Tensor; 1]> = self.draw.base.iter().collect();
        run(OP, Kernel::Random(Random::Bernoulli), &base, &[&y], Attributes::ints(&ints))?;
        y.narrow(0, before, n)
    }
}
