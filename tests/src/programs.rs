//! Random programs of elementwise calls, views, reductions, draws, changes in place and gradients.

use isograd::tape::{BackwardOptions, grad_with};
use isograd::{DType, Device, Result, Rng, Shape, Tensor};

/// Elements of the largest tensor.
const MOST: usize = 4096;

/// Numbers that are drawn the same way whenever a program runs: its choices. The first are bytes, where a program has such.
struct Choices<'a>(u64, std::slice::Iter<'a, u8>);

impl Choices<'_> {
    fn new(seed: u64) -> Choices<'static> {
        Choices(seed, [].iter())
    }

    fn below(&mut self, n: usize) -> usize {
        if let Some(&byte) = self.1.next() {
            return byte as usize % n.max(1);
        }
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % n.max(1) as u64) as usize
    }

    fn of<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())].clone()
    }
}

const DTYPES: [DType; 8] =
    [DType::F32, DType::F32, DType::BF16, DType::F16, DType::F64, DType::I64, DType::I32, DType::U8];
const EXTENTS: [usize; 10] = [1, 2, 3, 4, 5, 7, 8, 16, 33, 64];

/// The extents of the program's tensors. Other shapes follow from them, with 1 for an extent, or without the first.
fn extents(seed: u64) -> Vec<usize> {
    let mut choices = Choices::new(seed ^ 0x5eed);
    let rank = 1 + choices.below(3);
    let mut dims: Vec<usize> = (0..rank).map(|_| choices.of(&EXTENTS)).collect();
    while dims.iter().product::<usize>() > MOST / 2 {
        let largest = dims.iter_mut().max().expect("there is a dimension");
        *largest = largest.div_ceil(2);
    }
    if choices.below(20) == 0 {
        dims[rank - 1] = 0;
    }
    dims
}

fn shape(dims: &[usize], choices: &mut Choices<'_>) -> Shape {
    let mut dims = dims.to_vec();
    match choices.below(6) {
        0 => {
            let d = choices.below(dims.len());
            dims[d] = 1;
        }
        1 => drop(dims.remove(0)),
        _ => (),
    }
    Shape::from(&dims[..])
}

/// Drawn values.
pub fn values(shape: &Shape, dtype: DType, seed: u64, device: &Device) -> Result<Tensor> {
    let x = Tensor::randn(shape, 0.0, 2.0, DType::F32, device, &Rng::new(seed))?;
    x.mul_scalar(if dtype.is_float() { 1.0 } else { 10.0 })?.cast(dtype)
}

/// A step: inputs and states are its tensors, a generator draws.
pub struct Program {
    seed: u64,
    bytes: Vec<u8>,
    device: Device,
    rng: Rng,
    /// Tensors that the step changes.
    pub states: Vec<Tensor>,
}

impl Program {
    /// The program of a seed.
    pub fn new(seed: u64, device: &Device) -> Result<Program> {
        Program::of_bytes(seed, &[], device)
    }

    /// The program whose first choices are these bytes; the seed makes its tensors, and further choices.
    pub fn of_bytes(seed: u64, bytes: &[u8], device: &Device) -> Result<Program> {
        let (dims, mut choices) = (extents(seed), Choices::new(seed ^ 0xface));
        let states = (0..3).map(|i| values(&shape(&dims, &mut choices), choices.of(&DTYPES), seed + i, device));
        Ok(Program {
            seed,
            bytes: bytes.to_vec(),
            device: device.clone(),
            rng: Rng::new(seed),
            states: states.collect::<Result<_>>()?,
        })
    }

    /// Inputs of a run.
    pub fn inputs(&self, run: u64) -> Result<Vec<Tensor>> {
        let (dims, mut choices) = (extents(self.seed), Choices::new(self.seed));
        let one = |i| values(&shape(&dims, &mut choices), choices.of(&DTYPES), 100 * run + i, &self.device);
        (0..4).map(one).collect()
    }

    /// The results of a run.
    pub fn run(&self, inputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let mut choices = Choices(self.seed.wrapping_mul(977).wrapping_add(1), self.bytes.iter());
        let mut pool: Vec<Tensor> = inputs.into_iter().chain(self.states.iter().cloned()).collect();
        for _ in 0..5 + choices.below(56) {
            // A call that its operands do not suit makes nothing, in every run.
            if let Ok(made) = self.call(&pool, &mut choices) {
                pool.extend(made.into_iter().filter(|t| t.numel() <= MOST));
            }
        }
        let count = pool.len();
        // Copies, since a state may change later.
        let last = pool.split_off(count.saturating_sub(3));
        let any = (0..2 + choices.below(12)).map(|_| choices.of(&pool)).collect::<Vec<_>>();
        last.iter().chain(&any).map(Tensor::copy).collect()
    }

