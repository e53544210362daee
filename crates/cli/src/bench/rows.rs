//! The table of what is measured: a row is a name, its inputs, the call, and the bytes and operations that it needs.

use anyhow::Result;
use isograd::nn::{
    Adagrad, Adam, AdamW, Forward, Init, Lamb, Lars, Linear, Muon, Optimizer, RmsProp, Sgd, clip_grad_norm,
};
use isograd::ops::{
    Activation, Approximate, AvgPool, Direction, EmbeddingOptions, GemmBias, MaxPool, Order, Rotary, RotaryStyle,
    Sampling, Statistics, TieGrad, Transpose,
};
use isograd::{DType, Device, Precision, Rng, Tensor};

const F32: &[DType] = &[DType::F32];
const F16: &[DType] = &[DType::F16];
const BF16: &[DType] = &[DType::BF16];
const STORED: &[DType] = &[DType::F32, DType::BF16];
const MATRIX: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::F64];

/// Elements of the elementwise rows.
const MANY: usize = 64 << 20;
/// Shapes of softmax, and those of normalisation: a batch of rows each.
const SOFTMAX: &[[usize; 2]] = &[[4096, 4096], [16384, 4096], [32768, 1024], [8192, 50257]];
const NORM: &[[usize; 2]] = &[[16384, 4096], [32768, 768]];
/// Shapes of softmax along the last dimension but one: few long columns, many of them, and channels of images.
const SOFTMAX_COLUMNS: &[&[usize]] = &[&[1 << 20, 16], &[65536, 1024], &[8, 21, 512 * 512]];
/// Shape of the normalisation of channels.
const IMAGES: [usize; 4] = [64, 256, 56, 56];
/// Bytes of an index.
const INDEX: usize = 8;

/// What a call needs at least: bytes of every input and output once, and operations, two for a multiply-add.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    pub bytes: usize,
    pub flops: f64,
}

impl Cost {
    fn bytes(bytes: usize) -> Cost {
        Cost { bytes, flops: 0.0 }
    }
}

/// A row at its shape on a device.
pub struct Case {
    pub device: Device,
    pub dims: Vec<usize>,
    pub dtype: DType,
    rng: Rng,
}

impl Case {
    pub fn new(device: &Device, dims: Vec<usize>, dtype: DType) -> Case {
        Case { device: device.clone(), dims, dtype, rng: Rng::new(0) }
    }

    /// Elements of the shape.
    fn numel(&self) -> usize {
        self.dims.iter().product()
    }

    /// Bytes of so many elements.
    fn bytes(&self, elements: usize) -> usize {
        elements * self.dtype.size()
    }

    /// A cost of so many tensors of the case's shape.
    fn whole(&self, tensors: usize) -> Cost {
        Cost::bytes(self.bytes(tensors * self.numel()))
    }

    /// A tensor of normal draws, so that no unit of the hardware has it easy.
    pub fn normal(&self, dims: &[usize]) -> Result<Tensor> {
        Ok(Tensor::randn(dims, 0.0, 1.0, self.dtype, &self.device, &self.rng)?)
    }

    fn normals<const N: usize>(&self, shapes: [&[usize]; N]) -> Result<Vec<Tensor>> {
        shapes.into_iter().map(|dims| self.normal(dims)).collect()
    }

    fn alike(&self, count: usize) -> Result<Vec<Tensor>> {
        (0..count).map(|_| self.normal(&self.dims)).collect()
    }

    /// Indices below `n`.
    fn indices(&self, n: usize, dims: &[usize]) -> Result<Tensor> {
        Ok(Tensor::rand(dims, 0.0, n as f64, DType::F32, &self.device, &self.rng)?.cast(DType::I64)?)
    }
}

/// Something that is timed again and again.
pub type Work = Box<dyn FnMut() -> isograd::Result<()>>;

/// What a row does.
#[derive(Clone, Copy)]
pub enum Action {
    /// A function of tensors, with the inputs that it is given.
    Call { inputs: fn(&Case) -> Result<Vec<Tensor>>, call: fn(&Case, &[Tensor]) -> isograd::Result<Tensor> },
    /// Anything else.
    Work(fn(&Case) -> Result<Work>),
}

/// Whose time is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The device's for one call, with cold caches.
    Device,
    /// The host's for each of many calls, of which none is waited for.
    Launch,
    /// The host's for each of many calls, with the wait for the last.
    Steps,
}

/// Calls in the tables that follow: one row a dtype and pass.
#[derive(Clone)]
pub struct Op {
    pub group: &'static str,
    pub name: &'static str,
    pub dims: Vec<usize>,
    pub action: Action,
    pub clock: Clock,
    pub dtypes: &'static [DType],
    /// How many of the first extents are divided where a device cannot take the whole.
    pub shrinks: usize,
    pub forward: fn(&Case) -> Cost,
    /// The cost of the backward pass, where that is a row too. The inputs, floats, are leaves then.
    pub backward: Option<fn(&Case) -> Cost>,
}

