//! Matrix products against the CPU in f64, within the bound of a dot product: an error of `(8 + 2 sqrt K)` roundings of
//! `|a| @ |b|`, and the rounding of the result.

use isograd::fused::FusedCall;
use isograd::operands::Output;
use isograd::ops::matrix::gemm_bias::{GemmActivation, GemmInputs, GemmOutputs};
use isograd::ops::matrix::matmul::{MatmulPointwise, MatmulPointwiseInputs};
use isograd::ops::{Approximate, Gemm};
use isograd::pointwise::Pointwise;
use isograd::tape::{BackwardOptions, grad_with};
use isograd::{
    Backend, Call, DType, Device, Element, Kernel, Layout, Memory, Operand, Result, Shape, Tensor, bf16, f16,
};
use isograd_gpu::matmul::{self, Extents, MatmulPlan, Method, tiles};
use isograd_gpu::{Gpu, Limits, Tile};
use isograd_tests::harness::step;
use std::collections::HashSet;

const FLOATS: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];
const SIZES: [usize; 18] = [0, 1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 257, 1000];

/// How the matrices of an operand lie in memory. All else there is NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Placing {
    Rows,
    Columns,
    /// A part of larger matrices, so that rows begin anywhere.
    Slice,
    SliceOfColumns,
    /// A part that begins at whole words.
    WholeWords,
    /// Every other column.
    Gaps,
    /// One matrix for all batches.
    Expanded,
}

const PLACINGS: [Placing; 7] = {
    use Placing::*;
    [Rows, Columns, Slice, SliceOfColumns, WholeWords, Gaps, Expanded]
};

/// splitmix64.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e3779b97f4a7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// In -1..1.
    fn values(&mut self, n: usize) -> Vec<f64> {
        (0..n).map(|_| (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0).collect()
    }
}

fn bytes_of(dtype: DType, values: &[f64]) -> Vec<u8> {
    fn put<E: Element>(values: &[f64], f: impl Fn(f64) -> E) -> Vec<u8> {
        let mut bytes = Vec::new();
        E::extend_bytes(&values.iter().map(|&v| f(v)).collect::<Vec<_>>(), &mut bytes);
        bytes
    }
    match dtype {
        DType::F32 => put(values, |v| v as f32),
        DType::F16 => put(values, f16::from_f64),
        DType::BF16 => put(values, bf16::from_f64),
        _ => put(values, |v| v),
    }
}

fn values_of(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::F32 => f32::from_bytes(bytes).into_iter().map(f64::from).collect(),
        DType::F16 => f16::from_bytes(bytes).into_iter().map(f64::from).collect(),
        DType::BF16 => bf16::from_bytes(bytes).into_iter().map(f64::from).collect(),
        _ => f64::from_bytes(bytes),
    }
}

/// Matrices `[batches, rows, columns]` on the device, and their values in f64.
struct Matrices {
    memory: Box<dyn Memory>,
    layout: Layout,
    dtype: DType,
    values: Vec<f64>,
}

impl Matrices {
    fn new(
        gpu: &Gpu,
        dtype: DType,
        [batches, rows, columns]: [usize; 3],
        placing: Placing,
        draws: &mut Draws,
    ) -> Matrices {
        let whole = |dims: [usize; 3]| Layout::contiguous(Shape::from(dims));
        let layout = match placing {
            Placing::Rows => whole([batches, rows, columns]),
            Placing::Columns => whole([batches, columns, rows]).transpose(1, 2),
            Placing::Slice => whole([batches, rows + 2, columns + 3]).narrow(1, 1, rows, 1).narrow(2, 1, columns, 1),
            Placing::SliceOfColumns => {
                whole([batches, columns + 2, rows + 3]).narrow(1, 1, columns, 1).narrow(2, 1, rows, 1).transpose(1, 2)
            }
            Placing::WholeWords => {
                let wide = columns.next_multiple_of(8) + 8;
                whole([batches + 1, rows, wide]).narrow(2, 8, columns, 1).narrow(0, 1, batches, 1)
            }
            Placing::Gaps => whole([batches, rows, 2 * columns + 1]).narrow(2, 1, columns, 2),
            Placing::Expanded => whole([1, rows, columns]).expand(&Shape::from([batches, rows, columns])),
        };
        let mut all = vec![f64::NAN; layout.end()];
        let at = positions(&layout);
        at.iter().zip(draws.values(at.len())).for_each(|(&p, v)| all[p] = v);
        let bytes = bytes_of(dtype, &all);
        let rounded = values_of(dtype, &bytes);
        let memory = gpu.allocate(bytes.len()).unwrap();
        gpu.upload(&*memory, &bytes).unwrap();
        Matrices { memory, layout, dtype, values: at.iter().map(|&p| rounded[p]).collect() }
    }

