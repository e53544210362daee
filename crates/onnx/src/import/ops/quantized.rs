//! Quantised operators. Products of integers are exact: they are computed in f64. Gradients end at a quantisation.

use super::conv::conv;
use super::{Op, Table};
use crate::import::call::{Call, axis_of, misshapen, numbered, unsupported};
use crate::import::element::Element;
use crate::import::value::Value;
use isograd_core::{DType, Result, Tensor};

pub const OPS: Table = &[
    ("QuantizeLinear", Op::One(quantize_linear)),
    ("DequantizeLinear", Op::Tensor(dequantize_linear)),
    ("DynamicQuantizeLinear", Op::Many(dynamic)),
    ("MatMulInteger", Op::One(matmul_integer)),
    ("ConvInteger", Op::One(conv_integer)),
    ("QLinearMatMul", Op::One(linear_matmul)),
    ("QLinearConv", Op::One(linear_conv)),
];

/// A scale or a zero point in a shape that broadcasts to x: one number, one for each place of the axis, or one for each block of it.
fn spread(c: &Call<'_>, t: Tensor, x: &Tensor) -> Result<Tensor> {
    if t.numel() == 1 && t.rank() <= 1 {
        return t.reshape(());
    }
    let axis = axis_of(c.int("axis", 1)?, x.rank())?;
    if t.rank() == 1 {
        let mut dims = vec![1; x.rank()];
        dims[axis] = t.numel();
        return t.reshape(dims);
    }
    let (extent, blocks) = (x.dims()[axis], t.dims().get(axis).copied().unwrap_or(0));
    let block = match c.int("block_size", 0)? {
        0 => extent.div_ceil(blocks.max(1)),
        block => usize::try_from(block).unwrap_or(0),
    };
    if t.rank() != x.rank() || blocks.saturating_mul(block) < extent {
        return misshapen(format!("the scale {} does not fit {} in blocks of {block}", t.shape(), x.shape()));
    }
    t.repeat_interleave(block, axis as isize)?.narrow(axis as isize, 0, extent)
}

/// `round(x / scale) + zero`, within the limits of the type.
fn quantized(x: &Tensor, scale: &Tensor, zero: Option<&Tensor>, element: Element) -> Result<Value> {
    let Some([low, high]) = element.limits() else { return unsupported(format!("integers of {}", element.name())) };
    let x = x.detach();
    let y = x.cast(scale.dtype())?.div(&scale.detach())?.cast(DType::F64)?.round()?;
    let y = zero.map_or(Ok(y.clone()), |zero| y.add(&zero.cast(DType::F64)?))?;
    let y = y.clamp(Some((low as f64).into()), Some((high as f64).into()))?;
    Ok(Value::Tensor(y.cast(element.dtype())?, element))
}

fn quantize_linear(c: &Call<'_>) -> Result<Value> {
    let (x, scale) = (c.x(0)?, c.x(1)?);
    let element = match (c.given(2), c.int("output_dtype", 0)?) {
        (Some(zero), _) => zero.element()?,
        (None, 0) => Element::U8,
        (None, number) => numbered(number)?,
    };
    let zero = c.optional(2)?.map(|zero| spread(c, zero, &x)).transpose()?;
    quantized(&x, &spread(c, scale, &x)?, zero.as_ref(), element)
}

/// `(x - zero) scale`, in the dtype of the scale or of an attribute.
fn dequantize_linear(c: &Call<'_>) -> Result<Tensor> {
    let (x, scale) = (c.x(0)?, c.x(1)?);
    let own = c.element_named("output_dtype")?.map_or(scale.dtype(), Element::dtype);
    let scale = spread(c, scale, &x)?;
    let wide = if own == DType::F64 { own } else { DType::F32 };
    let shifted = match c.optional(2)? {
        Some(zero) if x.dtype().is_float() => x.cast(wide)?.sub(&spread(c, zero, &x)?.cast(wide)?)?,
        Some(zero) => x.cast(DType::I64)?.sub(&spread(c, zero, &x)?.cast(DType::I64)?)?.cast(wide)?,
        None => x.cast(wide)?,
    };
    shifted.mul(&scale.cast(wide)?)?.cast(own)
}

