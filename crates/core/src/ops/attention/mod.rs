//! Scaled dot-product attention.
//!
//! `rows.rs` computes it in tensor ops for a block of queries, so that no matrix of all scores is made. `flash.rs` has the
//! descriptors of the kernels that GPUs have in its place. The composite is one block of all queries.

mod band;
mod cache;
mod dropout;
pub mod flash;
mod multi_head;
mod rows;
pub mod sequences;

pub use self::band::{Band, Causal};
pub use self::cache::write_positions;
pub use self::multi_head::{MultiHead, Projection};

use self::dropout::Kept;
use self::flash::FlashAttention;
use self::rows::{Gradient, Problem};
use self::sequences::Sequences;
use crate::capture::is_in_step;
use crate::check::{check_device, check_float, check_same, describe};
use crate::fused::has_kernel;
use crate::operands;
use crate::operands::Operands;
use crate::ops::{Made, with_shapes};
use crate::tape::{Backward, BackwardOptions, Described, Gradients, Saved, gradients_from, record_outputs, report_as};
use crate::thread::within;
use crate::{DType, Dims, Error, Result, Rng, Shape, Tensor, autocast, no_autocast};

/// The options of [`Tensor::scaled_dot_product_attention`].
#[derive(Clone, Debug, Default)]
pub struct Attention {
    /// A mask that broadcasts to `[B, Hq, Tq, Tk]`: bool, true for keys that a query attends to; or floats, in the dtype of the
    /// queries or f32, that are added to the scores.
    pub mask: Option<Tensor>,
    /// The keys that precede a query's own position.
    pub causal: Causal,
    /// The factor of the scores; `1 / sqrt(D)` if absent.
    pub scale: Option<f64>,
    /// The soft limit of scores: a score s becomes `cap tanh(s / cap)` before the mask. No kernel of GPUs has it: they compute it in parts. Gemma
    /// Team 2024, arXiv 2408.00118, section 2.
    pub score_cap: Option<f64>,
    /// The probability with which a weight becomes 0, and the generator of the draws.
    pub dropout: Option<(f64, Rng)>,
    /// The numbers of keys before and after its own position that a query attends to. The position of a query is its index, or with
    /// [`Causal::BottomRight`] its index plus `Tk - Tq`.
    pub window: Option<[usize; 2]>,
    /// The number of keys of each batch, `[B]` (i64 or i32). The keys and values behind them are not read, and in [`Causal::BottomRight`] they do
    /// not count. The numbers stay on the device, so that a captured step can change them.
    pub key_lengths: Option<Tensor>,
}

/// The scores of attention, as an op of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores {
    /// Their factor.
    pub scale: f64,
    /// Their soft limit.
    pub cap: Option<f64>,
    /// The keys to which a query attends.
    pub band: Band,
    /// The sequences of queries and keys.
    pub sequences: Sequences,
    /// True if weights are dropped at random.
    pub drops: bool,
}

operands! {
    /// The operands of [`Tensor::scaled_dot_product_attention`].
    pub struct AttentionInputs {
        /// The queries, `[B, Hq, Tq, D]`.
        q,
        /// The keys, `[B, Hk, Tk, D]`.
        k,
        /// The values, `[B, Hk, Tk, Dv]`.
        v,
        /// Four dimensions, which broadcast to `[B, Hq, Tq, Tk]`.
        mask?,
    }
}

impl Described for Scores {
    type Inputs<T> = AttentionInputs<T>;
}