    fn nan(gpu: &Gpu, dtype: DType, dims: [usize; 3]) -> Matrices {
        let mut m = Matrices::new(gpu, dtype, dims, Placing::Rows, &mut Draws(0));
        m.values.fill(f64::NAN);
        gpu.upload(&*m.memory, &bytes_of(dtype, &m.values)).unwrap();
        m
    }

    fn operand(&self) -> Operand<'_> {
        Operand { memory: &*self.memory, layout: &self.layout, dtype: self.dtype }
    }

    fn on_cpu(&self, f: impl Fn(f64) -> f64) -> Tensor {
        let cpu: Device = "cpu".parse().unwrap();
        Tensor::from_vec(self.values.iter().map(|&v| f(v)).collect::<Vec<f64>>(), self.layout.shape().clone(), &cpu)
            .unwrap()
    }
}

fn positions(layout: &Layout) -> Vec<usize> {
    let (dims, strides) = (layout.shape().dims(), layout.strides());
    let position = |i: usize| {
        let (x, y, z) = (i / dims[2] / dims[1], i / dims[2] % dims[1], i % dims[2]);
        layout.offset() + x * strides[0] + y * strides[1] + z * strides[2]
    };
    (0..layout.shape().numel()).map(position).collect()
}

/// A product with its operands.
struct Case {
    a: Matrices,
    b: Matrices,
    c: Option<Matrices>,
    scale: [f64; 2],
    what: String,
}

impl Case {
    fn new(gpu: &Gpu, dtype: DType, e: Extents, placings: [Placing; 2], seed: u64) -> Case {
        let draws = &mut Draws(seed);
        let a = Matrices::new(gpu, dtype, [e.batches, e.m, e.k], placings[0], draws);
        let b = Matrices::new(gpu, dtype, [e.batches, e.k, e.n], placings[1], draws);
        Case { a, b, c: None, scale: [1.0, 0.0], what: format!("{dtype} {e:?} {placings:?} seed {seed}") }
    }

    fn plus(mut self, c: Matrices, scale: [f64; 2]) -> Case {
        self.what += &format!(" {scale:?}, c {:?}", c.layout);
        Case { c: Some(c), scale, ..self }
    }

    fn dims(&self) -> [usize; 3] {
        let (a, b) = (self.a.layout.shape().dims(), self.b.layout.shape().dims());
        [a[0], a[1], b[2]]
    }

    /// The bytes of the result, by a plan or by the rule.
    fn run(&self, gpu: &Gpu, plan: Option<MatmulPlan>) -> Vec<u8> {
        self.outputs(gpu, Kernel::Matmul, 1, plan).swap_remove(0)
    }

