//! Comparisons, which return bool outside of the tape, and logic of bool.

use crate::check::{bound_for, check_float, check_same, describe};
use crate::ops::{common_shape, pointwise_one};
use crate::pointwise::Pointwise;
use crate::tensor::Attributes;
use crate::{DType, Error, Result, Scalar, Tensor};

macro_rules! comparisons {
    ($($sign:literal $name:ident $row:ident $scalar:ident $scalar_row:ident;)*) => {
        impl Tensor {$(
            #[doc = concat!("`a ", $sign, " b` as bool. Operands broadcast and have one dtype.")]
            pub fn $name(&self, b: &Tensor) -> Result<Tensor> {
                let op = stringify!($name);
                check_same(op, &[self, b])?;
                let shape = common_shape(op, &[self, b])?;
                pointwise_one(op, Pointwise::$row, &[self, b], Attributes::default(), &shape, DType::Bool)
            }

            #[doc = concat!("`x ", $sign, " s` as bool. A float s is rounded to the dtype of x.")]
            pub fn $scalar(&self, s: impl Into<Scalar>) -> Result<Tensor> {
                let op = stringify!($name);
                let (int, float) = bound_for(op, s.into(), self.dtype())?;
                let attributes = Attributes { ints: &[int], floats: &[float] };
                pointwise_one(op, Pointwise::$scalar_row, &[self], attributes, self.shape(), DType::Bool)
            }
        )*}
    };
}

comparisons! {
    "==" eq Eq eq_scalar EqScalar;
    "!=" ne Ne ne_scalar NeScalar;
    "<" lt Lt lt_scalar LtScalar;
    ">" gt Gt gt_scalar GtScalar;
    "<=" le Le le_scalar LeScalar;
    ">=" ge Ge ge_scalar GeScalar;
}

/// # Comparisons
impl Tensor {
    /// Logical not of a bool tensor.
    pub fn logical_not(&self) -> Result<Tensor> {
        check_bool("logical_not", self)?;
        self.eq_scalar(0)
    }

    /// Logical and of bool tensors, which broadcast.
    pub fn logical_and(&self, b: &Tensor) -> Result<Tensor> {
        check_bool("logical_and", self)?;
        self.where_cond(b, self)
    }

    /// Logical or of bool tensors, which broadcast.
    pub fn logical_or(&self, b: &Tensor) -> Result<Tensor> {
        check_bool("logical_or", self)?;
        self.where_cond(self, b)
    }

    /// Exclusive or of bool tensors, which broadcast.
    pub fn logical_xor(&self, b: &Tensor) -> Result<Tensor> {
        check_bool("logical_xor", self)?;
        self.ne(b).map_err(|e| e.of("logical_xor"))
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident $row:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            pub fn $name(&self) -> Result<Tensor> {
                let op = stringify!($name);
                check_float(op, self)?;
                pointwise_one(op, Pointwise::$row, &[self], Attributes::default(), self.shape(), DType::Bool)
            }
        )*}
    };
}

kinds! {
    /// True where x is NaN, as bool. Float dtypes.
    isnan IsNan;
    /// True where x is infinity or -infinity, as bool. Float dtypes.
    isinf IsInf;
    /// True where x is neither NaN nor infinite, as bool. Float dtypes.
    isfinite IsFinite;
    /// True where x is NaN or infinite, as bool. Float dtypes.
    not_finite NotFinite;
}

pub(crate) fn check_bool(op: &'static str, t: &Tensor) -> Result<()> {
    if t.dtype() != DType::Bool {
        return Err(Error::dtype(op, format!("{} was given, expected bool", describe(&[t]))));
    }
    Ok(())
}
