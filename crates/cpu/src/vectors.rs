//! Arithmetic with the vectors of the processor.

use crate::access::Acc;
use crate::elementwise::pointwise::{Eval, real_f32, real_f64};
use isograd_core::pointwise::Pointwise;
use pulp::Simd;

/// A type of arithmetic with vectors.
pub trait Real: Acc {
    type Vector<S: Simd>: bytemuck::Pod;
    fn splat<S: Simd>(simd: S, v: Self) -> Self::Vector<S>;
    /// `a b + c`, rounded once where the processor can.
    fn multiply_add<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>, c: Self::Vector<S>) -> Self::Vector<S>;
    /// The function of a row that takes floats.
    fn function(row: Pointwise) -> Option<Eval<Self>>;
}

macro_rules! real {
    ($t:ident, $vector:ident, $splat:ident, $multiply_add:ident, $function:ident) => {
        impl Real for $t {
            type Vector<S: Simd> = S::$vector;
            #[inline(always)]
            fn splat<S: Simd>(simd: S, v: $t) -> S::$vector {
                simd.$splat(v)
            }
            #[inline(always)]
            fn multiply_add<S: Simd>(simd: S, a: S::$vector, b: S::$vector, c: S::$vector) -> S::$vector {
                simd.$multiply_add(a, b, c)
            }
            fn function(row: Pointwise) -> Option<Eval<$t>> {
                $function(row)
            }
        }
    };
}

real!(f32, f32s, splat_f32s, mul_add_e_f32s, real_f32);
real!(f64, f64s, splat_f64s, mul_add_e_f64s, real_f64);