    /// The bytes of so many results. Nothing is written beside them.
    fn outputs(&self, gpu: &Gpu, kernel: Kernel<'_>, count: usize, plan: Option<MatmulPlan>) -> Vec<Vec<u8>> {
        const BESIDE: usize = 8;
        let dtype = self.a.dtype;
        let n: usize = self.dims().iter().product();
        let before = bytes_of(dtype, &vec![77.0; n + 2 * BESIDE]);
        let filled = || {
            let memory = gpu.allocate(before.len()).unwrap();
            gpu.upload(&*memory, &before).unwrap();
            memory
        };
        let memories: Vec<Box<dyn Memory>> = (0..count).map(|_| filled()).collect();
        let inner = Layout::contiguous(Shape::from([n + 2 * BESIDE])).narrow(0, BESIDE, n, 1);
        let layout = inner.reshape(&Shape::from(self.dims())).unwrap();
        let inputs: Vec<Operand<'_>> =
            [Some(&self.a), Some(&self.b), self.c.as_ref()].into_iter().flatten().map(Matrices::operand).collect();
        let outputs: Vec<Operand<'_>> =
            memories.iter().map(|memory| Operand { memory: &**memory, layout: &layout, dtype }).collect();
        let call = Call { op: "matmul", kernel, inputs: &inputs, outputs: &outputs, ints: &[], floats: &self.scale };
        match plan {
            Some(plan) => matmul::run_as(gpu, &call, plan).unwrap(),
            None => gpu.run(&call).unwrap(),
        }
        let edge = BESIDE * dtype.size();
        let end = before.len() - edge;
        let inside = |memory: &dyn Memory| {
            let mut after = vec![0; before.len()];
            gpu.download(memory, 0, &mut after).unwrap();
            let same = before[..edge] == after[..edge] && before[end..] == after[end..];
            assert!(same, "{}: written beside y", self.what);
            after[edge..end].to_vec()
        };
        memories.iter().map(|memory| inside(&**memory)).collect()
    }

    /// The result in f64, and the size of its errors.
    fn expected(&self) -> (Vec<f64>, Vec<f64>) {
        let value = |f: fn(f64) -> f64| {
            let [alpha, beta] = self.scale.map(f);
            let mut y = vec![0.0; self.dims().iter().product()];
            if alpha != 0.0 && !y.is_empty() {
                let product = self.a.on_cpu(f).matmul(&self.b.on_cpu(f)).unwrap().to_vec::<f64>().unwrap();
                y.iter_mut().zip(product).for_each(|(y, p)| *y += alpha * p);
            }
            if let Some(c) = self.c.as_ref().filter(|_| beta != 0.0) {
                y.iter_mut().zip(&c.values).for_each(|(y, &c)| *y += beta * f(c));
            }
            y
        };
        (value(|v| v), value(f64::abs))
    }

    fn check(&self, gpu: &Gpu, plan: Option<MatmulPlan>) {
        let (expected, size) = self.expected();
        self.compare(&self.run(gpu, plan), &expected, &size, 0.0, &format!("{plan:?}"));
    }

    /// Compares with what is expected, within the bound of a product of this size and so many roundings of the result.
    fn compare(&self, got: &[u8], expected: &[f64], size: &[f64], roundings: f64, what: &str) {
        let dtype = self.a.dtype;
        let (out, tiny) = match dtype {
            DType::F16 => (4.9e-4, 6e-8),
            DType::BF16 => (3.9e-3, 1.2e-38),
            DType::F32 => (0.0, 1.2e-38),
            _ => (0.0, 2.3e-308),
        };
        let unit = if dtype == DType::F64 { 1.1e-16 } else { 6.0e-8 };
        let k = self.a.layout.shape().dims()[2] as f64;
        for (i, ((y, &r), &a)) in values_of(dtype, got).into_iter().zip(expected).zip(size).enumerate() {
            let bound = 1.5 * out * r.abs() + unit * ((8.0 + 2.0 * k.sqrt()) * a + roundings * r.abs()) + tiny;
            let same = y == r || (y.is_nan() && r.is_nan()) || (r.is_finite() && (y - r).abs() <= bound);
            assert!(same, "{} {what}, element {i}: got {y:e}, expected {r:e} within {bound:e}", self.what);
        }
    }

