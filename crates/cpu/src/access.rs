//! Elements of any dtype and layout, read and written in blocks of the accumulation type.

use crate::memory;
use half::f16;
use half::slice::HalfFloatSliceExt;
use isograd_core::backend::round_to_odd;
use isograd_core::host;
use isograd_core::pointwise::{Int, Value};
use isograd_core::{DType, Layout, MAX_RANK, Operand, Result};
use parking_lot::{MappedRwLockReadGuard, MappedRwLockWriteGuard};
use rayon::prelude::*;
use std::cell::RefCell;

/// Elements that are processed at a time. They fit into the first-level cache several times.
pub const BLOCK: usize = 512;

/// The number of elements from which threads share the work.
pub const PARALLEL: usize = 32 * 1024;

/// Elements of a thread's share of a conversion.
const PIECE: usize = 16 * BLOCK;

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
    /// The number type of pointwise functions.
    type Number: Value<Mask = bool> + Send + Sync;
    fn number(self) -> Self::Number;
    fn back(number: Self::Number) -> Self;
    fn from_f64(v: f64) -> Self;
    fn from_f32(v: f32) -> Self;
    fn from_i64(v: i64) -> Self;
    fn is_nan(self) -> bool;
    fn to_f64(self) -> f64;
    /// Rounded to the nearest.
    fn to_f32(self) -> f32;
    /// Truncated and saturated; NaN becomes 0.
    fn to_i64(self) -> i64;
    /// Wrapped from integers; truncated and saturated from floats.
    fn to_i32(self) -> i32;
    /// As `to_i32`.
    fn to_u8(self) -> u8;
    /// An f32 that rounds to the same 16-bit float as `self`.
    fn to_f32_odd(self) -> f32;
    /// A number that is larger for larger values and equal for equal ones. NaN has the largest.
    fn rank(self) -> u64;
}

fn rank(v: f64) -> u64 {
    // Adding 0 turns -0 into 0.
    let bits = (v + 0.0).to_bits();
    match v.is_nan() {
        true => u64::MAX,
        false if bits >> 63 == 1 => !bits,
        false => bits | 1 << 63,
    }
}

/// [`round_to_odd`] of an integer, which may be inexact in f64.
fn integer_to_odd(v: i64) -> f32 {
    let near = v as f32;
    let back = near as i128;
    if back == v as i128 {
        return near;
    }
    let toward_zero = near.to_bits() - (back.abs() > (v as i128).abs()) as u32;
    f32::from_bits(toward_zero | 1)
}

/// Rounds to the nearest bf16, half to even.
#[inline(always)]
fn to_bf16(v: f32) -> u16 {
    let bits = v.to_bits();
    let rounded = (bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16) as u16;
    if v.is_nan() { (bits >> 16) as u16 | 0x40 } else { rounded }
}

macro_rules! acc {
    ($t:ident $dtype:ident $number:ty, $into:expr, $from:expr, $is_nan:expr, $odd:expr, $rank:expr) => {
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
            #[inline(always)]
            fn from_f32(v: f32) -> Self {
                v as $t
            }
            fn from_i64(v: i64) -> Self {
                v as $t
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                $is_nan(self)
            }
            #[inline(always)]
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
            #[inline(always)]
            fn to_f32_odd(self) -> f32 {
                $odd(self)
            }
            fn rank(self) -> u64 {
                $rank(self)
            }
        }
    };
}

acc!(f32 F32 f32, |v| v, |v| v, f32::is_nan, |v| v, |v| rank(v as f64));
acc!(f64 F64 f64, |v| v, |v| v, f64::is_nan, round_to_odd, rank);
acc!(i64 I64 Int, Int, |v: Int| v.0, |_| false, integer_to_odd, |v: i64| v as u64 ^ 1 << 63);

/// A layout without extents of 1, in which dimensions that are contiguous in memory are merged. Elements and order are the same.
#[derive(Clone, Copy)]
pub struct Strided {
    pub offset: usize,
    rank: usize,
    dims: [usize; MAX_RANK],
    strides: [usize; MAX_RANK],
}

impl Strided {
    pub fn new(layout: &Layout) -> Strided {
        if layout.is_contiguous() {
            return Strided::line(layout.offset(), layout.shape().numel());
        }
        Strided::of(layout.shape().dims(), layout.strides(), layout.offset())
    }

    /// Adjacent elements.
    pub fn line(offset: usize, len: usize) -> Strided {
        let mut line = Strided { offset, rank: 1, dims: [1; MAX_RANK], strides: [0; MAX_RANK] };
        (line.dims[0], line.strides[0]) = (len, 1);
        line
    }

    pub fn of(dims: &[usize], strides: &[usize], offset: usize) -> Strided {
        Strided::merge(dims, [(strides, offset)])[0]
    }