impl Op {
    fn new(group: &'static str, name: &'static str, dims: &[usize], action: Action, forward: fn(&Case) -> Cost) -> Op {
        let dims = dims.to_vec();
        Op { group, name, dims, action, forward, clock: Clock::Device, dtypes: F32, shrinks: 1, backward: None }
    }

    fn dtypes(self, dtypes: &'static [DType]) -> Op {
        Op { dtypes, ..self }
    }

    fn shrinks(self, shrinks: usize) -> Op {
        Op { shrinks, ..self }
    }

    fn backward(self, cost: fn(&Case) -> Cost) -> Op {
        Op { backward: Some(cost), ..self }
    }
}

fn call(inputs: fn(&Case) -> Result<Vec<Tensor>>, call: fn(&Case, &[Tensor]) -> isograd::Result<Tensor>) -> Action {
    Action::Call { inputs, call }
}

/// The copy that the bandwidth of a device is measured with.
pub fn copy_ceiling() -> Op {
    copy(&[256 << 20])
}

/// The product that the matrix rate of a device is measured with.
pub fn matrix_ceiling() -> Op {
    matmul(8192)
}

/// All rows.
pub fn all() -> Vec<Op> {
    [
        launches(),
        elementwise(),
        reductions(),
        softmaxes(),
        norms(),
        pools(),
        losses(),
        products(),
        randoms(),
        indexing(),
        graphs(),
        rotary(),
        sampling(),
        sorting(),
        optimizers(),
        training(),
    ]
    .concat()
}

fn launches() -> Vec<Op> {
    let tiny = call(|c| c.alike(2), |_, x| x[0].add_(&x[1]).map(|()| x[0].clone()));
    let op = Op::new("launch", "launch overhead", &[1], tiny, |c| c.whole(3));
    vec![Op { clock: Clock::Launch, ..op }]
}

fn copy(dims: &[usize]) -> Op {
    let action = call(|c| c.alike(2), |_, x| x[1].copy_(&x[0]).map(|()| x[1].clone()));
    Op::new("elementwise", "copy", dims, action, |c| c.whole(2))
}

fn elementwise() -> Vec<Op> {
    let op = |name, action, cost| Op::new("elementwise", name, &[MANY], action, cost).dtypes(STORED);
    let unary = |name, f| op(name, call(|c| c.alike(1), f), |c| c.whole(2));
    let masked = |c: &Case| Cost::bytes(c.bytes(2 * c.numel()) + c.numel());
    let choose = call(
        |c| Ok([vec![c.normal(&c.dims)?.gt_scalar(0.0)?], c.alike(2)?].concat()),
        |_, x| x[0].where_cond(&x[1], &x[2]),
    );
    let cast = |c: &Case| Cost::bytes(c.numel() * (size_of::<f32>() + 2));
    let dropout = call(|c| c.alike(1), |c, x| x[0].dropout(0.1, &c.rng));
    vec![
        copy(&[MANY]).dtypes(STORED),
        op("fill", call(|c| c.alike(1), |_, x| x[0].fill_(1.0).map(|()| x[0].clone())), |c| c.whole(1)),
        op("add", call(|c| c.alike(2), |_, x| x[0].add(&x[1])), |c| c.whole(3)),
        op("mul", call(|c| c.alike(2), |_, x| x[0].mul(&x[1])), |c| c.whole(3)),
        unary("relu", |_, x| x[0].relu()).backward(|c| c.whole(3)),
        unary("gelu", |_, x| x[0].gelu(Approximate::None)).backward(|c| c.whole(3)),
        unary("clamp", |_, x| x[0].clamp(Some((-0.5).into()), Some(0.5.into()))),
        op("where", choose, |c| Cost::bytes(c.bytes(3 * c.numel()) + c.numel())),
        op("cast to f16", call(|c| c.alike(1), |_, x| x[0].cast(DType::F16)), cast).dtypes(F32),
        op("cast to bf16", call(|c| c.alike(1), |_, x| x[0].cast(DType::BF16)), cast).dtypes(F32),
        op("dropout", dropout, masked).backward(masked),
    ]
}

