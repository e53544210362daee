//! A call of an operator: its operands and attributes, as operators ask for them.

use super::attribute::Attribute;
use super::element::Element;
use super::graph::Node;
use super::run::Run;
use super::value::Value;
use isograd_core::{DType, Device, Error, Kind, Result, Tensor};

/// A call of an operator.
pub struct Call<'a> {
    pub node: &'a Node,
    pub inputs: Vec<Option<Value>>,
    pub run: &'a Run<'a>,
}

/// An error of an attribute.
pub fn wrong<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::attr("onnx", message))
}

/// An error of shapes.
pub fn misshapen<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::shape("onnx", message))
}

/// The error of what an operator of ONNX can do, and ours cannot.
pub fn unsupported<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::unsupported("onnx", message))
}

/// Numbers that are extents or places. Errors: `Attr` for one below 0.
pub fn sizes(numbers: &[i64]) -> Result<Vec<usize>> {
    let size =
        |&n: &i64| usize::try_from(n).or_else(|_| wrong(format!("{numbers:?} was given, expected none below 0")));
    numbers.iter().map(size).collect()
}

/// The most places that are computed on the host.
const MOST_PLACES: usize = 1 << 28;

/// A number of places that are computed on the host. Errors: `OutOfMemory` for more than a graph should ask for.
pub fn few(count: usize) -> Result<usize> {
    if count <= MOST_PLACES {
        return Ok(count);
    }
    let message = format!("{count} places were asked for on the host, which computes at most {MOST_PLACES}");
    Err(Error::new(Kind::OutOfMemory, "onnx", message))
}

/// A dimension of `rank`, of which a negative one counts from the end. Errors: `Attr` for one out of range.
pub fn axis_of(axis: i64, rank: usize) -> Result<usize> {
    let counted = if axis < 0 { axis.checked_add(rank as i64) } else { Some(axis) };
    match counted.and_then(|axis| usize::try_from(axis).ok()).filter(|&axis| axis < rank) {
        Some(axis) => Ok(axis),
        None => wrong(format!("the axis is {axis}, expected one of {rank} dimensions")),
    }
}

/// Dimensions of `rank`.
pub fn axes_of(axes: &[i64], rank: usize) -> Result<Vec<usize>> {
    axes.iter().map(|&axis| axis_of(axis, rank)).collect()
}

/// Dimensions as ops of tensors take them.
pub fn signed(axes: &[usize]) -> Vec<isize> {
    axes.iter().map(|&axis| axis as isize).collect()
}