/// # Attention
impl Tensor {
    /// `softmax(scale q k^T + mask) v` for queries (this tensor, `[B, Hq, Tq, D]`), keys `[B, Hk, Tk, D]` and values `[B, Hk, Tk,
    /// Dv]`: `[B, Hq, Tq, Dv]`. Query head h attends to the keys of head `h / (Hq / Hk)`. Float dtypes; the arithmetic is in the
    /// accumulation dtype. No tensor of `Tq Tk` elements is made, except for the gradient of a float mask of that size.
    ///
    /// A query that attends to no key has the output 0 and no gradient. Masked keys and values must be finite: a product of 0 and
    /// infinity may be NaN. With dropout, weights are multiplied by 0 or `1 / (1 - p)`; element `((b Hq + h) Tq + q) Tk + k` of the
    /// draws decides about a weight. Vaswani et al. 2017, arXiv 1706.03762; Dao 2023, arXiv 2307.08691.
    ///
    /// Errors: `Shape` for extents that do not fit, `Hq` that is no multiple of `Hk`, and a mask that does not broadcast; `Dtype`;
    /// `Device`; `Attr` for a dropout probability outside of 0 to 1, and for a limit of scores that is not above 0; `Index` for a number of
    /// keys outside of 0 to Tk, unless the scores have a limit in a captured step.
    pub fn scaled_dot_product_attention(&self, k: &Tensor, v: &Tensor, attention: &Attention) -> Result<Tensor> {
        Ok(self.scaled_dot_product_attention_with_lse(k, v, attention)?.0)
    }

    /// [`scaled_dot_product_attention`](Tensor::scaled_dot_product_attention), and the logarithm of the sum of the exponentials of
    /// each query's scores, `[B, Hq, Tq]`, in the accumulation dtype; -infinity for a query that attends to no key. Both are
    /// differentiable. Outputs for parts of the keys can be joined by them. Errors: as there.
    pub fn scaled_dot_product_attention_with_lse(
        &self,
        k: &Tensor,
        v: &Tensor,
        attention: &Attention,
    ) -> Result<(Tensor, Tensor)> {
        let op = "scaled_dot_product_attention";
        let (sequences, ends) = match &attention.key_lengths {
            Some(lengths) => (Sequences::Lengths, [lengths].to_vec()),
            None => (Sequences::Whole, Vec::new()),
        };
        attend_to(op, [self, k, v], (sequences, &ends), attention)
    }

    /// [`scaled_dot_product_attention`](Tensor::scaled_dot_product_attention) of sequences of several lengths that lie one after the other,
    /// without padding: queries (this tensor) `[Tq, Hq, D]`, keys `[Tk, Hk, D]` and values `[Tk, Hk, Dv]` to `[Tq, Hq, Dv]`. Sequence n has
    /// the queries `q_starts[n]..q_starts[n + 1]` and the keys and values `k_starts[n]..k_starts[n + 1]`; both are `[N + 1]` (i64 or i32), as
    /// PyTorch's `cu_seq_q` and `cu_seq_k`, and stay on the device. A query attends to keys of its own sequence; positions of `causal` and
    /// `window` count in it. Rows outside of all sequences have the output 0 and no gradient. A mask broadcasts to `[1, Hq, Tq, Tk]`.
    ///
    /// Errors: as there; `Index` for numbers that fall, or are outside of 0 to Tq or Tk; `Attr` for `key_lengths`. Devices without a kernel
    /// for the call read the numbers, for which they wait.
    pub fn varlen_attention(
        &self,
        k: &Tensor,
        v: &Tensor,
        q_starts: &Tensor,
        k_starts: &Tensor,
        attention: &Attention,
    ) -> Result<Tensor> {
        Ok(self.varlen_attention_with_lse(k, v, q_starts, k_starts, attention)?.0)
    }

