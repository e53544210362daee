//! Elements of any dtype and layout, read and written in blocks of the accumulation type.

use crate::memory;
use half::{bf16, f16};
use isograd_core::pointwise::{Int, Value};
use isograd_core::{DType, Layout, MAX_RANK, Operand, Result};
use parking_lot::{MappedRwLockReadGuard, MappedRwLockWriteGuard};
use std::cell::RefCell;

/// Elements that are handled at a time: what fits into the first cache several times over.
pub const BLOCK: usize = 512;

/// From this number of elements on, threads share the work.
pub const PARALLEL: usize = 32 * 1024;

/// A readable operand.
pub struct Source<'a> {
    pub bytes: MappedRwLockReadGuard<'a, [u8]>,
    pub layout: &'a Layout,
    pub dtype: DType,
}

impl<'a> Source<'a> {
    pub fn new(operand: &Operand<'a>) -> Result<Source<'a>> {
        let bytes = memory::of(operand.memory)?.read();
        Ok(Source { bytes, layout: operand.layout, dtype: operand.dtype })
    }

    pub fn view(&self) -> View<'_> {
        View { bytes: &self.bytes, dtype: self.dtype }
    }
}

/// A writable operand.
pub struct Target<'a> {
    pub bytes: MappedRwLockWriteGuard<'a, [u8]>,
    pub layout: &'a Layout,
    pub dtype: DType,
}

impl<'a> Target<'a> {
    pub fn new(operand: &Operand<'a>) -> Result<Target<'a>> {
        let bytes = memory::of(operand.memory)?.write();
        Ok(Target { bytes, layout: operand.layout, dtype: operand.dtype })
    }

    /// The elements of a contiguous output.
    pub fn elements(&mut self) -> &mut [u8] {
        let size = self.dtype.size();
        let start = self.layout.offset() * size;
        &mut self.bytes[start..start + self.layout.shape().numel() * size]
    }
}

/// Bytes with their dtype.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub bytes: &'a [u8],
    pub dtype: DType,
}

/// The type in which arithmetic is done: f32, f64 or i64.
pub trait Acc: bytemuck::Pod + Send + Sync + PartialOrd + std::fmt::Debug {
    /// The dtype stored as this type itself.
    const DTYPE: DType;
    /// What rows of the pointwise table compute with.
    type Number: Value<Mask = bool> + Send + Sync;
    fn number(self) -> Self::Number;
    fn back(number: Self::Number) -> Self;
    fn from_f64(v: f64) -> Self;
    fn from_i64(v: i64) -> Self;
    fn to_f64(self) -> f64;
    /// Rounded to the nearest.
    fn to_f32(self) -> f32;
    /// Truncated and saturated; NaN becomes 0.
    fn to_i64(self) -> i64;
    /// Wrapped from integers; truncated and saturated from floats.
    fn to_i32(self) -> i32;
    /// As `to_i32`.
    fn to_u8(self) -> u8;
    fn to_f16(self) -> f16;
    fn to_bf16(self) -> bf16;
}

macro_rules! acc {
    ($t:ident $dtype:ident $number:ty, $into:expr, $from:expr, $f16:ident $bf16:ident $via:ty) => {
        impl Acc for $t {
            const DTYPE: DType = DType::$dtype;
            type Number = $number;
            #[inline(always)]
            fn number(self) -> $number {
                $into(self)
            }
            #[inline(always)]
            fn back(number: $number) -> Self {
                $from(number)
            }
            fn from_f64(v: f64) -> Self {
                v as $t
            }
            fn from_i64(v: i64) -> Self {
                v as $t
            }
            fn to_f64(self) -> f64 {
                self as f64
            }
            fn to_f32(self) -> f32 {
                self as f32
            }
            fn to_i64(self) -> i64 {
                self as i64
            }
            fn to_i32(self) -> i32 {
                self as i32
            }
            fn to_u8(self) -> u8 {
                self as u8
            }
            fn to_f16(self) -> f16 {
                f16::$f16(self as $via)
            }
            fn to_bf16(self) -> bf16 {
                bf16::$bf16(self as $via)
            }
        }
    };
}

acc!(f32 F32 f32, |v| v, |v| v, from_f32 from_f32 f32);
acc!(f64 F64 f64, |v| v, |v| v, from_f64 from_f64 f64);
acc!(i64 I64 Int, Int, |v: Int| v.0, from_f64 from_f64 f64);

/// Calls `f(at, position, stride, n)` for runs of elements `start .. start + len` in row-major order: `n` elements from
/// `position` of the buffer, `stride` apart, are elements `at ..` of the range.
pub fn for_runs(layout: &Layout, start: usize, len: usize, mut f: impl FnMut(usize, usize, usize, usize)) {
    if len == 0 {
        return;
    }
    let (dims, strides) = (layout.shape().dims(), layout.strides());
    let Some(last) = dims.len().checked_sub(1) else {
        return f(0, layout.offset(), 0, 1);
    };
    let mut index = [0usize; MAX_RANK];
    let (mut rest, mut position) = (start, layout.offset());
    for d in (0..=last).rev() {
        index[d] = rest % dims[d];
        rest /= dims[d];
        position += index[d] * strides[d];
    }
    let mut at = 0;
    loop {
        let n = (dims[last] - index[last]).min(len - at);
        f(at, position, strides[last], n);
        at += n;
        if at == len {
            return;
        }
        // The run ended its row: on to the next.
        position -= index[last] * strides[last];
        index[last] = 0;
        for d in (0..last).rev() {
            index[d] += 1;
            position += strides[d];
            if index[d] < dims[d] {
                break;
            }
            position -= dims[d] * strides[d];
            index[d] = 0;
        }
    }
}

