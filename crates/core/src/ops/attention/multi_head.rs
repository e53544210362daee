//! Attention of several heads, between projections.

use super::Attention;
use crate::check::{check_device, check_float, check_same, describe};
use crate::ops::with_shapes;
use crate::{DType, Error, Result, Tensor};
use std::sync::Arc;

/// The projections and options of [`Tensor::multi_head_attention`].
#[derive(Clone, Debug)]
pub struct MultiHead<'a> {
    /// The number of heads. It divides E.
    pub heads: usize,
    /// The weights of the projections of query, key and value.
    pub weight: Projection<'a>,
    /// Their biases, `[3E]`: for the query, the key and the value.
    pub bias: Option<&'a Tensor>,
    /// The weight of the projection of the result, `[E, E]`.
    pub out_weight: &'a Tensor,
    /// Its bias, `[E]`.
    pub out_bias: Option<&'a Tensor>,
    /// True for keys that are ignored, `[B, Tk]`, as in PyTorch: the opposite of a bool mask of [`Attention`].
    pub key_padding_mask: Option<&'a Tensor>,
    /// The mask and other options of the attention.
    pub attention: Attention,
}

/// The weights of the projections of query, key and value.
#[derive(Clone, Copy, Debug)]
pub enum Projection<'a> {
    /// `[3E, E]`: for the query, the key and the value.
    Packed(&'a Tensor),
    /// `[E, E]`, `[E, Ek]` and `[E, Ev]`.
    Separate([&'a Tensor; 3]),
}

impl Projection<'_> {
    fn weights(&self) -> Vec<&Tensor> {
        match self {
            Projection::Packed(weight) => vec![weight],
            Projection::Separate(weights) => weights.to_vec(),
        }
    }

    /// True for weights of width E, and of these widths of query, key and value.
    fn fits(&self, width: usize, inputs: [usize; 3]) -> bool {
        match self {
            Projection::Packed(weight) => weight.dims() == [3 * width, width] && inputs == [width; 3],
            Projection::Separate(weights) => (0..3).all(|i| weights[i].dims() == [width, inputs[i]]),
        }
    }
}

/// # Attention with projections
impl Tensor {
    /// The attention of query (this tensor, `[B, Tq, E]`) to key `[B, Tk, Ek]` and value `[B, Tk, Ev]`: each is projected to width
    /// E and divided into heads, and the results of all heads are projected to `[B, Tq, E]`. Float dtypes. A query that attends to no
    /// key gives the bias of the last projection. Vaswani et al. 2017, arXiv 1706.03762, section 3.2.2.
    ///
    /// Errors: `Shape` for operands that do not fit each other; `Attr` for heads that do not divide E; `Dtype`; `Device`; the errors
    /// of [`scaled_dot_product_attention`](Tensor::scaled_dot_product_attention).
    pub fn multi_head_attention(&self, key: &Tensor, value: &Tensor, attention: &MultiHead<'_>) -> Result<Tensor> {
        multi_head("multi_head_attention", [self, key, value], attention)
    }

    /// [`multi_head_attention`](Tensor::multi_head_attention) of this tensor `[B, Tq, E]` to a context `[B, Tk, Ec]`, which is key and
    /// value. Errors: as there.
    pub fn cross_attention(&self, context: &Tensor, attention: &MultiHead<'_>) -> Result<Tensor> {
        multi_head("cross_attention", [self, context, context], attention)
    }
}

/// Errors show the shapes of all operands.
fn multi_head(op: &'static str, inputs: [&Tensor; 3], attention: &MultiHead<'_>) -> Result<Tensor> {
    let others = [
        attention.bias,
        Some(attention.out_weight),
        attention.out_bias,
        attention.key_padding_mask,
        attention.attention.mask.as_ref(),
    ];
    let weights = attention.weight.weights().into_iter().map(Some);
    let operands: Vec<Option<&Tensor>> = inputs.into_iter().map(Some).chain(weights).chain(others).collect();
    with_shapes(op, &operands, || attended(op, inputs, attention))
}

fn attended(op: &'static str, inputs: [&Tensor; 3], options: &MultiHead<'_>) -> Result<Tensor> {
    check(op, inputs, options)?;
    let [q, k, v] = project(inputs, options)?;
    let attention = Attention { mask: mask(options)?, ..options.attention.clone() };
    let [q, k, v] = [heads(&q, options.heads)?, heads(&k, options.heads)?, heads(&v, options.heads)?];
    let o = q.scaled_dot_product_attention(&k, &v, &attention).map_err(|e| e.of(op))?;
    let o = o.transpose(1, 2)?.reshape(inputs[0].shape())?;
    linear(&o, options.out_weight, options.out_bias)
}

/// The order of a product's sums may depend on strides, so that there are none.
fn linear(x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    x.contiguous()?.linear(&w.contiguous()?, bias)
}

fn check(op: &'static str, inputs: [&Tensor; 3], multi_head: &MultiHead<'_>) -> Result<()> {
    if let Some(mask) = multi_head.attention.mask.as_ref().filter(|mask| mask.dtype() != DType::Bool) {
        check_same(op, &[inputs[0], mask])?;
    }
    let [query, key, value] = inputs;
    check_float(op, query)?;
    let parameters = multi_head
        .weight
        .weights()
        .into_iter()
        .chain(multi_head.bias)
        .chain([multi_head.out_weight])
        .chain(multi_head.out_bias);
    let all: Vec<&Tensor> = inputs.into_iter().chain(parameters).collect();
    match crate::autocast::current() {
        Some(_) => check_device(op, &all)?,
        None => check_same(op, &all)?,
    }
    let (&[b, _, e], &[bk, tk, ek], &[bv, tv, ev]) = (query.dims(), key.dims(), value.dims()) else {
        return Err(Error::shape(op, format!("query, key and value are {}, expected rank 3", describe(&inputs))));
    };
    if multi_head.heads == 0 || !e.is_multiple_of(multi_head.heads) {
        return Err(Error::attr(
            op,
            format!("{} heads do not divide {e}, the width of {}", multi_head.heads, query.shape()),
        ));
    }
    let fits = [
        b == bk && b == bv && tk == tv && multi_head.weight.fits(e, [e, ek, ev]),
        multi_head.bias.is_none_or(|bias| bias.dims() == [3 * e]),
        multi_head.out_weight.dims() == [e, e],
        multi_head.out_bias.is_none_or(|bias| bias.dims() == [e]),
    ];
    if fits.contains(&false) {
        let expected = "[B, Tq, E], [B, Tk, Ek] and [B, Tk, Ev], weights [3E, E] or [E, E], [E, Ek] and [E, Ev], a bias [3E], an \
                        output weight [E, E] and its bias [E]";
        return Err(Error::shape(op, format!("operands are {}, expected {expected}", describe(&all))));
    }
    match multi_head.key_padding_mask {
        Some(padding) if padding.dtype() != DType::Bool => {
            Err(Error::dtype(op, format!("the padding mask is {}, expected bool", describe(&[padding]))))
        }
        Some(padding) if padding.dims() != [b, tk] => {
            let message = format!("the padding mask is {}, expected [{b}, {tk}]", padding.shape());
            Err(Error::shape(op, format!("{message} for {}", describe(&all))))
        }
        _ => Ok(()),
    }
}

/// Projections of query, key and value. Adjacent projections of one tensor are one product.
fn project(inputs: [&Tensor; 3], multi_head: &MultiHead<'_>) -> Result<[Tensor; 3]> {
    let e = inputs[0].dims()[2];
    // A whole parameter stays itself, so that autocast casts it once.
    let part = |t: &Tensor, first: usize, n: usize| if n == 3 { Ok(t.clone()) } else { t.narrow(0, first * e, n * e) };
    let bias = |first: usize, n: usize| multi_head.bias.map(|bias| part(bias, first, n)).transpose();
    let weights = match multi_head.weight {
        Projection::Separate(weights) => {
            let of_one = |i: usize| linear(inputs[i], weights[i], bias(i, 1)?.as_ref());
            return Ok([of_one(0)?, of_one(1)?, of_one(2)?]);
        }
        Projection::Packed(weights) => weights,
    };
    let mut found = Vec::with_capacity(3);
    while found.len() < 3 {
        let first = found.len();
        let n = inputs[first..].iter().take_while(|x| Arc::ptr_eq(&x.0, &inputs[first].0)).count();
        let y = linear(inputs[first], &part(weights, first, n)?, bias(first, n)?.as_ref())?;
        for i in 0..n {
            found.push(if n == 1 { y.clone() } else { y.narrow(2, i * e, e)? });
        }
    }
    Ok(<[Tensor; 3]>::try_from(found).expect("there are three projections"))
}

/// `[B, T, E]` as `[B, heads, T, E / heads]`.
fn heads(x: &Tensor, heads: usize) -> Result<Tensor> {
    let (b, t, e) = (x.dims()[0], x.dims()[1], x.dims()[2]);
    x.reshape((b, t, heads, e / heads))?.transpose(1, 2)
}

/// The mask of the attention and the padding of keys as one.
fn mask(attention: &MultiHead<'_>) -> Result<Option<Tensor>> {
    let Some(padding) = attention.key_padding_mask else { return Ok(attention.attention.mask.clone()) };
    let (b, keys) = (padding.dims()[0], padding.dims()[1]);
    let kept = padding.logical_not()?.reshape((b, 1, 1, keys))?;
    match &attention.attention.mask {
        None => Ok(Some(kept)),
        Some(mask) if mask.dtype().is_float() => kept.where_scalar(mask, f64::NEG_INFINITY).map(Some),
        Some(mask) => kept.logical_and(mask).map(Some),
    }
}