    /// The activation of the result, with and without the sum that it is applied to.
    fn check_activated(&self, gpu: &Gpu, function: Pointwise, plan: Option<MatmulPlan>) {
        let (sum, size) = self.expected();
        let cpu: Device = "cpu".parse().unwrap();
        let z = Tensor::from_slice(&sum, sum.len(), &cpu).unwrap();
        let y = match function {
            Pointwise::Relu => z.relu(),
            Pointwise::Gelu => z.gelu(Approximate::None),
            Pointwise::GeluTanh => z.gelu(Approximate::Tanh),
            Pointwise::Sigmoid => z.sigmoid(),
            Pointwise::Tanh => z.tanh(),
            Pointwise::Silu => z.silu(),
            other => panic!("{} is no activation of a product", other.name()),
        };
        let y = y.unwrap().to_vec::<f64>().unwrap();
        // No slope is larger than 1.13; functions may be off by 16 units in the last place, and |z| + 1 is what cancels.
        let steep: Vec<f64> = size.iter().map(|a| 1.2 * a + 2.0).collect();
        let what = format!("{} {plan:?}", function.name());
        for count in [1, 2] {
            let [alpha, beta] = self.scale;
            let fused = GemmActivation { activation: function, scale: Gemm { alpha, beta } };
            let inputs = GemmInputs { a: (), b: (), c: self.c.as_ref().map(drop) };
            let outputs = GemmOutputs { y: (), z: (count == 2).then_some(()) };
            let got = self.outputs(gpu, Kernel::Fused(FusedCall::new(&fused, &inputs, &outputs)), count, plan);
            self.compare(&got[0], &y, &steep, 40.0, &what);
            if count == 2 {
                self.compare(&got[1], &sum, &size, 0.0, &what);
            }
        }
    }
}

impl Case {
    /// A function of the result and c.
    fn check_joined(&self, gpu: &Gpu, function: Pointwise, plan: Option<MatmulPlan>) {
        let (sum, size) = self.expected();
        let c = self.c.as_ref().expect("a function has two operands").on_cpu(|v| v);
        let dy = Tensor::from_slice(&sum, c.shape(), &c.device().clone()).unwrap();
        let slope = |f: fn(&Tensor) -> Result<Tensor>| {
            let x = c.require_grad()?;
            let options = BackwardOptions { gradient: Some(dy.clone()), ..Default::default() };
            Ok(grad_with(&f(&x)?, &[&x], &options)?.swap_remove(0))
        };
        let one_less = |t: Tensor| t.neg()?.add_scalar(1.0);
        let y: Result<Tensor> = match function {
            Pointwise::ReluBackward => slope(Tensor::relu),
            Pointwise::GeluBackward => slope(|x| x.gelu(Approximate::None)),
            Pointwise::GeluTanhBackward => slope(|x| x.gelu(Approximate::Tanh)),
            Pointwise::SiluBackward => slope(Tensor::silu),
            // These read what the function gave.
            Pointwise::SigmoidBackward => one_less(c.clone()).and_then(|rest| dy.mul(&c)?.mul(&rest)),
            Pointwise::TanhBackward => c.square().and_then(one_less).and_then(|slope| dy.mul(&slope)),
            other => panic!("{} is no gradient of an activation", other.name()),
        };
        let y = y.and_then(|y| y.to_vec::<f64>()).unwrap();
        // As of activations.
        let steep: Vec<f64> = size.iter().map(|a| 1.2 * a + 2.0).collect();
        let (fused, inputs) = (MatmulPointwise(function), MatmulPointwiseInputs { a: (), b: (), beside: () });
        let kernel = Kernel::Fused(FusedCall::new(&fused, &inputs, &Output { y: () }));
        let got = self.outputs(gpu, kernel, 1, plan);
        self.compare(&got[0], &y, &steep, 40.0, &format!("{} {plan:?}", function.name()));
    }
}

