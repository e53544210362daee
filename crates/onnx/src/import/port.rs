//! The inputs and outputs of a model.

use super::element::Element;
use super::tensor::invalid;
use crate::proto::{DimensionProto, ModelProto, TypeProto, ValueInfoProto};
use isograd_core::{DType, Device, Error, Result, Tensor};
use std::fmt;

/// An extent of an input or an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Size {
    /// A number.
    Fixed(usize),
    /// A name, such as `batch`: any number.
    Symbol(String),
    /// Not said.
    Any,
}

/// An input or an output of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    name: String,
    pub(super) element: Element,
    shape: Option<Vec<Size>>,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Size::Fixed(extent) => write!(f, "{extent}"),
            Size::Symbol(name) => f.write_str(name),
            Size::Any => f.write_str("?"),
        }
    }
}

/// The name, ONNX's type, and the shape: `image float [N, 3, 32, 32]`.
impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.element.name())?;
        match &self.shape {
            Some(sizes) => write!(f, " [{}]", sizes.iter().map(Size::to_string).collect::<Vec<_>>().join(", ")),
            None => f.write_str(" of any shape"),
        }
    }
}

impl Port {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The dtype of the tensor. Integers of ONNX's types that the library does not have are i32 or i64, floats of 8 bits f16.
    pub fn dtype(&self) -> DType {
        self.element.dtype()
    }

    /// The extents, if the file says them.
    pub fn shape(&self) -> Option<&[Size]> {
        self.shape.as_deref()
    }

    /// The port of a wide model.
    pub(super) fn wide(self) -> Port {
        Port { element: self.element.wide(), ..self }
    }

    /// Checks an input. Errors: `Dtype`, `Device`; `Shape` for another rank, or another extent than a fixed one.
    pub(super) fn check(&self, x: &Tensor, device: &Device) -> Result<()> {
        let given = format!("{} {} was given", x.dtype(), x.shape());
        if x.dtype() != self.dtype() {
            return Err(Error::dtype("onnx", format!("the input {self} is {}, {given}", self.dtype())));
        }
        if x.device() != device {
            return Err(Error::device("onnx", format!("the model is on {device}, the input {self} on {}", x.device())));
        }
        let Some(sizes) = &self.shape else { return Ok(()) };
        let fits = |(size, extent): (&Size, &usize)| !matches!(size, Size::Fixed(fixed) if fixed != extent);
        if sizes.len() != x.rank() || !sizes.iter().zip(x.dims()).all(fits) {
            return Err(Error::shape("onnx", format!("the input is {self}, {given}")));
        }
        Ok(())
    }
}

fn size(dim: &DimensionProto) -> Size {
    match (&dim.dim_param, dim.dim_value.and_then(|v| usize::try_from(v).ok())) {
        (Some(name), _) if !name.is_empty() => Size::Symbol(name.clone()),
        (_, Some(extent)) => Size::Fixed(extent),
        _ => Size::Any,
    }
}

/// The tensor of a type; of an optional one, that of its element.
fn tensor_of(kind: &TypeProto) -> Option<&crate::proto::TensorTypeProto> {
    match (&kind.tensor_type, &kind.optional_type) {
        (Some(tensor), _) => Some(tensor),
        (None, Some(optional)) => optional.elem_type.as_ref().and_then(|kind| kind.tensor_type.as_ref()),
        _ => None,
    }
}

/// An input. Errors: `Unsupported` for one that is no tensor, or of a type that is not read.
pub fn of(file: &str, value: &ValueInfoProto) -> Result<Port> {
    let name = value.name().to_string();
    let Some(tensor) = value.r#type.as_ref().and_then(tensor_of) else {
        let message = format!("the input {name:?} is no tensor, but a sequence, a map or without a type");
        return Err(Error::unsupported(file.to_string(), message));
    };
    let element = Element::numbered(tensor.elem_type()).map_err(|why| {
        let invalid = invalid(file, &name, why);
        Error::unsupported(file.to_string(), invalid.message().replacen("the tensor", "the input", 1))
    })?;
    Ok(Port { name, element, shape: tensor.shape.as_ref().map(|shape| shape.dim.iter().map(size).collect()) })
}

/// An output, of which the name alone is sure.
pub fn or_unknown(value: &ValueInfoProto) -> Port {
    of("", value).unwrap_or_else(|_| Port { name: value.name().to_string(), element: Element::F32, shape: None })
}

/// The program that wrote a model, and the versions of its operators.
pub fn about(model: &ModelProto) -> String {
    let opset = |o: &crate::proto::OperatorSetIdProto| match o.domain() {
        "" | "ai.onnx" => format!("opset {}", o.version()),
        other => format!("{other} {}", o.version()),
    };
    let program = [model.producer_name(), model.producer_version()].join(" ");
    let parts = [program.trim().to_string()].into_iter().filter(|part| !part.is_empty());
    parts.chain(model.opset_import.iter().map(opset)).collect::<Vec<_>>().join(", ")
}