    /// [`varlen_attention`](Tensor::varlen_attention), and the logarithm of the sum of the exponentials of each query's scores, `[Hq, Tq]`, in
    /// the accumulation dtype. Errors: as there.
    pub fn varlen_attention_with_lse(
        &self,
        k: &Tensor,
        v: &Tensor,
        q_starts: &Tensor,
        k_starts: &Tensor,
        attention: &Attention,
    ) -> Result<(Tensor, Tensor)> {
        let op = "varlen_attention";
        let all = [self, k, v];
        if all.iter().any(|x| x.rank() != 3) {
            let expected = "[Tq, Hq, D], [Tk, Hk, D] and [Tk, Hk, Dv]";
            return Err(Error::shape(op, format!("q, k and v are {}, expected {expected}", describe(&all))));
        }
        if attention.key_lengths.is_some() {
            return Err(Error::attr(op, "packed sequences have no key_lengths"));
        }
        let attend = || {
            let of_batch = |x: &Tensor| x.transpose(0, 1)?.unsqueeze(0);
            let (q, k, v) = (of_batch(self)?, of_batch(k)?, of_batch(v)?);
            let ends = [q_starts.clone(), k_starts.clone()];
            let ends: Vec<&Tensor> = ends.iter().collect();
            let (o, lse) = attend_to(op, [&q, &k, &v], (Sequences::Packed, &ends), attention)?;
            Ok((o.squeeze(0)?.transpose(0, 1)?, lse.squeeze(0)?))
        };
        let operands = [self, k, v].map(Some);
        let (o, lse) = within(op, || with_shapes(op, &operands, attend)).map_err(|e| e.of(op))?;
        // The logarithm of a query that attends to no key is -infinity.
        o.look(op)?;
        Ok((o, lse))
    }
}

/// Attention with the conversions of autocast. `ends` are the sequences as they were given.
fn attend_to(
    op: &'static str,
    [q, k, v]: [&Tensor; 3],
    (sequences, ends): (Sequences, &[&Tensor]),
    attention: &Attention,
) -> Result<(Tensor, Tensor)> {
    if let Some(([q, k], Some(v))) = autocast::low([q, k], Some(v))? {
        let mask = attention.mask.as_ref().map(|mask| of_scores(mask, &q)).transpose()?;
        let attention = Attention { mask, ..attention.clone() };
        return no_autocast(|| attend_to(op, [&q, &k, &v], (sequences, ends), &attention));
    }
    let mask = check(op, q, k, v, attention)?;
    let (queries, keys) = (q.dims()[2], k.dims()[2]);
    if sequences == Sequences::Lengths && attention.score_cap.is_some() && is_in_step() {
        let lengths = sequences::lengths(op, q, ends[0])?.swap_remove(0);
        let mask = no_autocast(|| mask_of_lengths(attention, &lengths, [queries, keys], mask.as_ref()))?;
        let whole = Attention { causal: Causal::None, window: None, key_lengths: None, ..attention.clone() };
        return attend_to(op, [q, k, v], (Sequences::Whole, &[]), &Attention { mask: Some(mask), ..whole });
    }
    let Attention { causal, window, .. } = *attention;
    let (band, ends) = match sequences {
        Sequences::Whole => (Band::new(causal, window, queries, keys), Vec::new()),
        Sequences::Packed => {
            (Band::relative(causal, window, queries, keys), sequences::starts(op, q, [ends[0], ends[1]])?)
        }
        Sequences::Lengths => (Band::relative(causal, window, queries, keys), sequences::lengths(op, q, ends[0])?),
    };
    let problem = Problem {
        mask,
        band,
        sequences,
        ends,
        from_end: causal == Causal::BottomRight,
        scale: attention.scale.unwrap_or_else(|| default_scale(q.dims()[3])),
        cap: attention.score_cap,
        kept: Kept::new(attention.dropout.as_ref(), [q.dims()[0], q.dims()[1], queries, keys])?,
        q: q.clone(),
        k: k.clone(),
        v: v.clone(),
    };
    no_autocast(|| attend(op, problem))
}

