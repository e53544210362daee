//! Running sums and products along the last dimension.

use crate::access::{Acc, Source, Target, load, store, with_acc};
use isograd_core::backend::Scan;
use isograd_core::{Call, Result};
use rayon::prelude::*;

pub fn run(call: &Call<'_>, kind: Scan) -> Result<()> {
    let source = Source::new(&call.inputs[0])?;
    let mut target = Target::new(&call.outputs[0])?;
    let (reverse, exclusive) = (call.ints[0] != 0, call.ints[1] != 0);
    with_acc!(source.dtype, scan(&source, &mut target, kind, reverse, exclusive));
    Ok(())
}

fn scan<A: Acc>(source: &Source<'_>, target: &mut Target<'_>, kind: Scan, reverse: bool, exclusive: bool) {
    let row = source.layout.shape().last().copied().unwrap_or(1);
    let (view, layout, dtype) = (source.view(), source.layout, target.dtype);
    target.elements().par_chunks_mut(row * dtype.size()).enumerate().for_each(|(r, bytes)| {
        let mut x = vec![A::from_i64(0); row];
        load(view, layout, r * row, &mut x);
        if reverse {
            x.reverse();
        }
        let mut total = A::from_i64((kind == Scan::Prod) as i64);
        for v in &mut x {
            let next = match kind {
                Scan::Sum => A::back(total.number() + v.number()),
                Scan::Prod => A::back(total.number() * v.number()),
            };
            *v = if exclusive { total } else { next };
            total = next;
        }
        if reverse {
            x.reverse();
        }
        store(&x, dtype, bytes);
    });
}
