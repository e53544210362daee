//! Random draws, with the same bits as on every other backend.

use crate::access::{PARALLEL, Target, store};
use isograd_core::backend::Random;
use isograd_core::random::{UniformRange, draws, normal2};
use isograd_core::{Call, Result, RngState};
use rayon::prelude::*;

/// Blocks of four draws that one thread takes at a time.
const BLOCKS: usize = 1024;

pub fn run(call: &Call<'_>, kind: Random) -> Result<()> {
    let mut target = Target::new(&call.outputs[0])?;
    let [seed, offset, stream, threshold] = [0, 1, 2, 3].map(|i| call.ints.get(i).copied().unwrap_or(0) as u64);
    let state = RngState { seed, offset, stream };
    let dtype = target.dtype;
    let bytes = target.elements();
    match kind {
        Random::Bernoulli => each(state, bytes, 1, |draws, out| {
            out.iter_mut().zip(draws).for_each(|(out, draw)| *out = ((draw as u64) < threshold) as u8);
        }),
        Random::Uniform => {
            let range = UniformRange::new(call.floats[0], call.floats[1], dtype);
            each(state, bytes, dtype.size(), |draws, out| {
                let values = draws.map(|draw| range.value(draw));
                store(&values[..out.len() / dtype.size()], dtype, out);
            });
        }
        Random::Normal => {
            let (mean, std) = (call.floats[0] as f32, call.floats[1] as f32);
            each(state, bytes, dtype.size(), |[a, b, c, d], out| {
                let ((z0, z1), (z2, z3)) = (normal2(a, b), normal2(c, d));
                let values = [z0, z1, z2, z3].map(|z| std.mul_add(z, mean));
                store(&values[..out.len() / dtype.size()], dtype, out);
            });
        }
    }
    Ok(())
}

/// Passes each block's draws to `f`, together with the bytes of its (up to four) elements.
fn each(state: RngState, bytes: &mut [u8], size: usize, f: impl Fn([u32; 4], &mut [u8]) + Sync) {
    let some = |first: usize, bytes: &mut [u8]| {
        bytes.chunks_mut(4 * size).enumerate().for_each(|(i, out)| f(draws(state, (first + i) as u64), out));
    };
    if bytes.len() < PARALLEL {
        return some(0, bytes);
    }
    bytes.par_chunks_mut(4 * size * BLOCKS).enumerate().for_each(|(i, bytes)| some(i * BLOCKS, bytes));
}