fn extents([batches, m, n, k]: [usize; 4]) -> Extents {
    Extents { batches, m, n, k }
}

pub fn sizes(gpu: &Gpu) {
    let mut draws = Draws(1);
    let small: Vec<[usize; 3]> = (0..125).map(|i| [i / 25, i / 5 % 5, i % 5].map(|s| [0, 1, 2, 3, 17][s])).collect();
    let drawn: Vec<[usize; 3]> = (0..150).map(|_| [(); 3].map(|_| draws.of(&SIZES))).collect();
    for dtype in FLOATS {
        let count = if dtype == DType::F32 { 150 } else { 40 };
        for [m, n, k] in small.iter().chain(&drawn[..count]).copied() {
            let large = m * n * k > 1 << 22;
            let batches = if large { 1 } else { draws.of(&[0, 1, 1, 3]) };
            let all = m * n * k < 1 << 27;
            if all {
                let pairs = [[0, 0], [2, 5], [1, 0], [6, 1]].map(|p| p.map(|i| PLACINGS[i]));
                let placings = draws.of(&pairs[..if dtype == DType::F32 { 4 } else { 2 }]);
                Case::new(gpu, dtype, extents([batches, m, n, k]), placings, draws.next()).check(gpu, None);
            }
        }
    }
}

/// Every tile, with words and without, along both dimensions, and with parts.
pub fn tiles_of_every_kind(gpu: &Gpu) {
    let mut draws = Draws(2);
    let limits = Limits { max_group: 256, ..gpu.driver().limits().clone() };
    for dtype in FLOATS {
        for tile in tiles::ALL.into_iter().filter(|t| t.fits(dtype.acc(), &limits)) {
            // How a tile is read depends on its dtype's size and on the placing, not on the other tiles.
            let is_full =
                matches!((tile, dtype), (tiles::SMALL, DType::F32 | DType::F16) | (tiles::MEDIUM, DType::F64));
            let is_full = is_full || tile == tiles::LARGE && dtype == DType::F32;
            let pairs = [[0, 0], [3, 2], [1, 1], [0, 1], [4, 6], [2, 3], [5, 5]];
            let pairs = &pairs[..if is_full { 7 } else { 2 }];
            for placings in pairs.iter().map(|p| p.map(|i| PLACINGS[i])) {
                let plan = |parts| Some(MatmulPlan { most_groups: 20, ..MatmulPlan::new(Method::Tiles(tile), parts) });
                for [m, n, k] in [[136, 72, 40], [33, 143, 50]] {
                    let e = extents([2, m, n, k]);
                    let c = Matrices::new(gpu, dtype, [2, m, n], draws.of(&PLACINGS), &mut draws);
                    let parts = 1 + draws.below(3);
                    Case::new(gpu, dtype, e, placings, draws.next()).plus(c, [0.5, -2.0]).check(gpu, plan(parts));
                }
            }
        }
    }
}

/// Results so few that several threads add the parts of each, from two threads to all of a group.
pub fn few_results_of_many_parts(gpu: &Gpu) {
    let words = gpu.driver().limits().units * 256;
    for dtype in [DType::F32, DType::BF16] {
        for members in [2, 4, 8, 16, 32, 64] {
            let (n, parts) = (64, 4 * members);
            // Results of the arithmetic's dtype are read four at a time.
            let m = (4 * words / members / n).max(1);
            let case = Case::new(gpu, dtype, extents([1, m, n, parts * tiles::SMALL.k]), [Placing::Rows; 2], 19);
            let plan = Some(MatmulPlan::new(Method::Tiles(tiles::SMALL), parts));
            case.check(gpu, plan);
            assert_eq!(case.run(gpu, plan), case.run(gpu, plan));
        }
    }
}

