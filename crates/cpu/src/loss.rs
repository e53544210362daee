//! Cross entropy.

use crate::access::{Source, Strided, in_vectors, load};
use crate::slices::{Elements, Slices, largest, row, sum, sums, write};
use isograd_core::backend::{class_error, index_error};
use isograd_core::fused::Fused;
use isograd_core::operands::Output;
use isograd_core::ops::loss::cross_entropy::{
    CrossEntropyBackward, CrossEntropyBackwardInputs, CrossEntropyForward, CrossEntropyInputs, CrossEntropyOutputs,
    LossTotal,
};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Call, Operand, Result};

/// The classes of all losses; `None` where a target is ignored. Errors: `Index` for the first that is out of range.
fn classes(op: &'static str, target: &Operand<'_>, loss: &CrossEntropyForward) -> Result<Vec<Option<usize>>> {
    let source = Source::new(target)?;
    let mut targets = vec![0i64; loss.outer * loss.inner];
    load(source.view(), &Strided::new(source.layout), 0, &mut targets);
    let class = |(i, &class): (usize, &i64)| match usize::try_from(class) {
        _ if class == loss.ignored => Ok(None),
        Ok(found) if found < loss.classes => Ok(Some(found)),
        _ => Err(class_error(op, &index_error(op, i as i64, class, loss.classes))),
    };
    targets.iter().enumerate().map(class).collect()
}

/// The number of a class; 1 without numbers.
fn number(weights: &Option<Vec<f32>>, class: usize) -> f32 {
    weights.as_ref().map_or(1.0, |weights| weights[class])
}

pub fn cross_entropy(call: &Call<'_>, descriptor: &CrossEntropyForward) -> Result<()> {
    let CrossEntropyInputs { x, target, weight, bytes } = descriptor.inputs(call);
    let CrossEntropyOutputs { y, statistics, divisor } = descriptor.outputs(call);
    let (weight, bytes) = (Elements::all(weight)?, Elements::all(bytes)?);
    let classes = classes(call.op, target, descriptor)?;
    let [add, exp] = [Pointwise::AddScalar, Pointwise::Exp].map(row);
    let share = descriptor.smoothing / descriptor.classes as f64;
    // The loss, the largest logit and the logarithm of the sum of powers.
    let mut found = vec![[0.0f32; 3]; classes.len()];
    let slices = Slices::new([descriptor.outer, descriptor.classes, descriptor.inner]);
    slices.map(call.op, &Elements::new(x)?, &mut found, |i, x, [z, e]| {
        let Some(class) = classes[i] else { return [0.0; 3] };
        let of_class = number(&weight, class);
        if descriptor.is_logarithm {
            return [-x[class] * of_class, 0.0, 0.0];
        }
        let max = largest(x);
        add(&[x], &[-max], &mut [&mut *z]);
        exp(&[z], &[], &mut [e]);
        let log = sum(e).ln() as f32;
        let mut loss = f64::from((log - z[class]) * of_class);
        if descriptor.smoothing > 0.0 {
            let all = match &weight {
                Some(weight) => sums([&*z, weight], |[z, w]| [w * (z - log)])[0],
                None => sums([&*z], |[z]| [z - log])[0],
            };
            loss = loss * (1.0 - descriptor.smoothing) - all * share;
        }
        [loss as f32, max, log]
    })?;
    let numbers: Vec<f32> = [1, 2].iter().flat_map(|&k| found.iter().map(move |row| row[k])).collect();
    write(statistics, &numbers)?;
    let Some(divisor) = divisor else {
        return write(y, &found.iter().map(|row| row[0]).collect::<Vec<f32>>());
    };
    let counted = || classes.iter().zip(&found).filter_map(|(class, row)| Some(((*class)?, row[0])));
    let numbers = if bytes.is_some() { &bytes } else { &weight };
    let count = match descriptor.total {
        LossTotal::Sum { divisor } => divisor,
        _ => counted().map(|(class, _)| f64::from(number(numbers, class))).sum(),
    };
    let total: f64 = counted().map(|(class, loss)| f64::from(loss * number(&bytes, class))).sum();
    write(divisor, &[count as f32])?;
    // Without bytes there is no loss; without targets it is NaN.
    write(y, &[if bytes.is_some() && count == 0.0 { 0.0 } else { (total / count) as f32 }])
}

// dx = p sum(q) - q, where the loss is -sum(q ln p)
pub fn cross_entropy_backward(call: &Call<'_>, descriptor: &CrossEntropyBackward) -> Result<()> {
    let CrossEntropyBackwardInputs { dy, x, target, statistics, weight, bytes, divisor, all_weights } =
        descriptor.inputs(call);
    let (Output { y: dx }, loss) = (descriptor.outputs(call), descriptor.0);
    let (weight, bytes) = (Elements::all(weight)?, Elements::all(bytes)?);
    let [dy, divisor, all_weights] = [Some(dy), divisor, all_weights].map(Elements::all);
    let (dy, divisor, all_weights) = (dy?.unwrap_or_default(), divisor?, all_weights?);
    let statistics = Elements::all(Some(statistics))?.unwrap_or_default();
    let classes = classes(call.op, target, &loss)?;
    let [add, exp] = [Pointwise::AddScalar, Pointwise::Exp].map(row);
    let (kept, share) = (1.0 - loss.smoothing as f32, (loss.smoothing / loss.classes as f64) as f32);
    let all = share * all_weights.map_or(loss.classes as f32, |all| all[0]);
    let slices = Slices::new([loss.outer, loss.classes, loss.inner]);
    slices.each(call.op, dx, [&Elements::new(x)?], |i, [x], dx, [z, _]| {
        let Some(class) = classes[i] else { return dx.fill(0.0) };
        let n = dx.len();
        let divisor = divisor.as_ref().map_or(1.0, |all| all[0]);
        let g = match bytes.is_some() && divisor == 0.0 {
            true => 0.0,
            false => dy[if dy.len() == 1 { 0 } else { i }] * number(&bytes, class) / divisor,
        };
        let of_class = kept * number(&weight, class);
        if loss.is_logarithm {
            dx.fill(0.0);
            dx[class] = -g * of_class;
            return;
        }
        let [max, log] = [statistics[i], statistics[classes.len() + i]];
        add(&[x], &[-max], &mut [&mut *dx]);
        add(&[dx], &[-log], &mut [&mut *z]);
        exp(&[z], &[], &mut [&mut *dx]);
        let p = dx[class];
        let scale = of_class + all;
        in_vectors(
            #[inline(always)]
            || match &weight {
                Some(weight) if share > 0.0 => (0..n).for_each(|c| dx[c] = g * (dx[c] * scale - share * weight[c])),
                _ => (0..n).for_each(|c| dx[c] = g * (dx[c] * scale - share)),
            },
        );
        dx[class] = g * (p * scale - share * number(&weight, class) - of_class);
        // In a slice with an undefined softmax, masked logits have no gradient.
        if log.is_nan() {
            dx.iter_mut().zip(x).filter(|(_, x)| **x == f32::NEG_INFINITY).for_each(|(dx, _)| *dx = 0.0);
        }
    })
}