/// Integers from 0 to 255 for the range of x, their scale and their zero.
fn dynamic(c: &Call<'_>) -> Result<Vec<Value>> {
    let x = c.x(0)?.detach();
    let (low, high) = (x.amin(..)?.clamp(None, Some(0.0.into()))?, x.amax(..)?.clamp(Some(0.0.into()), None)?);
    let scale = high.sub(&low)?.div_scalar(255.0)?;
    // Of zeros alone, any scale is right.
    let scale = scale.eq_scalar(0.0)?.where_cond(&scale.ones_like()?, &scale)?;
    let zero = low.neg()?.div(&scale)?.clamp(Some(0.0.into()), Some(255.0.into()))?.round()?.cast(DType::U8)?;
    Ok(vec![quantized(&x, &scale, Some(&zero), Element::U8)?, scale.into(), zero.into()])
}

/// Integers less their zero point, which is one number or has the extent of a dimension.
fn less_zero(x: &Tensor, zero: Option<Tensor>, dim: usize) -> Result<Tensor> {
    let wide = x.cast(DType::F64)?;
    match zero {
        Some(zero) => wide.sub(&along(&zero, x.rank(), dim)?.cast(DType::F64)?),
        None => Ok(wide),
    }
}

/// One number, or numbers along a dimension of `rank`; tensors of more dimensions broadcast.
fn along(t: &Tensor, rank: usize, dim: usize) -> Result<Tensor> {
    match t.rank() {
        _ if t.numel() == 1 => t.reshape(()),
        1 if dim < rank => {
            let mut dims = vec![1; rank];
            dims[dim] = t.numel();
            t.reshape(dims)
        }
        _ => Ok(t.clone()),
    }
}

/// The dimension of the rows of a left factor, and that of the columns of a right one.
fn sides(a: &Tensor, b: &Tensor) -> [usize; 2] {
    [a.rank().saturating_sub(2), b.rank().saturating_sub(1)]
}

fn matmul_integer(c: &Call<'_>) -> Result<Value> {
    let (a, b) = (c.x(0)?, c.x(1)?);
    let [rows, columns] = sides(&a, &b);
    let product = less_zero(&a, c.optional(2)?, rows)?.matmul(&less_zero(&b, c.optional(3)?, columns)?)?;
    Ok(product.cast(DType::I32)?.into())
}

fn conv_integer(c: &Call<'_>) -> Result<Value> {
    let (x, w) = (less_zero(&c.x(0)?, c.optional(2)?, 1)?, less_zero(&c.x(1)?, c.optional(3)?, 0)?);
    Ok(conv(c, &x, &w, None)?.cast(DType::I32)?.into())
}

/// A product of integers as integers of another scale.
fn rescaled(c: &Call<'_>, product: &Tensor, scales: [Tensor; 2]) -> Result<Value> {
    let wide = |t: &Tensor| t.detach().cast(DType::F64);
    let scale = wide(&c.x(6)?)?.div(&wide(&scales[0])?.mul(&wide(&scales[1])?)?)?;
    quantized(product, &scale, Some(&c.x(7)?), c.element(7)?)
}

fn linear_matmul(c: &Call<'_>) -> Result<Value> {
    let (a, b) = (c.x(0)?, c.x(3)?);
    let [rows, columns] = sides(&a, &b);
    let product = less_zero(&a, Some(c.x(2)?), rows)?.matmul(&less_zero(&b, Some(c.x(5)?), columns)?)?;
    rescaled(c, &product, [along(&c.x(1)?, a.rank(), rows)?, along(&c.x(4)?, b.rank(), columns)?])
}

fn linear_conv(c: &Call<'_>) -> Result<Value> {
    let (x, w) = (c.x(0)?, c.x(3)?);
    let bias = c.optional(8)?.map(|bias| bias.cast(DType::F64)).transpose()?;
    let product = conv(c, &less_zero(&x, Some(c.x(2)?), 1)?, &less_zero(&w, Some(c.x(5)?), 0)?, bias.as_ref())?;
    rescaled(c, &product, [along(&c.x(1)?, x.rank(), 1)?, along(&c.x(4)?, x.rank(), 1)?])
}