    /// Several layouts of the same shape, merged alike.
    pub fn merge<const K: usize>(dims: &[usize], layouts: [(&[usize], usize); K]) -> [Strided; K] {
        let empty = |offset| Strided { offset, rank: 0, dims: [1; MAX_RANK], strides: [0; MAX_RANK] };
        let mut merged = layouts.map(|(_, offset)| empty(offset));
        for d in (0..dims.len()).filter(|&d| dims[d] != 1) {
            let joins = |s: &Strided, k: usize| s.rank > 0 && s.strides[s.rank - 1] == dims[d] * layouts[k].0[d];
            let all = merged.iter().enumerate().all(|(k, s)| joins(s, k));
            for (s, (strides, _)) in merged.iter_mut().zip(&layouts) {
                s.rank += !all as usize;
                s.dims[s.rank - 1] *= dims[d];
                s.strides[s.rank - 1] = strides[d];
            }
        }
        merged
    }

    /// The same elements at another offset.
    pub fn at(self, offset: usize) -> Strided {
        Strided { offset, ..self }
    }

    pub fn numel(&self) -> usize {
        self.dims().iter().product()
    }

    /// The elements of one index of the first dimension, which must exist.
    pub fn block(&self) -> Strided {
        let mut block = Strided { rank: self.rank - 1, ..*self };
        block.dims.rotate_left(1);
        block.strides.rotate_left(1);
        block
    }

    /// True if each block begins behind the last element of the block before.
    pub fn has_separate_blocks(&self) -> bool {
        self.rank > 0 && {
            let block = self.block();
            let reach: usize = block.dims().iter().zip(block.strides()).map(|(d, s)| (d - 1) * s).sum();
            self.strides[0] > reach
        }
    }

    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    pub fn strides(&self) -> &[usize] {
        &self.strides[..self.rank]
    }

    /// The innermost extent and stride.
    pub fn last(&self) -> (usize, usize) {
        self.rank.checked_sub(1).map_or((1, 1), |d| (self.dims[d], self.strides[d]))
    }

    pub fn is_contiguous(&self) -> bool {
        self.rank == 0 || self.rank == 1 && self.strides[0] == 1
    }

    /// True if all elements are the same element.
    pub fn is_scalar(&self) -> bool {
        self.strides().iter().all(|&s| s == 0)
    }

    /// The position of the element with this number.
    pub fn position(&self, number: usize) -> usize {
        let mut rest = number;
        let mut position = self.offset;
        for d in (1..self.rank).rev() {
            position += rest % self.dims[d] * self.strides[d];
            rest /= self.dims[d];
        }
        position + if self.rank > 0 { rest * self.strides[0] } else { 0 }
    }
}

/// Calls `f(at, position, stride, n)` for runs of elements `start .. start + len` in row-major order: `n` elements from
/// `position` of the buffer, `stride` apart, are elements `at ..` of the range.
pub fn for_runs(layout: &Strided, start: usize, len: usize, mut f: impl FnMut(usize, usize, usize, usize)) {
    if len == 0 {
        return;
    }
    let (dims, strides) = (layout.dims(), layout.strides());
    let Some(last) = dims.len().checked_sub(1) else {
        return f(0, layout.offset, 1, 1);
    };
    let mut index = [0usize; MAX_RANK];
    let (mut rest, mut position) = (start, layout.offset);
    for d in (1..=last).rev() {
        index[d] = rest % dims[d];
        rest /= dims[d];
        position += index[d] * strides[d];
    }
    index[0] = rest;
    position += rest * strides[0];
    let mut at = 0;
    loop {
        let n = (dims[last] - index[last]).min(len - at);
        f(at, position, strides[last], n);
        at += n;
        if at == len {
            return;
        }
        // The run ended its row; continues with the next row.
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

/// Calls a function that is compiled for the widest vectors of the processor, with all that it inlines. The bits are the same with any:
/// compilers neither contract nor reorder operations.
#[inline(always)]
pub fn in_vectors<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(processor) = pulp::x86::V4::try_new() {
            return processor.vectorize(f);
        }
        if let Some(processor) = pulp::x86::V3::try_new() {
            return processor.vectorize(f);
        }
    }
    f()
}

/// As [`in_vectors`], in vectors of 32 bytes at most: what unpacks bits is twice as fast in them as in longer ones.
#[inline(always)]
pub fn in_short_vectors<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    if let Some(processor) = pulp::x86::V3::try_new() {
        return processor.vectorize(f);
    }
    f()
}

/// Elements `start .. start + out.len()` of a view, in row-major order.
pub fn load<A: Acc>(view: View<'_>, layout: &Strided, start: usize, out: &mut [A]) {
    let len = out.len();
    for_runs(layout, start, len, |at, position, stride, n| convert(view, position, stride, &mut out[at..at + n]));
}

/// All elements of a view, in row-major order. Threads share the work.
pub fn load_all<A: Acc>(view: View<'_>, layout: &Strided, out: &mut [A]) {
    match out.len() < PARALLEL {
        true => load(view, layout, 0, out),
        false => out.par_chunks_mut(PIECE).enumerate().for_each(|(i, out)| load(view, layout, i * PIECE, out)),
    }
}