fn reductions() -> Vec<Op> {
    type Reduction = fn(&Case, &[Tensor]) -> isograd::Result<Tensor>;
    let list: [(&str, Reduction); 7] = [
        ("sum of all", |_, x| x[0].sum(..)),
        ("mean of all", |_, x| x[0].mean(..)),
        ("max of all", |_, x| x[0].amax(..)),
        ("sum of rows", |_, x| x[0].sum(-1)),
        ("mean of rows", |_, x| x[0].mean(-1)),
        ("max of rows", |_, x| x[0].amax(-1)),
        ("argmax of rows", |_, x| x[0].argmax(-1)),
    ];
    let row = |(name, f): &(&'static str, Reduction)| {
        Op::new("reduction", name, &[MANY / 1024, 1024], call(|c| c.alike(1), *f), |c| c.whole(1)).dtypes(STORED)
    };
    let of_gradient = |op: Op| if op.name == "max of rows" { op.backward(|c| c.whole(2)) } else { op };
    list.iter().map(row).map(of_gradient).collect()
}

fn softmaxes() -> Vec<Op> {
    let op = |name, dims: &[usize], action| {
        Op::new("softmax", name, dims, action, |c| c.whole(2)).dtypes(STORED).backward(|c| c.whole(3))
    };
    let of_rows = |dims: &[usize; 2]| {
        let softmax = call(|c| c.alike(1), |_, x| x[0].softmax(-1));
        let log_softmax = call(|c| c.alike(1), |_, x| x[0].log_softmax(-1));
        [op("softmax", dims, softmax), op("log_softmax", dims, log_softmax)]
    };
    let of_columns = |dims: &&[usize]| {
        let softmax = call(|c| c.alike(1), |_, x| x[0].softmax(-2));
        let log_softmax = call(|c| c.alike(1), |_, x| x[0].log_softmax(-2));
        [op("softmax of columns", dims, softmax), op("log_softmax of columns", dims, log_softmax)]
    };
    SOFTMAX.iter().flat_map(of_rows).chain(SOFTMAX_COLUMNS.iter().flat_map(of_columns)).collect()
}

fn norms() -> Vec<Op> {
    let of = |dims: &[usize; 2]| {
        let layer_norm = call(
            |c| c.normals([&c.dims, &c.dims[1..], &c.dims[1..]]),
            |_, x| x[0].layer_norm(1, Some(&x[1]), Some(&x[2]), 1e-5),
        );
        let rms_norm = call(|c| c.normals([&c.dims, &c.dims[1..]]), |_, x| x[0].rms_norm(1, Some(&x[1]), 1e-5));
        [("layer_norm", layer_norm), ("rms_norm", rms_norm)].map(|(name, action)| {
            Op::new("norm", name, dims, action, |c| c.whole(2)).dtypes(STORED).backward(|c| c.whole(3))
        })
    };
    let inputs = |c: &Case| c.normals([&c.dims, &c.dims[1..2], &c.dims[1..2]]);
    let channels = |name, f| {
        let op = Op::new("norm", name, &IMAGES, call(inputs, f), |c| c.whole(2));
        op.dtypes(STORED).backward(|c| c.whole(3))
    };
    let of_channels = [
        channels("batch_norm", |_, x| x[0].batch_norm(Some(&x[1]), Some(&x[2]), Statistics::Batch, 1e-5)),
        channels("group_norm32", |_, x| x[0].group_norm(32, Some(&x[1]), Some(&x[2]), 1e-5)),
        channels("instance_norm", |_, x| x[0].instance_norm(Some(&x[1]), Some(&x[2]), Statistics::Batch, 1e-5)),
    ];
    NORM.iter().flat_map(of).chain(of_channels).collect()
}

/// x and so many results, each with an index of so many bytes.
fn pooled(c: &Case, outputs: usize, index: usize) -> Cost {
    Cost::bytes(c.bytes(c.numel() + outputs) + outputs * index)
}

/// Results of windows two apart over `[N, C, ..]`.
fn halves(c: &Case) -> usize {
    c.dims[..2].iter().product::<usize>() * c.dims[2..].iter().map(|l| l / 2).product::<usize>()
}