impl Call<'_> {
    pub fn opset(&self) -> i64 {
        self.node.opset
    }

    pub fn device(&self) -> &Device {
        self.run.device()
    }

    /// Input `i`, unless it is absent.
    pub fn given(&self, i: usize) -> Option<&Value> {
        self.inputs.get(i)?.as_ref().filter(|value| !matches!(value, Value::Absent))
    }

    /// True if input `i` is a tensor of the state.
    pub fn is_state(&self, i: usize) -> bool {
        self.node.inputs.get(i).copied().flatten().is_some_and(|slot| self.run.is_state(slot))
    }

    /// Input `i`. Errors: `Value` if it is absent.
    pub fn value(&self, i: usize) -> Result<&Value> {
        self.given(i).ok_or_else(|| Error::value("onnx", format!("input {i} is missing")))
    }

    /// The tensor of input `i`. Errors: as [`value`](Call::value).
    pub fn x(&self, i: usize) -> Result<Tensor> {
        self.value(i)?.tensor(self.device())
    }

    /// The tensor of input `i`, unless it is absent.
    pub fn optional(&self, i: usize) -> Result<Option<Tensor>> {
        self.given(i).map(|value| value.tensor(self.device())).transpose()
    }

    /// All inputs, of an operator that takes any number.
    pub fn all(&self) -> Result<Vec<Tensor>> {
        match self.inputs.len() {
            0 => Err(Error::value("onnx", "it has no inputs")),
            n => (0..n).map(|i| self.x(i)).collect(),
        }
    }

    pub fn element(&self, i: usize) -> Result<Element> {
        self.value(i)?.element()
    }

    /// The integers of input `i` on the host.
    pub fn ints(&self, i: usize) -> Result<Vec<i64>> {
        self.value(i)?.ints()
    }

    /// The integers of input `i` on the host, unless it is absent.
    pub fn optional_ints(&self, i: usize) -> Result<Option<Vec<i64>>> {
        self.given(i).map(Value::ints).transpose()
    }

    /// The only integer of input `i`.
    pub fn int_of(&self, i: usize) -> Result<i64> {
        only(self.ints(i)?)
    }

    /// The only number of input `i`, unless it is absent.
    pub fn optional_number(&self, i: usize) -> Result<Option<f64>> {
        self.given(i).map(|value| only(value.floats()?)).transpose()
    }

    /// The only truth value of input `i`.
    pub fn is_true(&self, i: usize) -> Result<bool> {
        Ok(self.int_of(i)? != 0)
    }

    pub fn int(&self, name: &str, default: i64) -> Result<i64> {
        Ok(self.node.attributes.int(name)?.unwrap_or(default))
    }

    pub fn flag(&self, name: &str) -> Result<bool> {
        Ok(self.int(name, 0)? != 0)
    }

    pub fn float(&self, name: &str, default: f64) -> Result<f64> {
        Ok(self.node.attributes.float(name)?.unwrap_or(default))
    }

    pub fn text<'s>(&'s self, name: &str, default: &'s str) -> Result<&'s str> {
        Ok(self.node.attributes.text(name)?.unwrap_or(default))
    }

    /// A list of integers, unless it is absent.
    pub fn list(&self, name: &str) -> Result<Option<Vec<i64>>> {
        Ok(self.node.attributes.ints(name)?.map(<[i64]>::to_vec))
    }

    /// An integer that the operator needs.
    pub fn needed(&self, name: &str) -> Result<i64> {
        match self.node.attributes.int(name)? {
            Some(v) => Ok(v),
            None => wrong(format!("the attribute {name} is missing")),
        }
    }

    /// Integers that an attribute had until an opset, and input `i` has from it on.
    pub fn moved_ints(&self, name: &str, i: usize) -> Result<Option<Vec<i64>>> {
        match self.list(name)? {
            Some(list) => Ok(Some(list)),
            None => self.optional_ints(i),
        }
    }

    /// The dimension that an attribute names, of `rank`.
    pub fn axis(&self, name: &str, default: i64, rank: usize) -> Result<usize> {
        axis_of(self.int(name, default)?, rank)
    }

    /// The type of elements that an attribute names.
    pub fn element_named(&self, name: &str) -> Result<Option<Element>> {
        let Some(number) = self.node.attributes.int(name)? else { return Ok(None) };
        numbered(number).map(Some)
    }

    /// A tensor that is an attribute.
    pub fn constant(&self, name: &str) -> Result<Option<Value>> {
        match self.node.attributes.get(name) {
            None => Ok(None),
            Some(Attribute::Numbers(value)) => Ok(Some(value.clone())),
            Some(Attribute::Constant(at)) => Ok(Some(self.run.constant(*at).into())),
            Some(_) => wrong(format!("the attribute {name} is no tensor")),
        }
    }

    /// A result of the type of input `i`, of arithmetic that may have left its integers.
    pub fn wrapped(&self, i: usize, t: Tensor) -> Result<Value> {
        self.element(i)?.with(t)
    }

    /// A result of elements of input `i`, in other places.
    pub fn moved(&self, i: usize, t: Tensor) -> Result<Value> {
        Ok(Value::Tensor(t, self.element(i)?))
    }
}

/// The type of elements with a number of ONNX's.
pub fn numbered(number: i64) -> Result<Element> {
    let number = i32::try_from(number).unwrap_or(0);
    Element::numbered(number).or_else(|why| unsupported(format!("a result {why}")))
}

impl Element {
    /// Integers of any size, or floats, as elements of this type: integers wrap.
    pub fn with(self, t: Tensor) -> Result<Value> {
        let t = self.wrap(t)?;
        let t = if t.dtype() == self.dtype() { t } else { wrapping_cast(&t, self.dtype())? };
        Ok(Value::Tensor(t, self))
    }
}

/// A cast of integers that keeps the low bits.
pub fn wrapping_cast(t: &Tensor, dtype: DType) -> Result<Tensor> {
    match (t.dtype(), dtype) {
        (DType::I64, DType::I32) => {
            let low = t.bitwise_and(&Tensor::full((), u32::MAX as i64, DType::I64, t.device())?)?;
            let is_negative = low.gt_scalar(i32::MAX as i64)?;
            is_negative.where_cond(&low.sub_scalar(1i64 << 32)?, &low)?.cast(dtype)
        }
        (DType::I64 | DType::I32, DType::U8) => {
            t.bitwise_and(&Tensor::full((), 255i64, t.dtype(), t.device())?)?.cast(dtype)
        }
        _ => t.cast(dtype),
    }
}

/// The only one of some numbers.
fn only<T: Copy>(numbers: Vec<T>) -> Result<T> {
    match numbers[..] {
        [one] => Ok(one),
        _ => misshapen(format!("{} numbers were given, expected one", numbers.len())),
    }
}
