//! Reductions of elements in host memory, in the order of the ranks.

use half::{bf16, f16};
use isograd_core::collective::Reduction;
use isograd_core::{DType, Element};

/// The reduction of tensors of one dtype, given by their bytes. Sums of 16-bit floats are in f32 and rounded once; sums of integers wrap
/// around. Where values are compared, NaN wins.
pub fn reduce(dtype: DType, reduction: Reduction, parts: &[&[u8]]) -> Vec<u8> {
    let count = parts.len();
    match dtype {
        DType::F64 => floats::<f64, f64>(parts, reduction, count, |v| v, |v| v),
        DType::F32 => floats::<f32, f32>(parts, reduction, count, |v| v, |v| v),
        DType::F16 => floats::<f16, f32>(parts, reduction, count, f16::to_f32, f16::from_f32),
        DType::BF16 => floats::<bf16, f32>(parts, reduction, count, bf16::to_f32, bf16::from_f32),
        DType::I64 => integers::<i64>(parts, reduction, i64::wrapping_add),
        DType::I32 => integers::<i32>(parts, reduction, i32::wrapping_add),
        DType::U8 => integers::<u8>(parts, reduction, u8::wrapping_add),
        // The sum of truth values is whether any is true.
        DType::Bool => integers::<bool>(parts, reduction, |a, b| a | b),
    }
}

/// What sums of floats are computed in.
trait Wide: Copy + PartialOrd + std::ops::Add<Output = Self> + std::ops::Div<Output = Self> {
    fn of(count: usize) -> Self;
}

impl Wide for f32 {
    fn of(count: usize) -> f32 {
        count as f32
    }
}

impl Wide for f64 {
    fn of(count: usize) -> f64 {
        count as f64
    }
}

fn floats<T: Element, A: Wide>(
    parts: &[&[u8]],
    reduction: Reduction,
    count: usize,
    widen: impl Fn(T) -> A,
    narrow: impl Fn(A) -> T,
) -> Vec<u8> {
    let max = |a: A, b: A| if b > a || b.partial_cmp(&b).is_none() { b } else { a };
    let combine = |a: A, b: A| if reduction == Reduction::Max { max(a, b) } else { a + b };
    let mut all: Vec<A> = T::from_bytes(parts[0]).into_iter().map(&widen).collect();
    for part in &parts[1..] {
        all.iter_mut().zip(T::from_bytes(part)).for_each(|(a, b)| *a = combine(*a, widen(b)));
    }
    if reduction == Reduction::Mean {
        all.iter_mut().for_each(|a| *a = *a / A::of(count));
    }
    let all: Vec<T> = all.into_iter().map(narrow).collect();
    bytes(&all)
}

fn integers<T: Element + Ord>(parts: &[&[u8]], reduction: Reduction, add: impl Fn(T, T) -> T) -> Vec<u8> {
    let combine = |a: T, b: T| if reduction == Reduction::Max { a.max(b) } else { add(a, b) };
    let mut all = T::from_bytes(parts[0]);
    for part in &parts[1..] {
        all.iter_mut().zip(T::from_bytes(part)).for_each(|(a, b)| *a = combine(*a, b));
    }
    bytes(&all)
}

fn bytes<T: Element>(elements: &[T]) -> Vec<u8> {
    let mut bytes = Vec::new();
    T::extend_bytes(elements, &mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduced<T: Element>(reduction: Reduction, parts: &[&[T]]) -> Vec<T> {
        let parts: Vec<Vec<u8>> = parts.iter().map(|part| bytes(part)).collect();
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        T::from_bytes(&reduce(T::DTYPE, reduction, &parts))
    }

    #[test]
    fn sums_means_and_maxima() {
        assert_eq!(reduced(Reduction::Sum, &[&[1.0f64, 2.0], &[3.0, 4.0], &[5.0, 6.0]]), [9.0, 12.0]);
        assert_eq!(reduced(Reduction::Mean, &[&[1.0f32, 2.0], &[4.0, 8.0]]), [2.5, 5.0]);
        assert_eq!(reduced(Reduction::Max, &[&[1i32, -2], &[-3, 4]]), [1, 4]);
        assert_eq!(reduced(Reduction::Sum, &[&[200u8], &[100]]), [44]);
    }

    #[test]
    fn sums_of_16_bits_are_rounded_once() {
        // In f16, 2048 + 1 is 2048.
        let one = [f16::from_f32(1.0)];
        assert_eq!(reduced(Reduction::Sum, &[&[f16::from_f32(2048.0)], &one, &one]), [f16::from_f32(2050.0)]);
    }

    #[test]
    fn nan_is_the_largest() {
        for parts in [[&[f32::NAN], &[1.0]], [&[1.0], &[f32::NAN]]] {
            assert!(reduced(Reduction::Max, &parts.map(|p: &[f32; 1]| &p[..]))[0].is_nan());
        }
    }
}