fn pools() -> Vec<Op> {
    type Pool = fn(&Case, &[Tensor]) -> isograd::Result<Tensor>;
    let op = |name, dims: &[usize], f: Pool, cost: fn(&Case) -> Cost| {
        Op::new("pools", name, dims, call(|c| c.alike(1), f), cost).dtypes(STORED).backward(cost)
    };
    let (image, volume, features) = (&[64, 64, 112, 112], &[8, 64, 16, 56, 56], &[64, 256, 56, 56]);
    // A maximum keeps a byte for each result: the number of an element within its window.
    let max: fn(&Case) -> Cost = |c| pooled(c, halves(c), 1);
    let avg: fn(&Case) -> Cost = |c| pooled(c, halves(c), 0);
    vec![
        op("max_pool2d_k3s2", image, |_, x| x[0].max_pool2d(wide()), max),
        op("max_pool2d_k2s2", image, |_, x| x[0].max_pool2d(MaxPool::new([2, 2])), max),
        op("avg_pool2d_k3s2", image, |_, x| x[0].avg_pool2d(wide_avg()), avg),
        op("avg_pool2d_k2s2", image, |_, x| x[0].avg_pool2d(AvgPool::new([2, 2])), avg),
        op("max_pool3d_k2s2", volume, |_, x| x[0].max_pool3d(MaxPool::new([2, 2, 2])), max),
        op("avg_pool3d_k2s2", volume, |_, x| x[0].avg_pool3d(AvgPool::new([2, 2, 2])), avg),
        op("adapt_avg_1", features, |_, x| x[0].adaptive_avg_pool2d([1, 1]), |c| pooled(c, c.dims[0] * c.dims[1], 0)),
        op(
            "adapt_max_1",
            features,
            |_, x| x[0].adaptive_max_pool2d([1, 1]),
            |c| pooled(c, c.dims[0] * c.dims[1], INDEX),
        ),
        op(
            "adapt_avg_7",
            features,
            |_, x| x[0].adaptive_avg_pool2d([7, 7]),
            |c| pooled(c, 49 * c.dims[0] * c.dims[1], 0),
        ),
        op(
            "adapt_max_7",
            features,
            |_, x| x[0].adaptive_max_pool2d([7, 7]),
            |c| pooled(c, 49 * c.dims[0] * c.dims[1], 1),
        ),
        // No divisor of the extents.
        op(
            "adapt_avg_13",
            features,
            |_, x| x[0].adaptive_avg_pool2d([13, 13]),
            |c| pooled(c, 13 * 13 * c.dims[0] * c.dims[1], 0),
        ),
        // Windows that several threads read.
        op(
            "adapt_avg_3",
            features,
            |_, x| x[0].adaptive_avg_pool2d([3, 3]),
            |c| pooled(c, 9 * c.dims[0] * c.dims[1], 0),
        ),
        op(
            "adapt_max_3",
            features,
            |_, x| x[0].adaptive_max_pool2d([3, 3]),
            |c| pooled(c, 9 * c.dims[0] * c.dims[1], 4),
        ),
    ]
}

/// Windows of 3 elements that overlap, with padding, as many as halves.
fn wide() -> MaxPool<2> {
    MaxPool { stride: [2, 2], padding: [1, 1], ..MaxPool::new([3, 3]) }
}

fn wide_avg() -> AvgPool<2> {
    AvgPool { stride: [2, 2], padding: [1, 1], ..AvgPool::new([3, 3]) }
}

fn losses() -> Vec<Op> {
    let cross_entropy =
        call(|c| Ok(vec![c.normal(&c.dims)?, c.indices(c.dims[1], &c.dims[..1])?]), |_, x| x[0].cross_entropy(&x[1]));
    let op = Op::new("loss", "cross_entropy", &[8192, 50257], cross_entropy, |c| c.whole(1));
    let mse = call(|c| c.alike(2), |_, x| x[0].mse_loss(&x[1], Default::default()));
    let mse = Op::new("loss", "mse_loss", &[MANY], mse, |c| c.whole(2));
    vec![op.dtypes(STORED).backward(|c| c.whole(2)), mse.dtypes(STORED)]
}

/// The cost of `[m, k] @ [k, n]`.
fn product(c: &Case, [m, k, n]: [usize; 3]) -> Cost {
    Cost { bytes: c.bytes(m * k + k * n + m * n), flops: 2.0 * m as f64 * k as f64 * n as f64 }
}

fn matmul(n: usize) -> Op {
    let action = call(|c| c.normals([&c.dims[..2], &c.dims[1..]]), |_, x| x[0].matmul(&x[1]));
    let op = Op::new("matmul", "matmul", &[n, n, n], action, |c| product(c, [c.dims[0], c.dims[1], c.dims[2]]));
    op.dtypes(MATRIX).shrinks(3)
}

/// Of `[B, K, N]`: x `[B, K]`, the weight `[N, K]` and the bias of a dense layer.
fn dense_inputs(c: &Case) -> Result<Vec<Tensor>> {
    let [b, k, n] = [c.dims[0], c.dims[1], c.dims[2]];
    c.normals([&[b, k], &[n, k], &[n]])
}

fn dense(x: &[Tensor]) -> isograd::Result<Tensor> {
    let activation = Activation::Gelu(Approximate::Tanh);
    x[0].gemm_bias(&x[1], Some(&x[2]), GemmBias { trans_b: Transpose::Yes, activation, ..Default::default() })
}

