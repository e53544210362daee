//! Tensors made by hand, and calls on them without the tensor library above.
#![allow(dead_code)]

use isograd_core::{Backend, Call, DType, Element, Kernel, Layout, Memory, Operand, Result, Shape, bf16, f16};
use isograd_cpu::Cpu;
use std::sync::LazyLock;

pub static CPU: LazyLock<Cpu> = LazyLock::new(Cpu::default);

pub const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];
pub const NUMBERS: [DType; 7] = [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8];

/// How a tensor's elements lie in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Placing {
    Contiguous,
    /// With gaps: every second element of the last dimension, behind an offset.
    Gaps,
    /// In the reverse order of dimensions, behind an offset.
    Reversed,
}

pub const PLACINGS: [Placing; 3] = [Placing::Contiguous, Placing::Gaps, Placing::Reversed];

pub struct T {
    pub memory: Box<dyn Memory>,
    pub layout: Layout,
    pub dtype: DType,
    /// Elements of the whole buffer.
    len: usize,
}

pub fn bytes_of(dtype: DType, values: &[f64]) -> Vec<u8> {
    fn put<E: Element>(values: &[f64], f: impl Fn(f64) -> E) -> Vec<u8> {
        let mut bytes = Vec::new();
        E::extend_bytes(&values.iter().map(|&v| f(v)).collect::<Vec<_>>(), &mut bytes);
        bytes
    }
    match dtype {
        DType::F64 => put(values, |v| v),
        DType::F32 => put(values, |v| v as f32),
        DType::F16 => put(values, |v| f16::from_f32(v as f32)),
        DType::BF16 => put(values, |v| bf16::from_f32(v as f32)),
        DType::I64 => put(values, |v| v as i64),
        DType::I32 => put(values, |v| v as i32),
        DType::U8 => put(values, |v| v as u8),
        DType::Bool => put(values, |v| v != 0.0),
    }
}

fn values_of(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    fn get<E: Element>(bytes: &[u8], f: impl Fn(E) -> f64) -> Vec<f64> {
        E::from_bytes(bytes).into_iter().map(f).collect()
    }
    match dtype {
        DType::F64 => get(bytes, |v: f64| v),
        DType::F32 => get(bytes, |v: f32| v as f64),
        DType::F16 => get(bytes, |v: f16| v.to_f64()),
        DType::BF16 => get(bytes, |v: bf16| v.to_f64()),
        DType::I64 => get(bytes, |v: i64| v as f64),
        DType::I32 => get(bytes, |v: i32| v as f64),
        DType::U8 => get(bytes, |v: u8| v as f64),
        DType::Bool => {
            assert!(bytes.iter().all(|&b| b < 2), "a bool that is neither 0 nor 1");
            get(bytes, |v: bool| v as u8 as f64)
        }
    }
}

/// The positions of a layout's elements, in row-major order, by the definition.
pub fn positions(layout: &Layout) -> Vec<usize> {
    let dims = layout.shape().dims();
    (0..layout.shape().numel())
        .map(|number| {
            let mut rest = number;
            let steps = (0..dims.len()).rev().map(|d| {
                let at = rest % dims[d];
                rest /= dims[d];
                at * layout.strides()[d]
            });
            layout.offset() + steps.sum::<usize>()
        })
        .collect()
}

impl T {
    pub fn new(dtype: DType, dims: &[usize], values: &[f64]) -> T {
        T::placed(dtype, dims, values, Placing::Contiguous)
    }