pub fn vectors_of_every_kind(gpu: &Gpu) {
    let mut draws = Draws(3);
    for dtype in FLOATS {
        for (lanes, parts) in [(8, 1), (32, 1), (32, 3), (256, 2)] {
            for placings in PLACINGS.iter().flat_map(|a| PLACINGS.iter().map(|b| [*a, *b])) {
                let plan = MatmulPlan { most_groups: 20, ..MatmulPlan::new(Method::Vectors(lanes), parts) };
                let others = [[136, 1], [1, 139], [1, 1], [33, 10], [5, 140], [16, 16], [70, 3]];
                for [m, n] in [(); 3].map(|()| draws.of(&others)).into_iter().step_by(step()) {
                    let k = draws.of(&[1, 7, 80, 1000]);
                    let c = Matrices::new(gpu, dtype, [3, m, n], draws.of(&PLACINGS), &mut draws);
                    let case = Case::new(gpu, dtype, extents([3, m, n, k]), placings, draws.next());
                    case.plus(c, [-1.5, 0.25]).check(gpu, Some(plan));
                }
            }
        }
    }
}

pub fn few_products_of_every_kind(gpu: &Gpu) {
    let mut draws = Draws(18);
    for dtype in FLOATS {
        for (i, placings) in PLACINGS.iter().flat_map(|a| PLACINGS.iter().map(|b| [*a, *b])).enumerate() {
            let plan = MatmulPlan { is_wide: i == 5, ..MatmulPlan::new(Method::Outer, 1) };
            for [m, n] in [[136, 64], [7, 61]] {
                let k = draws.of(&[1, 2, 3, 8, 10, 16]);
                let c = Matrices::new(gpu, dtype, [3, m, n], draws.of(&PLACINGS), &mut draws);
                let case = Case::new(gpu, dtype, extents([3, m, n, k]), placings, draws.next());
                case.plus(c, [-1.5, 0.25]).check(gpu, Some(plan));
            }
        }
    }
}

/// The limits of a large device without matrix units.
fn large(gpu: &Gpu) -> Limits {
    let (max_group, local_memory, wave, units) = (1024, 48 << 10, 32, 132);
    let own = gpu.driver().limits().clone();
    Limits { max_group, local_memory, given_memory: local_memory, wave, units, has_mma: false, has_wgmma: false, ..own }
}

/// What the rule chooses on a large device, run here: every method is among it.
pub fn choices_for_a_large_device(gpu: &Gpu) {
    let shapes = [
        [1, 1664, 1408, 17],
        [1, 1024, 768, 24],
        [1, 400, 300, 33],
        [1, 128, 256, 784],
        [1, 200, 200, 1100],
        [1, 4096, 10, 256],
        [1, 10, 300, 900],
        [1, 300, 200, 8],
        [40, 9, 12, 10],
        [1, 15, 16, 5000],
        [1, 5000, 1, 32],
        [1, 5000, 1, 200],
        [1, 16, 1, 5000],
        [1, 1, 1, 40000],
        [1, 1, 300, 1000],
    ];
    for dtype in [DType::F32, DType::F64] {
        let mut reached = HashSet::new();
        for shape in shapes {
            for placing in [Placing::Rows, Placing::Columns] {
                let e = extents(shape);
                // Of a and b.
                let [a, b] = [placing == Placing::Rows, placing == Placing::Columns];
                let plan = matmul::choose(e, dtype, if e.n <= e.m { [a, b] } else { [b, a] }, &large(gpu));
                reached.insert((format!("{:?}", plan.method), plan.parts > 1));
                Case::new(gpu, dtype, e, [placing, placing], 5).check(gpu, Some(plan));
            }
        }
        let of = |t: Tile, cut| (format!("{:?}", Method::Tiles(t)), cut);
        let mut wanted = vec![
            of(tiles::MEDIUM, false),
            of(tiles::SMALL, false),
            of(tiles::SMALL, true),
            of(tiles::TALL, true),
            of(tiles::FLAT, true),
            of(tiles::TINY, true),
        ];
        wanted.extend([8, 32, 256].map(|lanes| (format!("{:?}", Method::Vectors(lanes)), lanes == 256)));
        wanted.extend((dtype == DType::F32).then(|| of(tiles::LARGE, false)));
        wanted.push((format!("{:?}", Method::Outer), false));
        for method in wanted {
            assert!(reached.contains(&method), "{method:?} is not among {reached:?}");
        }
    }
}