fn products() -> Vec<Op> {
    let mut rows: Vec<Op> = [512, 1024, 2048, 4096, 8192].map(matmul).into();
    let gemv = call(|c| c.normals([&c.dims, &c.dims[1..]]), |_, x| x[0].matmul(&x[1]));
    let cost = |c: &Case| product(c, [c.dims[0], c.dims[1], 1]);
    rows.push(Op::new("matmul", "gemv", &[8192, 8192], gemv, cost).dtypes(STORED));
    let linear = call(dense_inputs, |_, x| dense(x));
    let forward = |c: &Case| product(c, [c.dims[0], c.dims[1], c.dims[2]]);
    let backward = |c: &Case| {
        let once = product(c, [c.dims[0], c.dims[1], c.dims[2]]);
        Cost { bytes: 2 * once.bytes, flops: 2.0 * once.flops }
    };
    let op = Op::new("matmul", "linear + gelu", &[8192, 4096, 4096], linear, forward);
    rows.push(op.clone().dtypes(BF16).backward(backward).shrinks(3));
    // Without what the backward pass needs.
    rows.push(Op { name: "linear + gelu, no grad", ..op.clone() }.dtypes(BF16).shrinks(3));
    // As PyTorch computes it by default.
    let reduced = call(dense_inputs, |c, x| {
        c.device.set_matmul_precision(Precision::Reduced);
        let y = dense(x);
        c.device.set_matmul_precision(Precision::Exact);
        y
    });
    rows.push(Op { name: "linear + gelu, r", action: reduced, ..op }.dtypes(BF16).shrinks(3));
    rows
}

fn randoms() -> Vec<Op> {
    let op = |name, f| Op::new("random", name, &[MANY], call(|_| Ok(Vec::new()), f), |c| c.whole(1));
    vec![
        op("uniform", |c, _| Tensor::rand(&c.dims, 0.0, 1.0, c.dtype, &c.device, &c.rng)),
        op("normal", |c, _| Tensor::randn(&c.dims, 0.0, 1.0, c.dtype, &c.device, &c.rng)),
    ]
}

fn indexing() -> Vec<Op> {
    // [T, V, C]: T tokens of a table [V, C].
    let embedding = call(
        |c| Ok(vec![c.normal(&c.dims[1..])?, c.indices(c.dims[1], &c.dims[..1])?]),
        |_, x| x[0].embedding(&x[1], EmbeddingOptions::default()),
    );
    let read = |c: &Case| Cost::bytes(c.bytes(2 * c.dims[0] * c.dims[2]) + c.dims[0] * INDEX);
    let summed = |c: &Case| Cost::bytes(c.bytes((c.dims[0] + c.dims[1]) * c.dims[2]) + c.dims[0] * INDEX);
    let op = Op::new("index", "embedding", &[65536, 50257, 1024], embedding, read);
    let mut rows = vec![op.dtypes(STORED).backward(summed).shrinks(2)];
    for [r, c, n] in [[1024, 256, 128], [4096, 1024, 512], [16384, 1024, 2048]] {
        rows.extend(gathers(&[r, n, c]));
    }
    rows
}

/// `[R, C]` and the `[n, C]` to add to it, for a shape `[R, n, C]`, with an index of n rows.
fn by_row(c: &Case) -> Result<Vec<Tensor>> {
    let [r, n, width] = [c.dims[0], c.dims[1], c.dims[2]];
    Ok(vec![c.normal(&[r, width])?, c.normal(&[n, width])?, c.indices(r, &[n])?])
}

/// The same, with an index `[n, C]`. All elements of a row have one index, as where rows of a table are read or summed: each
/// its own would read a sector of memory for an element.
fn by_element(c: &Case) -> Result<Vec<Tensor>> {
    let mut inputs = by_row(c)?;
    inputs[2] = inputs[2].unsqueeze(1)?.broadcast_to(&c.dims[1..])?.copy()?;
    Ok(inputs)
}

/// Reads `[n, C]` of a table.
fn reads(c: &Case, indices: usize) -> Cost {
    Cost::bytes(c.bytes(2 * c.dims[1] * c.dims[2]) + indices * INDEX)
}

/// Copies a table `[R, C]` and adds `[n, C]` to the copy.
fn adds(c: &Case, indices: usize) -> Cost {
    Cost::bytes(c.bytes((2 * c.dims[0] + c.dims[1]) * c.dims[2]) + indices * INDEX)
}

/// Adds `[n, C]` to a table.
fn adds_in_place(c: &Case, indices: usize) -> Cost {
    Cost::bytes(c.bytes(3 * c.dims[1] * c.dims[2]) + indices * INDEX)
}

