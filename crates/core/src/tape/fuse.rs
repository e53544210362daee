//! A function as one op: a device that puts calls off makes few kernels of it, forward and backward.

use super::checkpoint::{Forgotten, fresh, with_each};
use super::record::Record;
use super::rule::{Backward, Gradient};
use super::{BackwardOptions, MODE, Mode, Node, gradients_from, with_flag};
use crate::capture::{Tensors, is_in_step};
use crate::{Error, Result, Tensor};
use std::sync::Arc;

const OP: &str = "fuse";

/// `f(inputs)`, a tensor or a structure of tensors, as one op of the tape. On a GPU the calls of `f` become few kernels, as in a captured
/// step, and so do those of its backward pass; kernels are compiled once for each set of shapes and dtypes. A device without such
/// kernels, such as the CPU, runs the calls one by one.
///
/// Only `inputs` are kept: the backward pass computes again what it needs of `f`, with the same random numbers. Elementwise ops, and sums,
/// means and norms of rows, cost little to compute again. A product within `f` is computed twice.
///
/// Tensors that require a gradient must be among `inputs`, and may not change in place before the backward pass. Within a captured step
/// `f` is called plainly: the step fuses its calls. Errors: the errors of `f`; `Value` if `f` reads another tensor that
/// requires a gradient.
///
/// ```
/// # use isograd_core::{Result, Tensor, tape::fuse};
/// /// `w * x / sqrt(mean(x^2) + 1e-6)`, of rows.
/// fn rms_norm(x: &Tensor, w: &Tensor) -> Result<Tensor> {
///     fuse(|t| t[0].mul(&t[0].square()?.mean_keepdim(-1)?.add_scalar(1e-6)?.rsqrt()?)?.mul(&t[1]), &[x, w])
/// }
/// ```
pub fn fuse<O: Tensors>(f: impl Fn(&[Tensor]) -> Result<O> + Send + Sync + 'static, inputs: &[&Tensor]) -> Result<O> {
    let Some(device) = inputs.first().map(|x| x.device().clone()).filter(|_| !is_in_step()) else {
        return f(&inputs.iter().map(|&x| x.clone()).collect::<Vec<_>>());
    };
    if MODE.get() != Mode::On {
        let inputs = inputs.iter().map(|&x| x.clone()).collect::<Vec<_>>();
        return device.put_off(|| f(&inputs));
    }
    let (outputs, used, forgotten) = device.put_off(|| Forgotten::run(f, inputs))?;
    let is_input = |node: &Arc<Node>| inputs.iter().any(|x| x.edge().is_some_and(|edge| Arc::ptr_eq(&edge.node, node)));
    if !used.iter().all(is_input) {
        return Err(Error::value(
            OP,
            "the function reads a tensor that requires a gradient and is not among its inputs",
        ));
    }
    let rule = move |t: &Backward<'_>| device.put_off(|| forgotten.gradients(t));
    with_each(&outputs, Record::new(OP, inputs).rule(fresh(&outputs), rule)?)
}

impl<O: Tensors, F: Fn(&[Tensor]) -> Result<O>> Forgotten<F> {
    /// The gradients of the inputs.
    fn gradients(&self, t: &Backward<'_>) -> Result<Vec<Gradient>> {
        // Nodes of this pass begin at the inputs: those of the tape before them are not visited.
        let input = |(i, x): (usize, &Tensor)| match t.needs(i) {
            true if t.creates_graph() => {
                Record::new(OP, &[x]).stateless().view(x.with_layout(x.layout().clone()), |dy| Ok(dy.clone()))
            }
            true => x.detach().require_grad(),
            false => Ok(x.detach()),
        };
        let (inputs, outputs) = with_flag(&MODE, Mode::On, || {
            let inputs = self.inputs.iter().enumerate().map(input).collect::<Result<Vec<_>>>()?;
            let outputs = self.run_again(OP, &inputs)?;
            Ok((inputs, outputs))
        })?;
        let roots = outputs.iter().enumerate().filter(|(_, y)| y.edge().is_some());
        let roots = roots.filter_map(|(i, y)| Some((y, t.dy_of(i)?.clone())));
        let targets = inputs.iter().filter(|x| x.edge().is_some()).collect::<Vec<_>>();
        let options = BackwardOptions { create_graph: t.creates_graph(), ..BackwardOptions::default() };
        let mut found = gradients_from(roots, &targets, &options)?.into_iter();
        let gradient = |x: &Tensor| match x.edge().and_then(|_| found.next()) {
            Some(gradient) => gradient.map_or(Gradient::ABSENT, Gradient::from),
            None => Gradient::NONE,
        };
        Ok(inputs.iter().map(gradient).collect())
    }
}