pub fn positions_of_64_bits(gpu: &Gpu) {
    for (dtype, n) in [(DType::F32, 70), (DType::F64, 70), (DType::F16, 1)] {
        let tile = if dtype == DType::F32 { tiles::LARGE } else { tiles::MEDIUM };
        let method = if n == 1 { Method::Vectors(32) } else { Method::Tiles(tile) };
        for placing in [Placing::Rows, Placing::SliceOfColumns, Placing::Gaps] {
            let case = Case::new(gpu, dtype, extents([2, 130, n, 40]), [placing, placing], 6);
            case.check(gpu, Some(MatmulPlan { is_wide: true, ..MatmulPlan::new(method, 1) }));
        }
    }
}

pub fn operands_without_a_factor_are_not_read(gpu: &Gpu) {
    for dtype in FLOATS {
        for [m, n, k] in [[40, 50, 20], [40, 1, 20], [1, 50, 20], [5, 6, 0]] {
            let e = extents([2, m, n, k]);
            let nan = |dims| Matrices::nan(gpu, dtype, dims);
            let sound = |seed| Case::new(gpu, dtype, e, [Placing::Rows, Placing::Columns], seed);
            sound(7).plus(nan([2, m, n]), [2.0, 0.0]).check(gpu, None);
            let c = Matrices::new(gpu, dtype, [2, m, n], Placing::Columns, &mut Draws(8));
            let what = format!("{dtype} {e:?} of NaN");
            let scale = [1.0, 0.0];
            let unread = Case { a: nan([2, m, k]), b: nan([2, k, n]), c: None, scale, what };
            unread.plus(c, [0.0, 3.0]).check(gpu, None);
            let nothing = Case { scale: [0.0, 0.0], ..sound(9) };
            nothing.check(gpu, None);
            // What is read shows.
            sound(10).plus(nan([2, m, n]), [1.0, 1.0]).check(gpu, None);
            if k > 0 {
                let bad = Case { a: nan([2, m, k]), ..sound(11) };
                assert!(values_of(dtype, &bad.run(gpu, None)).iter().all(|v| v.is_nan()));
            }
        }
    }
}

pub fn infinities_and_zeros_are_multiplied(gpu: &Gpu) {
    for n in [1, 40] {
        let mut case = Case::new(gpu, DType::F32, extents([1, 33, n, 50]), [Placing::Rows; 2], 12);
        for (matrices, at, value) in [(&mut case.a, 55, f64::INFINITY), (&mut case.b, 5 * n, 0.0)] {
            matrices.values[at] = value;
            gpu.upload(&*matrices.memory, &bytes_of(DType::F32, &matrices.values)).unwrap();
        }
        case.check(gpu, None);
    }
}

pub fn two_runs_give_the_same_bits(gpu: &Gpu) {
    for (e, parts) in [([1, 70, 50, 900], 4), ([3, 65, 33, 40], 1), ([1, 500, 1, 3000], 3)] {
        let case = Case::new(gpu, DType::F32, extents(e), [Placing::Rows; 2], 13);
        let method = if e[2] == 1 { Method::Vectors(32) } else { Method::Tiles(tiles::MEDIUM) };
        let plan = Some(MatmulPlan::new(method, parts));
        case.check(gpu, plan);
        assert_eq!(case.run(gpu, plan), case.run(gpu, plan));
    }
}

const ACTIVATIONS: [Pointwise; 6] = {
    use Pointwise::*;
    [Relu, Gelu, GeluTanh, Sigmoid, Tanh, Silu]
};