/// Gather and scatter along the rows of `[R, C]`, by an index `[n, C]` and by one of `n` rows.
fn gathers(dims: &[usize]) -> Vec<Op> {
    let op = |name, action, cost| Op::new("index", name, dims, action, cost).dtypes(F16).shrinks(2);
    vec![
        op("gather", call(by_element, |_, x| x[0].gather(0, &x[2])), |c| reads(c, c.dims[1] * c.dims[2])),
        op("scatter_add", call(by_element, |_, x| x[0].scatter_add(0, &x[2], &x[1])), |c| {
            adds(c, c.dims[1] * c.dims[2])
        }),
        op("scatter_add_", call(by_element, |_, x| x[0].scatter_add_(0, &x[2], &x[1]).map(|()| x[0].clone())), |c| {
            adds_in_place(c, c.dims[1] * c.dims[2])
        }),
        op("index_select", call(by_row, |_, x| x[0].index_select(0, &x[2])), |c| reads(c, c.dims[1])),
        op("index_add", call(by_row, |_, x| x[0].index_add(0, &x[2], &x[1], 1)), |c| adds(c, c.dims[1])),
        op("index_add_", call(by_row, |_, x| x[0].index_add_(0, &x[2], &x[1], 1).map(|()| x[0].clone())), |c| {
            adds_in_place(c, c.dims[1])
        }),
        // As PyTorch adds by default.
        op("scatter_add, any", call(by_element, |c, x| in_any_order(c, || x[0].scatter_add(0, &x[2], &x[1]))), |c| {
            adds(c, c.dims[1] * c.dims[2])
        }),
        op(
            "scatter_add_, any",
            call(by_element, |c, x| in_any_order(c, || x[0].scatter_add_(0, &x[2], &x[1]).map(|()| x[0].clone()))),
            |c| adds_in_place(c, c.dims[1] * c.dims[2]),
        ),
        op(
            "index_add_, any",
            call(by_row, |c, x| in_any_order(c, || x[0].index_add_(0, &x[2], &x[1], 1).map(|()| x[0].clone()))),
            |c| adds_in_place(c, c.dims[1]),
        ),
    ]
}

/// A graph of 100 thousand nodes with 128 features each and 1.6 million edges: nodes read for edges, and edges joined for nodes.
fn graphs() -> Vec<Op> {
    let op =
        |name, action, cost| Op::new("graph", name, &[100_000, 1_600_000, 128], action, cost).dtypes(STORED).shrinks(2);
    let joins = |name, f| {
        let joined = |c: &Case| Cost::bytes(c.bytes((c.dims[0] + c.dims[1]) * c.dims[2]) + c.dims[1] * INDEX);
        op(name, call(by_edge, f), joined).backward(|c| reads(c, c.dims[1]))
    };
    vec![
        op("index_select", call(by_row, |_, x| x[0].index_select(0, &x[2])), |c| reads(c, c.dims[1])),
        op("index_add", call(by_row, |_, x| x[0].index_add(0, &x[2], &x[1], 1)), |c| adds(c, c.dims[1])),
        joins("scatter_sum", |c, x| x[0].scatter_sum(&x[1], Some(c.dims[0]))),
        joins("scatter_mean", |c, x| x[0].scatter_mean(&x[1], Some(c.dims[0]))),
        joins("scatter_max", |c, x| Ok(x[0].scatter_max(&x[1], Some(c.dims[0]), TieGrad::Even)?.0)),
        joins("scatter_max, first", |c, x| Ok(x[0].scatter_max(&x[1], Some(c.dims[0]), TieGrad::First)?.0)),
    ]
}

/// The rows `[n, C]` of a shape `[R, n, C]`, and an index of n rows below R.
fn by_edge(c: &Case) -> Result<Vec<Tensor>> {
    Ok(vec![c.normal(&c.dims[1..])?, c.indices(c.dims[0], &c.dims[1..2])?])
}

/// Queries and keys `[B, H, T, D]` turned by tables of f32. The gradient is the same kernel with the other direction.
fn rotary() -> Vec<Op> {
    fn inputs(c: &Case) -> Result<Vec<Tensor>> {
        let table = || Tensor::randn([c.dims[2], c.dims[3] / 2], 0.0, 1.0, DType::F32, &c.device, &c.rng);
        Ok([c.alike(2)?, vec![table()?, table()?]].concat())
    }
    fn turned(x: &[Tensor], style: RotaryStyle, direction: Direction) -> isograd::Result<Tensor> {
        let rotary = Rotary { style, direction, ..Default::default() };
        Ok(x[0].apply_rotary_embedding(&x[1], &x[2], &x[3], &rotary)?.0)
    }
    let op = |name, action| {
        let cost = |c: &Case| Cost::bytes(c.bytes(4 * c.numel()) + c.dims[2] * c.dims[3] * 4);
        Op::new("rotary", name, &[8, 32, 2048, 128], action, cost).dtypes(STORED)
    };
    vec![
        op("rotary", call(inputs, |_, x| turned(x, RotaryStyle::Half, Direction::Forward))),
        op("rotary, inverse", call(inputs, |_, x| turned(x, RotaryStyle::Half, Direction::Inverse))),
        op("rotary, pairs", call(inputs, |_, x| turned(x, RotaryStyle::Interleaved, Direction::Forward))),
    ]
}

