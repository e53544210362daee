//! New tensors: constants, ranges, identities, one-hot vectors.

use super::{Op, Table};
use crate::import::attribute::Attribute;
use crate::import::call::{Call, axis_of, misshapen, sizes, unsupported};
use crate::import::element::Element;
use crate::import::value::{HOST_MOST, Host, Numbers, Value};
use isograd_core::{DType, Error, Result, Scalar, Tensor};

pub const OPS: Table = &[
    ("Constant", Op::One(constant)),
    ("ConstantOfShape", Op::One(constant_of_shape)),
    ("Range", Op::One(range)),
    ("EyeLike", Op::One(eye_like)),
    ("OneHot", Op::One(one_hot)),
];

fn constant(c: &Call<'_>) -> Result<Value> {
    for name in ["value", "sparse_value"] {
        if let Some(value) = c.constant(name)? {
            return Ok(value);
        }
    }
    let floats =
        |v: Vec<f64>, dims| Host::floats(c.run.floats(), dims, v.iter().map(|&v| f64::from(v as f32)).collect());
    let attributes = &c.node.attributes.0;
    let host = ["value_int", "value_ints", "value_float", "value_floats"].iter().find_map(|name| attributes.get(*name));
    Ok(match host {
        Some(Attribute::Int(v)) => Value::int(*v),
        Some(Attribute::Ints(v)) => Host::ints(Element::I64, vec![v.len()], v.clone()).into(),
        Some(Attribute::Float(v)) => floats(vec![*v], Vec::new()).into(),
        Some(Attribute::Floats(v)) => floats(v.clone(), vec![v.len()]).into(),
        _ => return unsupported("a constant that is neither a tensor nor numbers"),
    })
}

fn constant_of_shape(c: &Call<'_>) -> Result<Value> {
    let dims = sizes(&c.ints(0)?)?;
    let value = c.constant("value")?.unwrap_or_else(|| Host::floats(c.run.floats(), vec![1], vec![0.0]).into());
    let element = value.element()?;
    let count = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let missing = || Error::shape("onnx", "a constant without elements");
    match value.numbers()? {
        Numbers::Ints(v) => {
            let v = *v.first().ok_or_else(missing)?;
            if let Some(count) = count.filter(|&count| count <= HOST_MOST) {
                return Ok(Host::ints(element, dims, vec![v; count]).into());
            }
            Ok(Value::Tensor(Tensor::full(dims, v, element.dtype(), c.device())?, element))
        }
        Numbers::Floats(v) => {
            let v = *v.first().ok_or_else(missing)?;
            Ok(Value::Tensor(Tensor::full(dims, v, element.dtype(), c.device())?, element))
        }
    }
}

/// Numbers at equal distances.
pub enum Range {
    Ints { start: i64, step: i64, len: usize },
    Floats { start: f64, step: f64, len: usize },
}

/// The numbers of a range; `None` where their operands do not fit each other.
pub fn range_of(c: &Call<'_>) -> Result<Option<Range>> {
    let numbers = [c.value(0)?.numbers()?, c.value(1)?.numbers()?, c.value(2)?.numbers()?];
    Ok(match &numbers {
        [Numbers::Ints(a), Numbers::Ints(b), Numbers::Ints(s)] => match (&a[..], &b[..], &s[..]) {
            (&[start], &[end], &[step]) if step != 0 => {
                let distance = i128::from(end) - i128::from(start);
                let len = if (distance > 0) == (step > 0) { distance.unsigned_abs() } else { 0 };
                let len = usize::try_from(len.div_ceil(step.unsigned_abs().into())).unwrap_or(usize::MAX);
                Some(Range::Ints { start, step, len })
            }
            _ => None,
        },
        [Numbers::Floats(a), Numbers::Floats(b), Numbers::Floats(s)] => match (&a[..], &b[..], &s[..]) {
            (&[start], &[end], &[step]) if step != 0.0 => {
                let len = ((end - start) / step).ceil().max(0.0) as usize;
                Some(Range::Floats { start, step, len })
            }
            _ => None,
        },
        _ => None,
    })
}

fn range(c: &Call<'_>) -> Result<Value> {
    let element = c.element(0)?;
    let found = match range_of(c)? {
        None => return misshapen("a range needs three numbers of one type, and a step other than 0"),
        Some(Range::Ints { start, step, len }) => {
            Tensor::arange(len, c.device())?.mul_scalar(step)?.add_scalar(start)?
        }
        Some(Range::Floats { start, step, len }) => {
            let numbers = Tensor::arange(len, c.device())?.cast(DType::F64)?;
            numbers.mul_scalar(step)?.add_scalar(start)?
        }
    };
    element.with(found)
}

fn eye_like(c: &Call<'_>) -> Result<Value> {
    let element = c.element_named("dtype")?.map_or_else(|| c.element(0), Ok)?;
    let (dims, k) = (c.value(0)?.dims()?, c.int("k", 0)?);
    let &[rows, columns] = &dims[..] else { return misshapen(format!("{dims:?} was given, expected a matrix")) };
    let row = Tensor::arange(rows, c.device())?.add_scalar(k)?.unsqueeze(1)?;
    let is_one = row.eq(&Tensor::arange(columns, c.device())?)?;
    Ok(Value::Tensor(is_one.cast(element.dtype())?, element))
}

fn one_hot(c: &Call<'_>) -> Result<Value> {
    let index = c.x(0)?.detach().cast(DType::I64)?;
    let depth = c.value(1)?.floats()?;
    let depth = match depth[..] {
        [depth] if depth >= 0.0 => depth as i64,
        _ => return misshapen(format!("the depth is {depth:?}, expected one number of at least 0")),
    };
    let (rank, axis) = (index.rank() + 1, c.int("axis", -1)?);
    let axis = axis_of(axis, rank)?;
    let index = index.lt_scalar(0)?.where_cond(&index.add_scalar(depth)?, &index)?.unsqueeze(axis as isize)?;
    let mut dims = vec![1; rank];
    dims[axis] = depth as usize;
    let is_on = index.eq(&Tensor::arange(depth as usize, c.device())?.reshape(dims)?)?;
    let values = c.x(2)?;
    if values.dims() != [2] {
        return misshapen(format!("the values are {}, expected [2]", values.shape()));
    }
    c.moved(2, is_on.where_cond(&values.select(0, 1)?, &values.select(0, 0)?)?)
}

/// A number as an operand of a dtype.
pub fn scalar(v: f64, dtype: DType) -> Scalar {
    if dtype.is_float() { v.into() } else { (v as i64).into() }
}