pub fn activations_of_every_method(gpu: &Gpu) {
    let mut draws = Draws(14);
    for dtype in [DType::F32, DType::BF16] {
        // Words and single elements are written, in parts or at once.
        let methods = [
            (Method::Tiles(tiles::SMALL), [70, 64]),
            (Method::Tiles(tiles::MEDIUM), [33, 61]),
            (Method::Vectors(32), [139, 1]),
            (Method::Vectors(32), [139, 5]),
        ];
        for (i, (method, [m, n])) in methods.into_iter().enumerate() {
            for (parts, function) in [(1, ACTIVATIONS[2 * i % 6]), (3, ACTIVATIONS[(2 * i + 1) % 6])] {
                let bias = Matrices::new(gpu, dtype, [2, m, n], Placing::Expanded, &mut draws);
                let case =
                    Case::new(gpu, dtype, extents([2, m, n, 300]), [Placing::Rows, Placing::Columns], draws.next());
                case.plus(bias, [1.0, 1.0]).check_activated(gpu, function, Some(MatmulPlan::new(method, parts)));
            }
        }
    }
}

pub fn activations_of_nothing_multiplied(gpu: &Gpu) {
    for function in ACTIVATIONS {
        for dtype in [DType::F32, DType::F64] {
            let bias = Matrices::new(gpu, dtype, [1, 5, 7], Placing::Expanded, &mut Draws(15));
            let case = Case::new(gpu, dtype, extents([1, 5, 7, 0]), [Placing::Rows; 2], 16);
            case.plus(bias, [1.0, 1.0]).check_activated(gpu, function, None);
            Case::new(gpu, dtype, extents([1, 0, 7, 3]), [Placing::Rows; 2], 17).check_activated(gpu, function, None);
        }
    }
}

const GRADIENTS: [Pointwise; 6] = {
    use Pointwise::*;
    [ReluBackward, GeluBackward, GeluTanhBackward, SigmoidBackward, TanhBackward, SiluBackward]
};

pub fn gradients_of_activations_of_every_method(gpu: &Gpu) {
    let mut draws = Draws(19);
    for dtype in FLOATS {
        let methods = [
            (Method::Tiles(tiles::SMALL), [70, 64], 300),
            (Method::Tiles(tiles::MEDIUM), [33, 61], 300),
            (Method::Vectors(32), [139, 1], 300),
            (Method::Vectors(32), [139, 5], 300),
            (Method::Outer, [136, 64], 10),
        ];
        for (i, (method, [m, n], k)) in methods.into_iter().enumerate() {
            for (parts, function) in [(1, GRADIENTS[2 * i % 6]), (3, GRADIENTS[(2 * i + 1) % 6])] {
                let parts = if method == Method::Outer { 1 } else { parts };
                let saved = Matrices::new(gpu, dtype, [2, m, n], draws.of(&PLACINGS), &mut draws);
                let case =
                    Case::new(gpu, dtype, extents([2, m, n, k]), [Placing::Rows, Placing::Columns], draws.next());
                case.plus(saved, [1.0, 0.0]).check_joined(gpu, function, Some(MatmulPlan::new(method, parts)));
            }
        }
    }
}

/// The rule chooses, and what is masked stays 0 where the product is NaN.
pub fn what_relu_cut_off_gets_nothing(gpu: &Gpu) {
    for dtype in FLOATS {
        let mut case = Case::new(gpu, dtype, extents([1, 70, 64, 200]), [Placing::Rows; 2], 20);
        case.a.values[3] = f64::NAN;
        gpu.upload(&*case.a.memory, &bytes_of(dtype, &case.a.values)).unwrap();
        let saved = Matrices::new(gpu, dtype, [1, 70, 64], Placing::Rows, &mut Draws(21));
        assert!(saved.values[..64].iter().any(|v| *v < 0.0));
        case.plus(saved, [1.0, 0.0]).check_joined(gpu, Pointwise::ReluBackward, None);
    }
}