/// Tokens drawn from logits: of a list of the largest, of a nucleus, of both, and of all.
fn sampling() -> Vec<Op> {
    fn drawn(c: &Case, x: &[Tensor], top_k: usize, top_p: f64) -> isograd::Result<Tensor> {
        x[0].sample_logits(&Sampling { top_k, top_p, ..Sampling::default() }, &c.rng)
    }
    let rows = |dims: &[usize]| {
        [
            ("sample", call(|c| c.alike(1), |c, x| drawn(c, x, 0, 1.0))),
            ("sample, top 50", call(|c| c.alike(1), |c, x| drawn(c, x, 50, 1.0))),
            ("sample, top p 0.9", call(|c| c.alike(1), |c, x| drawn(c, x, 0, 0.9))),
            ("sample, top 50, p 0.9", call(|c| c.alike(1), |c, x| drawn(c, x, 50, 0.9))),
        ]
        .map(|(name, action)| Op::new("sampling", name, dims, action, |c| c.whole(1)).dtypes(STORED))
    };
    [[64, 50257], [8, 128256]].iter().flat_map(|dims| rows(dims)).collect()
}

/// Without a fixed order of sums.
fn in_any_order(c: &Case, f: impl FnOnce() -> isograd::Result<Tensor>) -> isograd::Result<Tensor> {
    c.device.set_deterministic(false);
    let y = f();
    c.device.set_deterministic(true);
    y
}

fn sorting() -> Vec<Op> {
    let of = |n: usize| {
        let sort = call(|c| c.alike(1), |_, x| Ok(x[0].sort(0, Order::Ascending)?.0));
        let sorted = |c: &Case| Cost::bytes(c.bytes(2 * c.numel()) + c.numel() * INDEX);
        let cumsum = call(|c| c.alike(1), |_, x| x[0].cumsum(0));
        [Op::new("sort", "sort", &[n], sort, sorted), Op::new("sort", "cumsum", &[n], cumsum, |c| c.whole(2))]
    };
    [1 << 20, MANY].into_iter().flat_map(of).collect()
}

/// A hundred million parameters in one tensor, and in 300.
const PARAMETERS: [[usize; 2]; 2] = [[1, 100_000_000], [300, 333_333]];

/// The matrices of GPT-2: layers, and their width.
const GPT2: [usize; 2] = [12, 768];

/// Leaves of these shapes and their gradients.
fn leaves(c: &Case, shapes: &[Vec<usize>]) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    shapes.iter().map(|dims| Ok((c.normal(dims)?.leaf()?, c.normal(dims)?))).collect()
}

fn parameters(c: &Case) -> Vec<Vec<usize>> {
    vec![c.dims[1..].to_vec(); c.dims[0]]
}

fn gpt2(c: &Case) -> Vec<Vec<usize>> {
    let w = c.dims[1];
    vec![[vec![w, 3 * w], vec![w, w], vec![w, 4 * w], vec![4 * w, w]]; c.dims[0]].concat()
}

/// Steps of an optimizer, which forgets the gradients each time.
fn steps(c: &Case, shapes: &[Vec<usize>], optimizer: fn(Vec<Tensor>) -> Box<dyn Optimizer>) -> Result<Work> {
    let (parameters, gradients) = leaves(c, shapes)?;
    let mut optimizer = optimizer(parameters.clone());
    Ok(Box::new(move || {
        for (parameter, gradient) in parameters.iter().zip(&gradients) {
            parameter.set_grad(Some(gradient.clone()))?;
        }
        optimizer.step()
    }))
}

fn clipping(c: &Case) -> Result<Work> {
    let (parameters, gradients) = leaves(c, &parameters(c))?;
    for (parameter, gradient) in parameters.iter().zip(gradients) {
        parameter.set_grad(Some(gradient))?;
    }
    Ok(Box::new(move || clip_grad_norm(&parameters, 1.0, 2.0).map(drop)))
}