/// As `load`, without a copy if the elements are adjacent and in the accumulation type.
pub fn borrow<'a, A: Acc>(view: View<'a>, layout: &Strided, start: usize, scratch: &'a mut [A]) -> &'a [A] {
    if view.dtype == A::DTYPE && layout.is_contiguous() {
        return &bytemuck::cast_slice(view.bytes)[layout.offset + start..][..scratch.len()];
    }
    load(view, layout, start, scratch);
    scratch
}

fn convert<A: Acc>(view: View<'_>, position: usize, stride: usize, out: &mut [A]) {
    match view.dtype {
        DType::F64 => pick(view.bytes, position, stride, out, |v: f64| A::from_f64(v)),
        DType::F32 => pick(view.bytes, position, stride, out, |v: f32| A::from_f32(v)),
        DType::F16 if stride == 1 && A::DTYPE == DType::F32 => {
            let halves: &[f16] = bytemuck::cast_slice(view.bytes);
            halves[position..][..out.len()].convert_to_f32_slice(bytemuck::cast_slice_mut(out));
        }
        DType::F16 => pick(view.bytes, position, stride, out, |v: f16| A::from_f32(v.to_f32())),
        DType::BF16 if stride == 1 => in_vectors(
            #[inline(always)]
            || pick(view.bytes, position, 1, out, |v: u16| A::from_f32(f32::from_bits((v as u32) << 16))),
        ),
        DType::BF16 => {
            pick(view.bytes, position, stride, out, |v: u16| A::from_f32(f32::from_bits((v as u32) << 16)));
        }
        DType::I64 => pick(view.bytes, position, stride, out, |v: i64| A::from_i64(v)),
        DType::I32 => pick(view.bytes, position, stride, out, |v: i32| A::from_i64(v as i64)),
        DType::U8 | DType::Bool => pick(view.bytes, position, stride, out, |v: u8| A::from_i64(v as i64)),
    }
}

#[inline(always)]
fn pick<T: bytemuck::Pod, A: Acc>(bytes: &[u8], position: usize, stride: usize, out: &mut [A], f: impl Fn(T) -> A) {
    let values: &[T] = bytemuck::cast_slice(bytes);
    match stride {
        0 => out.fill(f(values[position])),
        1 => out.iter_mut().zip(&values[position..]).for_each(|(o, &v)| *o = f(v)),
        _ => out.iter_mut().zip(values[position..].iter().step_by(stride)).for_each(|(o, &v)| *o = f(v)),
    }
}

/// As [`store`]. Threads share the work.
pub fn store_all<A: Acc>(values: &[A], dtype: DType, bytes: &mut [u8]) {
    match values.len() < PARALLEL {
        true => store(values, dtype, bytes),
        false => {
            let pieces = values.par_chunks(PIECE).zip(bytes.par_chunks_mut(PIECE * dtype.size()));
            pieces.for_each(|(values, bytes)| store(values, dtype, bytes));
        }
    }
}

/// Writes values to contiguous bytes of `dtype`, rounded once.
pub fn store<A: Acc>(values: &[A], dtype: DType, bytes: &mut [u8]) {
    #[inline(always)]
    fn put<T: bytemuck::Pod, A: Acc>(values: &[A], bytes: &mut [u8], f: impl Fn(A) -> T) {
        bytemuck::cast_slice_mut::<u8, T>(bytes).iter_mut().zip(values).for_each(|(o, &v)| *o = f(v));
    }
    match dtype {
        DType::F64 => put(values, bytes, A::to_f64),
        DType::F32 => put(values, bytes, A::to_f32),
        DType::F16 if A::DTYPE == DType::F32 => {
            let halves: &mut [f16] = bytemuck::cast_slice_mut(bytes);
            halves[..values.len()].convert_from_f32_slice(bytemuck::cast_slice(values));
        }
        DType::F16 => put(values, bytes, |v| f16::from_f32(v.to_f32_odd())),
        DType::BF16 => in_vectors(
            #[inline(always)]
            || put(values, bytes, |v| to_bf16(v.to_f32_odd())),
        ),
        DType::I64 => put(values, bytes, A::to_i64),
        DType::I32 => put(values, bytes, A::to_i32),
        DType::U8 => put(values, bytes, A::to_u8),
        // NaN counts as true.
        DType::Bool => put(values, bytes, |v| (v != A::from_i64(0)) as u8),
    }
}

/// Slices of `row` bytes, each in pieces of `piece`, by the number of the task that `task` gives for a row and a piece.
pub fn shares<'y>(
    op: &'static str,
    bytes: &'y mut [u8],
    [row, piece]: [usize; 2],
    tasks: usize,
    task: impl Fn(usize, usize) -> usize,
) -> Result<Vec<Vec<&'y mut [u8]>>> {
    let mut all = host::with_room(op, tasks)?;
    all.resize_with(tasks, Vec::new);
    for (i, row) in bytes.chunks_mut(row).enumerate() {
        row.chunks_mut(piece).enumerate().for_each(|(k, piece)| all[task(i, k)].push(piece));
    }
    Ok(all)
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
        // A thread that waits for others may be given their work, while the buffer is in use further up the stack.
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

/// Runs `$f::<T>(..)` for an unsigned integer of the dtype's size. For moves of bits.
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