/// A mask of the keys that queries attend to, for batches of so many keys. Scores with a soft limit need it in a captured step: they have no kernel
/// that reads the numbers, and the host does not know them.
fn mask_of_lengths(
    attention: &Attention,
    lengths: &Tensor,
    [queries, keys]: [usize; 2],
    mask: Option<&Tensor>,
) -> Result<Tensor> {
    let device = lengths.device();
    let lengths = lengths.cast(DType::I64)?.reshape((lengths.numel(), 1, 1, 1))?;
    let (query, key) = (Tensor::arange(queries, device)?.unsqueeze(1)?, Tensor::arange(keys, device)?);
    let own = match attention.causal {
        Causal::BottomRight => query.add(&lengths)?.sub_scalar(queries as i64)?,
        _ => query,
    };
    let mut attended = key.lt(&lengths)?;
    let distance = key.sub(&own)?;
    if attention.causal != Causal::None {
        attended = attended.logical_and(&distance.le_scalar(0)?)?;
    }
    if let Some([before, after]) = attention.window.map(|window| window.map(|n| i64::try_from(n).unwrap_or(i64::MAX))) {
        attended = attended.logical_and(&distance.ge_scalar(-before)?)?.logical_and(&distance.le_scalar(after)?)?;
    }
    match mask {
        None => Ok(attended),
        Some(mask) if mask.dtype().is_float() => attended.where_scalar(mask, f64::NEG_INFINITY),
        Some(mask) => attended.logical_and(mask),
    }
}

fn default_scale(width: usize) -> f64 {
    1.0 / (width.max(1) as f64).sqrt()
}

/// A mask that fits queries converted by autocast.
fn of_scores(mask: &Tensor, q: &Tensor) -> Result<Tensor> {
    if mask.dtype().is_float() && mask.dtype() != q.dtype() { mask.cast(DType::F32) } else { Ok(mask.clone()) }
}

/// Checks the operands. Returns the mask with four dimensions.
fn check(op: &'static str, q: &Tensor, k: &Tensor, v: &Tensor, attention: &Attention) -> Result<Option<Tensor>> {
    check_float(op, q)?;
    check_same(op, &[q, k, v])?;
    let fits = match (q.dims(), k.dims(), v.dims()) {
        ([b, hq, _, d], [bk, hk, tk, dk], [bv, hv, tv, _]) => {
            b == bk && b == bv && hk == hv && tk == tv && d == dk && is_multiple(*hq, *hk)
        }
        _ => false,
    };
    if !fits {
        let expected = "[B, Hq, Tq, D], [B, Hk, Tk, D] and [B, Hk, Tk, Dv], where Hq is a multiple of Hk";
        return Err(Error::shape(op, format!("q, k and v are {}, expected {expected}", describe(&[q, k, v]))));
    }
    if let Some(cap) = attention.score_cap.filter(|cap| !cap.is_finite() || *cap <= 0.0) {
        return Err(Error::attr(op, format!("the limit of scores is {cap}, expected a number above 0")));
    }
    if let Some((p, _)) = attention.dropout
        && !(0.0..=1.0).contains(&p)
    {
        return Err(Error::attr(op, format!("the dropout probability is {p}, expected 0 to 1")));
    }
    let scores = Shape::from([q.dims()[0], q.dims()[1], q.dims()[2], k.dims()[2]]);
    scores.check(op)?;
    attention.mask.as_ref().map(|mask| check_mask(op, mask, [q, k, v], &scores)).transpose()
}

/// True if heads of queries are evenly divided among heads of keys.
fn is_multiple(queries: usize, keys: usize) -> bool {
    if keys == 0 { queries == 0 } else { queries.is_multiple_of(keys) }
}

fn check_mask(op: &'static str, mask: &Tensor, [q, k, v]: [&Tensor; 3], scores: &Shape) -> Result<Tensor> {
    check_device(op, &[q, mask])?;
    if ![DType::Bool, DType::F32, q.dtype()].contains(&mask.dtype()) {
        let message = format!("the mask is {}, expected bool, f32 or the dtype of q", describe(&[mask]));
        return Err(Error::dtype(op, message));
    }
    if mask.shape().broadcast(scores).ok().as_ref() != Some(scores) {
        let message = format!("the mask {} does not broadcast to {scores}", mask.shape());
        return Err(Error::shape(op, format!("{message}, the scores of {}", describe(&[q, k, v]))));
    }
    let mut dims = Dims::from_elem(1, 4 - mask.rank());
    dims.extend_from_slice(mask.dims());
    mask.reshape(Shape::from(dims))
}

