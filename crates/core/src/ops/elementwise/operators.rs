//! `+ - * /` on tensors and numbers. They panic with the error's message, as Rust's own operators do. `add`, `sub`, `mul` and `div`
//! return the error.

use crate::Tensor;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// The result of an operator.
#[track_caller]
fn expect(result: crate::Result<Tensor>) -> Tensor {
    match result {
        Ok(t) => t,
        Err(error) => panic!("{error}"),
    }
}

macro_rules! operator {
    ($($Trait:ident $method:ident $scalar:ident $mirrored:ident;)*) => {$(
        operator!(@tensors $Trait $method Tensor, Tensor);
        operator!(@tensors $Trait $method &Tensor, Tensor);
        operator!(@tensors $Trait $method Tensor, &Tensor);
        operator!(@tensors $Trait $method &Tensor, &Tensor);
        operator!(@scalar $Trait $method $scalar $mirrored Tensor);
        operator!(@scalar $Trait $method $scalar $mirrored &Tensor);
    )*};
    (@tensors $Trait:ident $method:ident $A:ty, $B:ty) => {
        #[doc = concat!("[`Tensor::", stringify!($method), "`]. Panics with its error.")]
        impl $Trait<$B> for $A {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: $B) -> Tensor {
                expect(Tensor::$method(&self, &other))
            }
        }
    };
    (@scalar $Trait:ident $method:ident $scalar:ident $mirrored:ident $A:ty) => {
        #[doc = concat!("[`Tensor::", stringify!($scalar), "`]. Panics with its error.")]
        impl $Trait<f64> for $A {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: f64) -> Tensor {
                expect(self.$scalar(other))
            }
        }
        #[doc = concat!("[`Tensor::", stringify!($mirrored), "`]. Panics with its error.")]
        impl $Trait<$A> for f64 {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: $A) -> Tensor {
                expect(other.$mirrored(self))
            }
        }
    };
}

operator! {
    Add add add_scalar add_scalar;
    Sub sub sub_scalar rsub_scalar;
    Mul mul mul_scalar mul_scalar;
    Div div div_scalar rdiv_scalar;
}

impl Neg for &Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        expect(Tensor::neg(self))
    }
}

impl Neg for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        expect(Tensor::neg(&self))
    }
}