/// Elements `start .. start + out.len()` of a view, in row-major order.
pub fn load<A: Acc>(view: View<'_>, layout: &Layout, start: usize, out: &mut [A]) {
    if layout.is_contiguous() {
        return convert(view, layout.offset() + start, 1, out);
    }
    let len = out.len();
    for_runs(layout, start, len, |at, position, stride, n| convert(view, position, stride, &mut out[at..at + n]));
}

fn convert<A: Acc>(view: View<'_>, position: usize, stride: usize, out: &mut [A]) {
    match view.dtype {
        DType::F64 => pick(view.bytes, position, stride, out, |v: f64| A::from_f64(v)),
        DType::F32 => pick(view.bytes, position, stride, out, |v: f32| A::from_f64(v as f64)),
        DType::F16 => pick(view.bytes, position, stride, out, |v: f16| A::from_f64(v.to_f64())),
        DType::BF16 => pick(view.bytes, position, stride, out, |v: bf16| A::from_f64(v.to_f64())),
        DType::I64 => pick(view.bytes, position, stride, out, |v: i64| A::from_i64(v)),
        DType::I32 => pick(view.bytes, position, stride, out, |v: i32| A::from_i64(v as i64)),
        DType::U8 | DType::Bool => pick(view.bytes, position, stride, out, |v: u8| A::from_i64(v as i64)),
    }
}

fn pick<T: bytemuck::Pod, A: Acc>(bytes: &[u8], position: usize, stride: usize, out: &mut [A], f: impl Fn(T) -> A) {
    let values: &[T] = bytemuck::cast_slice(bytes);
    match stride {
        0 => out.fill(f(values[position])),
        1 => out.iter_mut().zip(&values[position..]).for_each(|(o, &v)| *o = f(v)),
        _ => out.iter_mut().zip(values[position..].iter().step_by(stride)).for_each(|(o, &v)| *o = f(v)),
    }
}

/// Writes values to contiguous bytes of `dtype`, rounded once.
pub fn store<A: Acc>(values: &[A], dtype: DType, bytes: &mut [u8]) {
    fn put<T: bytemuck::Pod, A: Acc>(values: &[A], bytes: &mut [u8], f: impl Fn(A) -> T) {
        bytemuck::cast_slice_mut::<u8, T>(bytes).iter_mut().zip(values).for_each(|(o, &v)| *o = f(v));
    }
    match dtype {
        DType::F64 => put(values, bytes, A::to_f64),
        DType::F32 => put(values, bytes, A::to_f32),
        DType::F16 => put(values, bytes, A::to_f16),
        DType::BF16 => put(values, bytes, A::to_bf16),
        DType::I64 => put(values, bytes, A::to_i64),
        DType::I32 => put(values, bytes, A::to_i32),
        DType::U8 => put(values, bytes, A::to_u8),
        // NaN counts as true.
        DType::Bool => put(values, bytes, |v| (v != A::from_i64(0)) as u8),
    }
}

/// A buffer of this thread for `n` values of unspecified content.
pub fn with_scratch<A: Acc, R>(n: usize, f: impl FnOnce(&mut [A]) -> R) -> R {
    thread_local! {
        static SCRATCH: RefCell<Vec<u128>> = const { RefCell::new(Vec::new()) };
    }
    SCRATCH.with(|scratch| match scratch.try_borrow_mut() {
        Ok(mut lines) => {
            let needed = (n * size_of::<A>()).div_ceil(16);
            if lines.len() < needed {
                lines.resize(needed, 0);
            }
            f(&mut bytemuck::cast_slice_mut(&mut lines)[..n])
        }
        // A thread that waits for others may be given their work: then the buffer is in use further up.
        Err(_) => f(&mut vec![A::from_i64(0); n]),
    })
}

/// Runs `$f::<A>(..)` for the accumulation type of a dtype.
macro_rules! with_acc {
    ($dtype:expr, $f:ident($($argument:expr),*)) => {
        match $dtype.acc() {
            isograd_core::DType::F64 => $f::<f64>($($argument),*),
            isograd_core::DType::F32 => $f::<f32>($($argument),*),
            _ => $f::<i64>($($argument),*),
        }
    };
}
pub(crate) use with_acc;

/// Runs `$f::<T>(..)` for an unsigned integer as wide as the dtype: what is moved without being looked at.
macro_rules! with_bits {
    ($dtype:expr, $f:ident($($argument:expr),*)) => {
        match $dtype.size() {
            8 => $f::<u64>($($argument),*),
            4 => $f::<u32>($($argument),*),
            2 => $f::<u16>($($argument),*),
            _ => $f::<u8>($($argument),*),
        }
    };
}
pub(crate) use with_bits;