    /// The values in row-major order, however they lie; 7 wherever there is no element.
    pub fn placed(dtype: DType, dims: &[usize], values: &[f64], placing: Placing) -> T {
        let rank = dims.len();
        let layout = match placing {
            Placing::Gaps if rank > 0 => {
                let mut wide = dims.to_vec();
                wide[rank - 1] = 2 * wide[rank - 1] + 1;
                wide[0] += (rank > 1) as usize;
                let layout = Layout::contiguous(Shape::new(&wide)).narrow(rank - 1, 1, dims[rank - 1], 2);
                if rank > 1 { layout.narrow(0, 1, dims[0], 1) } else { layout }
            }
            Placing::Reversed if rank > 0 => {
                let mut turned: Vec<usize> = dims.iter().rev().copied().collect();
                turned[0] += 1;
                let back: Vec<usize> = (0..rank).rev().collect();
                Layout::contiguous(Shape::new(&turned)).narrow(0, 1, dims[rank - 1], 1).permute(&back)
            }
            _ => Layout::contiguous(Shape::new(dims)),
        };
        assert_eq!(layout.shape().dims(), dims);
        assert_eq!(layout.shape().numel(), values.len());
        let mut all = vec![7.0; layout.end().max(1)];
        positions(&layout).into_iter().zip(values).for_each(|(p, &v)| all[p] = v);
        let bytes = bytes_of(dtype, &all);
        let memory = CPU.allocate(bytes.len()).unwrap();
        CPU.upload(&*memory, &bytes).unwrap();
        T { memory, layout, dtype, len: all.len() }
    }

    /// A contiguous tensor full of 7.
    pub fn out(dtype: DType, dims: &[usize]) -> T {
        let n = dims.iter().product();
        T::new(dtype, dims, &vec![7.0; n])
    }

    pub fn with(self, layout: impl FnOnce(&Layout) -> Layout) -> T {
        let layout = layout(&self.layout);
        T { layout, ..self }
    }

    pub fn expand(self, dims: &[usize]) -> T {
        self.with(|l| l.expand(&Shape::new(dims)))
    }

    pub fn op(&self) -> Operand<'_> {
        Operand { memory: &*self.memory, layout: &self.layout, dtype: self.dtype }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len * self.dtype.size()];
        CPU.download(&*self.memory, 0, &mut bytes).unwrap();
        bytes
    }

    /// The elements in row-major order.
    pub fn values(&self) -> Vec<f64> {
        let all = values_of(self.dtype, &self.bytes());
        positions(&self.layout).into_iter().map(|p| all[p]).collect()
    }

    /// Every element of the buffer that is none of the tensor's.
    pub fn others(&self) -> Vec<f64> {
        let all = values_of(self.dtype, &self.bytes());
        let own = positions(&self.layout);
        (0..all.len()).filter(|p| !own.contains(p)).map(|p| all[p]).collect()
    }
}

pub fn try_run(kernel: Kernel, inputs: &[&T], outputs: &[&T], ints: &[i64], floats: &[f64]) -> Result<()> {
    let inputs: Vec<Operand<'_>> = inputs.iter().map(|t| t.op()).collect();
    let outputs: Vec<Operand<'_>> = outputs.iter().map(|t| t.op()).collect();
    CPU.run(&Call { op: "test", kernel, inputs: &inputs, outputs: &outputs, ints, floats })
}

pub fn run(kernel: Kernel, inputs: &[&T], outputs: &[&T], ints: &[i64], floats: &[f64]) {
    try_run(kernel, inputs, outputs, ints, floats).unwrap();
}

/// Runs `f` with one thread and with several; results must not differ.
pub fn on_threads<R: PartialEq + std::fmt::Debug + Send>(f: impl Fn() -> R + Send + Sync) {
    let on = |n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap().install(&f);
    let alone = on(1);
    for threads in [2, 3, 7] {
        assert!(alone == on(threads), "{threads} threads give another result than one");
    }
}

/// A small generator for test data.
pub struct Lcg(pub u64);

impl Lcg {
    pub fn next(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }

    /// Small integers from 0, which every dtype holds exactly.
    pub fn small(&mut self, n: usize) -> Vec<f64> {
        (0..n).map(|_| self.next(4) as f64).collect()
    }

    /// Numbers in -1..1.
    pub fn reals(&mut self, n: usize) -> Vec<f64> {
        (0..n).map(|_| self.next(1 << 20) as f64 / (1 << 19) as f64 - 1.0).collect()
    }
}

/// As `==`, with NaN equal to NaN.
#[track_caller]
pub fn assert_same(got: &[f64], expected: &[f64], what: impl std::fmt::Debug) {
    assert_eq!(got.len(), expected.len(), "{what:?}");
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        assert!(g == e || g.is_nan() && e.is_nan(), "{what:?}: element {i} is {g}, expected {e}");
    }
}