    fn call(&self, pool: &[Tensor], choices: &mut Choices<'_>) -> Result<Vec<Tensor>> {
        // Mostly of what was made last.
        let recent = pool.len().saturating_sub(1 + choices.below(12));
        let a = choices.of(&pool[recent..]);
        let b = pool[choices.below(pool.len())].clone();
        let one = |t: Result<Tensor>| t.map(|t| vec![t]);
        match choices.below(30) {
            0..=6 => one(unary(&a, choices)),
            7..=11 => one(binary(&a, &b.cast(a.dtype())?, choices)),
            12..=14 => one(scalar(&a, choices)),
            15 | 16 => one(a.cast(choices.of(&DTYPES))),
            17 => one(a.gt(&b.cast(a.dtype())?)?.where_cond(&a, &b.cast(a.dtype())?)),
            18 | 19 => one(view(&a, choices)),
            20 => one(match choices.below(3) {
                0 => a.sum_keepdim(-1isize),
                1 => a.keepdim(-1isize, |t, axes| t.mean(axes)),
                _ => a.keepdim(0isize, |t, axes| t.sum(axes)),
            }),
            21 | 22 => one(Ok(self.change(&a, &b, choices)?)),
            23 => one(Tensor::rand(a.shape(), -1.0, 1.0, DType::F32, &self.device, &self.rng)),
            24 => one(Tensor::full(a.shape(), 1.0 / (1 + choices.below(7)) as f64, a.dtype(), &self.device)),
            25 => one(Tensor::from_vec(vec![choices.below(9) as f32 - 4.0; a.numel()], a.shape(), &self.device)),
            26 => one(a.copy()),
            _ => gradients(&a, &b, choices),
        }
    }

    /// Changes a state, or a view of one, and returns it.
    fn change(&self, a: &Tensor, b: &Tensor, choices: &mut Choices<'_>) -> Result<Tensor> {
        let state = if choices.below(4) == 0 { a.detach() } else { choices.of(&self.states) };
        let target = if choices.below(2) == 0 { view(&state, choices)? } else { state.clone() };
        let from = b.cast(target.dtype())?.broadcast_to(target.shape())?;
        match choices.below(4) {
            // From memory of its own: the source may be a view of the target.
            0 => target.add_(&from.mul_scalar(1)?)?,
            1 => target.mul_(&from.mul_scalar(1)?)?,
            2 => target.copy_(&from.copy()?)?,
            _ => target.fill_(choices.below(5) as f64)?,
        }
        Ok(state)
    }
}

fn unary(a: &Tensor, choices: &mut Choices<'_>) -> Result<Tensor> {
    match choices.below(14) {
        0 => a.neg(),
        1 => a.abs(),
        2 => a.square(),
        3 => a.sigmoid(),
        4 => a.tanh(),
        5 => a.sin(),
        6 => a.relu(),
        7 => a.silu(),
        8 => a.abs()?.sqrt(),
        9 => a.abs()?.add_scalar(1)?.log(),
        10 => a.sigmoid()?.exp(),
        11 => a.abs()?.log1p(),
        12 => a.expm1(),
        _ => a.square()?.add_scalar(0.5)?.rsqrt(),
    }
}

fn binary(a: &Tensor, b: &Tensor, choices: &mut Choices<'_>) -> Result<Tensor> {
    match choices.below(6) {
        0 | 1 => a.add(b),
        2 => a.sub(b),
        3 => a.mul(b),
        4 => a.maximum(b),
        _ => a.div(&b.abs()?.add_scalar(1)?),
    }
}

fn scalar(a: &Tensor, choices: &mut Choices<'_>) -> Result<Tensor> {
    let number = choices.below(5) as i64 - 2;
    match choices.below(5) {
        0 | 1 => a.mul_scalar(number),
        2 => a.add_scalar(number),
        3 => a.pow_scalar(2 + choices.below(2) as i64),
        _ => a.rsub_scalar(number),
    }
}

fn view(a: &Tensor, choices: &mut Choices<'_>) -> Result<Tensor> {
    let d = choices.below(a.rank().max(1));
    match choices.below(if a.rank() > 0 { 4 } else { 1 }) {
        0 => a.transpose(0isize, -1isize),
        1 => {
            let extent = a.shape()[d];
            let start = choices.below(extent);
            a.narrow(d as isize, start, 1 + choices.below(extent - start))
        }
        2 => a.reshape(a.numel()),
        _ => a.reshape((1, a.numel()))?.broadcast_to((2, a.numel())),
    }
}

/// A gradient of a few calls, or the gradient of a gradient. The second operand, which may broadcast, may have one too.
fn gradients(a: &Tensor, b: &Tensor, choices: &mut Choices<'_>) -> Result<Vec<Tensor>> {
    let leaf = a.detach().require_grad()?;
    let other = b.detach().cast(a.dtype())?;
    let is_leaf = choices.below(2) == 0 && other.dtype().is_float();
    let other = if is_leaf { other.require_grad()? } else { other };
    let mut y = leaf.clone();
    for _ in 0..1 + choices.below(4) {
        y = match choices.below(if is_leaf { 2 } else { 3 }) {
            0 => binary(&y, &other, choices)?,
            1 => scalar(&y, choices)?,
            _ => unary(&y, choices)?,
        };
    }
    let is_second = choices.below(3) == 0;
    let options = BackwardOptions { create_graph: is_second, ..BackwardOptions::default() };
    let leaves = if is_leaf { vec![&leaf, &other] } else { vec![&leaf] };
    let mut found = grad_with(&y.square()?.sum(..)?, &leaves, &options)?;
    if is_second && found[0].requires_grad() {
        found = grad_with(&found[0].square()?.sum(..)?, &leaves, &BackwardOptions::default())?;
    }
    Ok(found.iter().chain([&y]).map(Tensor::detach).collect())
}

/// Whether two tensors have the same bits, or NaN of any bits.
pub fn equal(a: &Tensor, b: &Tensor) -> Result<bool> {
    if a.shape() != b.shape() || a.dtype() != b.dtype() {
        return Ok(false);
    }
    if a.to_bytes()? == b.to_bytes()? {
        return Ok(true);
    }
    let (a_values, b_values) = (a.to_f64_vec()?, b.to_f64_vec()?);
    let same = |(x, y): (&f64, &f64)| x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
    Ok(a.dtype().is_float() && a_values.iter().zip(&b_values).all(same))
}
