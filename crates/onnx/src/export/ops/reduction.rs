//! Reductions and running sums.

use crate::export::graph::{Dim, int};
use crate::export::translation::{Found, Translation, absent};
use isograd_core::DType;

pub fn translate(t: &mut Translation<'_>) -> Found {
    let (x, dtype) = (t.inputs[0], t.y().dtype());
    let reduction = match t.op.name {
        "sum" => "ReduceSum",
        "mean" => "ReduceMean",
        "prod" => "ReduceProd",
        "l2_norm" => "ReduceL2",
        "amax" => "ReduceMax",
        "amin" => "ReduceMin",
        "logsumexp" => "ReduceLogSumExp",
        "var" => "Variance",
        "argmax" | "argmin" => return position(t),
        "cumsum" => {
            let (dim, reverse) = (t.int("dim")?, t.int("reverse")?);
            let exclusive = t.int("exclusive")?;
            let x = if t.x().dtype() == dtype { x } else { t.cast(x, dtype) };
            let dim = t.graph.scalar(dim, DType::I64)?;
            let attributes = [int("exclusive", exclusive), int("reverse", reverse)];
            return Ok(vec![t.graph.node("CumSum", &[x, dim], &attributes)]);
        }
        _ => return absent("ONNX has no such op"),
    };
    let axes = t.ints("axes")?;
    if reduction == "Variance" {
        return variance(t, &axes);
    }
    // Integers are summed in i64.
    let x = if t.x().dtype() == dtype { x } else { t.cast(x, dtype) };
    if axes.is_empty() {
        return Ok(vec![if t.op.name == "l2_norm" { t.graph.node("Abs", &[x], &[]) } else { x }]);
    }
    let axes = t.graph.ints(&axes)?;
    Ok(vec![t.graph.node(reduction, &[x, axes], &[int("keepdims", 0)])])
}

/// The sum of the squares of deviations, divided by a number.
fn variance(t: &mut Translation<'_>, axes: &[i64]) -> Found {
    let (x, dtype, divisor) = (t.inputs[0], t.x().dtype(), t.float("divisor")?);
    let (axes, divisor) = (t.graph.ints(axes)?, t.graph.scalar(divisor, dtype)?);
    let mean = t.graph.node("ReduceMean", &[x, axes], &[int("keepdims", 1)]);
    let deviation = t.graph.node("Sub", &[x, mean], &[]);
    let sum = t.graph.node("ReduceSumSquare", &[deviation, axes], &[int("keepdims", 0)]);
    Ok(vec![t.graph.node("Div", &[sum, divisor], &[])])
}

/// The position of an extremum over axes, which are merged into one at the end.
fn position(t: &mut Translation<'_>) -> Found {
    let axes = t.ints("axes")?;
    let (mut x, dims) = (t.inputs[0], t.x_dims(0));
    let mut axis = axes.first().copied().unwrap_or(0);
    if axes.len() != 1 {
        let kept: Vec<i64> = (0..dims.len() as i64).filter(|d| !axes.contains(d)).collect();
        let order: Vec<i64> = kept.iter().chain(&axes).copied().collect();
        let from: Vec<Dim> = order.iter().map(|&d| dims[d as usize]).collect();
        let (merged, mut to) = (&from[kept.len()..], from[..kept.len()].to_vec());
        let varying: Vec<Dim> = merged.iter().filter(|dim| dim.scale != 0).copied().collect();
        let fixed: i64 = merged.iter().filter_map(|dim| dim.known()).product();
        to.push(match varying[..] {
            [] => Dim { scale: 0, shift: fixed },
            [one] => Dim { scale: one.scale * fixed, shift: one.shift * fixed },
            _ => return absent("several of its axes depend on the batch size"),
        });
        x = t.transpose(x, order);
        x = t.graph.reshape(x, &from, &to)?;
        axis = kept.len() as i64;
    }
    let op = if t.op.name == "argmax" { "ArgMax" } else { "ArgMin" };
    let is_last = t.flag("last")?;
    let attributes = [int("axis", axis), int("keepdims", 0), int("select_last_index", is_last.into())];
    Ok(vec![t.graph.node(op, &[x], &attributes)])
}