/// Computes and records output and logarithms.
fn attend(op: &'static str, problem: Problem) -> Result<(Tensor, Tensor)> {
    let plain = problem.detached();
    let by_kernel = has_flash(&plain);
    let (o, lse) = within(op, || if by_kernel { flash::forward(op, &plain) } else { plain.by_blocks(op) })?;
    let inputs = problem.inputs();
    let saved = inputs.map(Saved::input);
    let kept = [Saved::nth_output(&o, 0), Saved::nth_output(&lse, 1)];
    report_as(op, inputs, &[&o, &lse], || problem.scores());
    let rest = problem.without_tensors();
    o.look(op)?;
    let rule = move |t: &Backward<'_>| {
        let inputs = saved.as_ref().try_map(|s| t.get(s))?;
        let (mask, count) = (inputs.mask(), inputs.as_ref().present().len());
        let problem = rest.of(t, inputs)?;
        if t.creates_graph() {
            return through_composite(op, t, &problem);
        }
        let arriving = arriving(t, &t.get(&kept[0])?, &t.get(&kept[1])?)?;
        let needs = AttentionInputs::of(mask, &mut (0..).map(|i| t.needs(i)));
        let wanted = [needs.q, needs.k, needs.v, needs.mask == Some(true)];
        let found = match by_kernel && !wanted[3] {
            true => flash::backward("scaled_dot_product_attention_backward", &problem, &arriving, wanted)?,
            false => problem.gradients_by_blocks(op, &arriving, wanted)?,
        };
        Ok(found.into_iter().take(count).collect::<Gradients>())
    };
    // The logarithm of a query that attends to no key is -infinity.
    let outputs = within(op, || record_outputs(op, &inputs.present(), vec![o, lse], rule))?;
    let [o, lse] = <[Tensor; 2]>::try_from(outputs).expect("two outputs were recorded");
    Ok((o, lse))
}

/// True if the device has kernels for the problem.
fn has_flash(problem: &Problem) -> bool {
    let Problem { q, k, v, cap, .. } = problem;
    let is_empty = [q, k, v].iter().any(|t| t.numel() == 0);
    let width = q.dims()[3];
    !is_empty && cap.is_none() && width <= flash::WIDEST && v.dims()[3] == width && has_kernel::<FlashAttention>(q)
}

/// The outputs and their gradients.
fn arriving(t: &Backward<'_>, o: &Tensor, lse: &Tensor) -> Result<Gradient> {
    let dy = t.dy_or_zeros(0)?;
    Ok(Gradient { dy, dlse: t.dy_of(1).cloned(), o: o.clone(), lse: lse.clone() })
}

/// Gradients through the composite, on the tape.
fn through_composite(op: &'static str, t: &Backward<'_>, problem: &Problem) -> Result<Gradients> {
    let inputs = problem.inputs().present();
    let (o, lse) = problem.composite(op)?;
    let outputs = [o.cast(problem.q.dtype())?, lse];
    let roots = outputs.iter().enumerate().filter_map(|(i, y)| Some((y, t.dy_of(i)?.clone())));
    let wanted: Vec<&Tensor> = inputs.iter().enumerate().filter(|(i, _)| t.needs(*i)).map(|(_, x)| *x).collect();
    let options = BackwardOptions { create_graph: true, ..Default::default() };
    let mut found = gradients_from(roots, &wanted, &options)?.into_iter();
    Ok((0..inputs.len()).map(|i| if t.needs(i) { found.next().flatten() } else { None }).collect())
}