fn optimizers() -> Vec<Op> {
    let of = |dims: &[usize; 2]| {
        let op = |name, work, cost| Op::new("optimizer", name, dims, Action::Work(work), cost).shrinks(2);
        // The gradient is read, and parameters and states are read and written; these are f32 beside 16 bits too.
        let momentum = |c: &Case| Cost::bytes(c.bytes(3 * c.numel()) + 2 * c.numel() * size_of::<f32>());
        [
            op("adamw", |c| steps(c, &parameters(c), |p| Box::new(AdamW::from_parameters(p))), |c| c.whole(7)),
            op("adam", |c| steps(c, &parameters(c), |p| Box::new(Adam::from_parameters(p))), |c| c.whole(7)),
            op("sgd", |c| steps(c, &parameters(c), |p| Box::new(Sgd::from_parameters(p))), |c| c.whole(3)),
            op(
                "sgd, momentum",
                |c| steps(c, &parameters(c), |p| Box::new(Sgd::from_parameters(p).momentum(0.9))),
                momentum,
            )
            .dtypes(STORED),
            op("rmsprop", |c| steps(c, &parameters(c), |p| Box::new(RmsProp::from_parameters(p))), |c| c.whole(5)),
            op("adagrad", |c| steps(c, &parameters(c), |p| Box::new(Adagrad::from_parameters(p))), |c| c.whole(5)),
            // The norms read the parameters and the gradients first.
            op("lars", |c| steps(c, &parameters(c), |p| Box::new(Lars::from_parameters(p))), |c| c.whole(7)),
            // The moments are written before the norms are known, and read again after.
            op("lamb", |c| steps(c, &parameters(c), |p| Box::new(Lamb::from_parameters(p))), |c| c.whole(10)),
            op("clip by norm", clipping, |c| c.whole(3)),
        ]
    };
    let muon = Action::Work(|c| steps(c, &gpt2(c), |p| Box::new(Muon::from_parameters(p))));
    // Its products are not of the parameters' dtype: the bytes of the step alone.
    let cost = |c: &Case| Cost::bytes(c.bytes(5 * 12 * c.dims[0] * c.dims[1].pow(2)));
    let muon = Op::new("optimizer", "muon", &GPT2, muon, cost);
    PARAMETERS.iter().flat_map(of).chain([muon]).collect()
}

/// Pixels, hidden units and classes of the classifier that is trained.
const MLP: [usize; 3] = [784, 256, 10];

/// A step of the classifier, with products of f32 in this precision: forward, loss, backward and Adam on a batch.
fn mlp_step(c: &Case, precision: Precision) -> Result<impl FnMut((Tensor, Tensor)) -> isograd::Result<()> + use<>> {
    let [inputs, hidden, classes] = MLP;
    let init = Init::new(&c.device).dtype(c.dtype);
    let (first, second) = (Linear::new(inputs, hidden, &init)?, Linear::new(hidden, classes, &init)?);
    let parameters = [&first, &second].into_iter().flat_map(|l| [Some(l.weight.clone()), l.bias.clone()]);
    let mut optimizer = Adam::from_parameters(parameters.flatten().collect());
    let device = c.device.clone();
    Ok(move |(x, y): (Tensor, Tensor)| {
        device.set_matmul_precision(precision);
        second.forward(&first.forward_with(&x, Activation::Relu)?)?.cross_entropy(&y)?.backward()?;
        optimizer.step()?;
        device.set_matmul_precision(Precision::Exact);
        Ok(())
    })
}

fn batch(c: &Case) -> Result<(Tensor, Tensor)> {
    Ok((c.normal(&[c.dims[0], MLP[0]])?, c.indices(MLP[2], &c.dims[..1])?))
}

fn training() -> Vec<Op> {
    // The first layer's input has no gradient: two products there, three in the second.
    let cost = |c: &Case| {
        let [inputs, hidden, classes] = MLP;
        let parameters = (inputs + 1) * hidden + (hidden + 1) * classes;
        let flops = 2 * c.dims[0] * (2 * inputs * hidden + 3 * hidden * classes);
        Cost { bytes: c.bytes(7 * parameters + c.dims[0] * inputs), flops: flops as f64 }
    };
    let eager = |c: &Case| -> Result<Work> {
        let (mut step, inputs) = (mlp_step(c, Precision::Exact)?, batch(c)?);
        Ok(Box::new(move || step(inputs.clone())))
    };
    fn captured(c: &Case, precision: Precision) -> Result<Work> {
        let (mut step, inputs) = (c.device.capture(mlp_step(c, precision)?), batch(c)?);
        Ok(Box::new(move || step.run(inputs.clone())))
    }
    let op = |name, dims: &[usize], work| Op {
        clock: Clock::Steps,
        ..Op::new("training", name, dims, Action::Work(work), cost).shrinks(1)
    };
    let of = |b| {
        [
            op("mlp step", &[b], eager),
            op("captured mlp", &[b], |c| captured(c, Precision::Exact)),
            op("captured mlp tf32", &[b], |c| captured(c, Precision::Tf32)),
        ]
    };
    [128, 4096].into_iter().flat_map(of).collect()
}
