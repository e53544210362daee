//! The kernel table: which kernels there are, and the text that a compiler receives for each.
//!
//! No second list of definitions exists: the host code runs on a [`NullDriver`], which keeps what it is told to compile.

use crate::driver::null::NullDriver;
use crate::driver::{Dialect, Registered};
use crate::launch::device::Gpu;
use crate::ops;
use crate::program::source::{FILES, find};
use isograd_core::ops::loss::{CrossEntropy, Reduction, Triplet, TripletNegative};
use isograd_core::ops::{
    Activation, Approximate, AvgPool, EmbeddingOptions, GemmBias, Index, MaxPool, Order, Put, Rotary, RotaryStyle,
    Running, Sampling, Statistics, TieGrad, Total, Update, index, total, unscale_, update_each_, update_each_norms_,
};
use isograd_core::pointwise::Pointwise;
use isograd_core::tape::{BackwardOptions, grad_with};
use isograd_core::{
    Backend, Call, DType, Device, Error, Kernel, Layout, Memory, Operand, Result, Rng, Tensor, inventory,
};
use std::any::TypeId;
use std::sync::Arc;

/// Memory of the device that compiles nothing: more than any op below asks for.
const MEMORY: usize = 1 << 40;
/// Elements of the operands of a generated kernel.
const ELEMENTS: usize = 1 << 20;

/// A kernel.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name. An entry of a file and a row of the pointwise table may have the same one.
    pub name: String,
    /// The file's name, or [`GENERATED`].
    pub file: &'static str,
    /// What is run, where the text is generated for it.
    pub kernel: Option<Kernel<'static>>,
}

/// Stands for the file of kernels whose text is generated: fill, copy, cast and the rows of the pointwise table.
pub const GENERATED: &str = "elementwise";

/// The dialects of the backends that are linked, by name.
pub fn dialects() -> Vec<&'static Dialect> {
    let mut all: Vec<_> = inventory::iter::<Registered>.into_iter().map(|registered| registered.0).collect();
    all.sort_by_key(|dialect| dialect.name);
    all
}

/// All kernels of a dialect: those of the files, in the files' order, then those that are generated. Errors: `Io` if
/// files are read from a folder and cannot be.
pub fn entries(dialect: &Dialect) -> Result<Vec<Entry>> {
    let own = dialect.files.iter().filter(|(file, _)| FILES.iter().all(|(common, _)| common != file));
    let mut entries = Vec::new();
    for (file, _) in FILES.iter().chain(own).filter(|(file, _)| file.ends_with(".c")) {
        let text = find(dialect, file)?;
        let names = text.lines().filter_map(|line| line.strip_prefix("KERNEL(")?.split_once(')'));
        entries.extend(names.map(|(name, _)| Entry { name: name.to_string(), file, kernel: None }));
    }
    let rows = Pointwise::ALL.iter().map(|&row| (row.name(), Kernel::Pointwise(row)));
    let generated = [("fill", Kernel::Fill), ("copy", Kernel::Copy), ("cast", Kernel::Cast)].into_iter().chain(rows);
    let entry =
        |(name, kernel): (&str, Kernel<'static>)| Entry { name: name.into(), file: GENERATED, kernel: Some(kernel) };
    entries.extend(generated.map(entry));
    Ok(entries)
}

impl Entry {
    /// The whole source, as a compiler receives it for large operands of one dtype, on a device with waves of 32. A
    /// generated kernel's operands are contiguous; a cast is to f32, or from it to f16.
    ///
    /// Errors: `Unsupported` for a dtype in which the kernel does not run.
    pub fn source(&self, dialect: &'static Dialect, dtype: DType) -> Result<String> {
        let first = self.sources(dialect, dtype).into_iter().next();
        first.ok_or_else(|| Error::unsupported("kernels", format!("{} does not run on {dtype}", self.name)))
    }

    /// The sources for operands of several sizes, the first of which is [`source`](Entry::source); none for a dtype in which
    /// the kernel does not run.
    pub fn sources(&self, dialect: &'static Dialect, dtype: DType) -> Vec<String> {
        let driver = Arc::new(NullDriver::new(dialect, MEMORY));
        let gpu = Arc::new(Gpu::with_cache(driver.clone(), None));
        let launched = match self.kernel {
            Some(kernel) => run_generated(&gpu, kernel, dtype).ok().map(|()| GENERATED),
            None => {
                let device = Device::from_backend("null:0", gpu.clone());
                launch_all(&device, dtype);
                Some(self.name.as_str())
            }
        };
        launched.map(|entry| driver.sources(entry)).unwrap_or_default()
    }
}

/// Launches every kernel of the files on a device, in programs of several sizes. An op that does not take this dtype launches nothing.
pub fn launch_all(device: &Device, dtype: DType) {
    LAUNCHES.iter().for_each(|launch| drop(launch(device, dtype)));
}

/// The types of the descriptors of all fused ops that have kernels, and the paths of these types.
pub fn fused() -> impl Iterator<Item = (TypeId, &'static str)> {
    ops::types()
}

fn run_generated(gpu: &Gpu, kernel: Kernel<'_>, dtype: DType) -> Result<()> {
    let (inputs, outputs, attributes) = match kernel {
        Kernel::Pointwise(row) if row.is_inout() => (row.inputs() - row.outputs(), row.outputs(), row.attributes()),
        Kernel::Pointwise(row) => (row.inputs(), row.outputs(), row.attributes()),
        Kernel::Fill => (0, 1, 1),
        _ => (1, 1, 0),
    };
    let to = match (kernel, dtype) {
        (Kernel::Cast, DType::F32) => DType::F16,
        (Kernel::Cast, _) => DType::F32,
        _ => dtype,
    };
    let memory: Vec<Box<dyn Memory>> =
        (0..inputs + outputs).map(|_| gpu.allocate(ELEMENTS * size_of::<f64>())).collect::<Result<_>>()?;
    let layout = Layout::contiguous(ELEMENTS.into());
    let operands: Vec<Operand<'_>> = memory
        .iter()
        .enumerate()
        .map(|(k, memory)| Operand { memory: &**memory, layout: &layout, dtype: if k < inputs { dtype } else { to } })
        .collect();
    let (inputs, outputs) = operands.split_at(inputs);
    let (ints, floats) = (vec![0; attributes], vec![0.0; attributes]);
    gpu.run(&Call { op: "kernels", kernel, inputs, outputs, ints: &ints, floats: &floats })
}

/// A tensor of zeros.
fn zeros(device: &Device, dtype: DType, dims: &[usize]) -> Result<Tensor> {
    Tensor::zeros(dims, dtype, device)
}

/// The gradients of `f` at leaves of these shapes.
fn differentiate(device: &Device, dtype: DType, shapes: &[&[usize]], f: fn(&[Tensor]) -> Result<Tensor>) -> Result<()> {
    let leaves: Vec<Tensor> = shapes.iter().map(|dims| zeros(device, dtype, dims)?.leaf()).collect::<Result<_>>()?;
    let y = f(&leaves)?;
    let options = BackwardOptions { gradient: Some(y.zeros_like()?), ..Default::default() };
    grad_with(&y, &leaves.iter().collect::<Vec<_>>(), options).map(drop)
}

/// Adds at one element of a row each, and writes there, along a dimension of this extent.
fn scatter(device: &Device, dtype: DType, extent: usize) -> Result<()> {
    let (x, index) = (zeros(device, dtype, &[extent, 1024])?, zeros(device, DType::I64, &[extent, 1024])?);
    x.scatter_add(0, &index, &x)?;
    x.scatter(0, &index, &x).map(drop)
}

/// In training, with running statistics.
fn batch_norm(x: &[Tensor]) -> Result<Tensor> {
    let (mean, var) = (x[2].detach().copy()?, x[1].detach().copy()?);
    let batches = Tensor::zeros((), DType::I64, x[0].device())?;
    let running = Running { mean: &mean, var: &var, batches: Some(&batches), momentum: None };
    x[0].batch_norm(Some(&x[1]), Some(&x[2]), Statistics::Update(running), 0.0)
}

/// The gradients of a triplet loss.
fn triplet(device: &Device, dtype: DType, options: Triplet) -> Result<()> {
    let mut x = Vec::new();
    for _ in 0..3 {
        x.push(zeros(device, dtype, &[4096, 1024])?.leaf()?);
    }
    x[0].triplet_loss(&x[1], &x[2], options)?.backward()
}

/// Joins rows for the nodes of a graph.
fn joins(device: &Device, dtype: DType, edges: usize) -> Result<()> {
    let index = zeros(device, DType::I64, &[edges])?;
    for ties in [TieGrad::Even, TieGrad::First] {
        let x = zeros(device, dtype, &[edges, 128])?.leaf()?;
        x.scatter_max(&index, Some(1024), ties)?.0.sum(..)?.backward()?;
    }
    zeros(device, dtype, &[edges, 128])?.leaf()?.scatter_mean(&index, Some(1024))?.sum(..)?.backward()
}

/// Turns the pairs of queries and keys.
fn turns(device: &Device, dtype: DType, style: RotaryStyle) -> Result<()> {
    let (q, table) = (zeros(device, dtype, &[8, 32, 256, 128])?, zeros(device, dtype, &[256, 64])?);
    let options = Rotary { style, positions: Some(zeros(device, DType::I64, &[256])?), ..Default::default() };
    q.apply_rotary_embedding(&q, &table, &table, &options).map(drop)
}

/// The positions in a mask. Of a device that runs nothing none are read back, so that the op would stop there.
fn positions(device: &Device) -> Result<()> {
    let backend = device.backend();
    let (mask, found) = (Layout::contiguous((1024, 1024).into()), Layout::contiguous((2, 1 << 20).into()));
    let (from, to) = (backend.allocate(1 << 20)?, backend.allocate((2 * size_of::<i64>()) << 20)?);
    let inputs = [Operand { memory: &*from, layout: &mask, dtype: DType::Bool }];
    let outputs = [Operand { memory: &*to, layout: &found, dtype: DType::I64 }];
    let kernel = Kernel::Fused(&index::MaskPositions);
    backend.run(&Call { op: "kernels", kernel, inputs: &inputs, outputs: &outputs, ints: &[], floats: &[] })
}

/// Ops that together launch every kernel of the files.
const LAUNCHES: &[fn(&Device, DType) -> Result<()>] = &[
    |d, t| zeros(d, t, &[4096, 1024])?.sum(-1).map(drop),
    |d, t| zeros(d, t, &[4096, 1024])?.amax(-1).map(drop),
    |d, t| zeros(d, t, &[4096, 1024])?.sum(0).map(drop),
    // Parts that the last group joins: of one number, of two, of three.
    |d, t| zeros(d, t, &[1 << 24])?.sum(..).map(drop),
    |d, t| zeros(d, t, &[1 << 24])?.amax(..).map(drop),
    |d, t| zeros(d, t, &[1 << 24])?.argmax(0).map(drop),
    |d, t| zeros(d, t, &[1 << 24])?.logsumexp(0).map(drop),
    |d, t| zeros(d, t, &[1 << 24])?.var(0, 1.0).map(drop),
    // Gradients that are summed where an operand broadcasts.
    |d, t| differentiate(d, t, &[&[4096, 1024], &[1024]], |x| x[0].mul(&x[1])),
    |d, t| differentiate(d, t, &[&[4096, 1024], &[4096, 1]], |x| x[0].lerp(&x[0].sin()?, &x[1])),
    |d, t| differentiate(d, t, &[&[4096, 1024], &[1024]], |x| x[0].lt(&x[0])?.where_cond(&x[0], &x[1])),
    |d, t| differentiate(d, t, &[&[4096, 1024]], |x| x[0].softmax(-1)),
    |d, t| differentiate(d, t, &[&[4096, 1024]], |x| x[0].softmax(0)),
    |d, t| differentiate(d, t, &[&[64, 32, 4096]], |x| x[0].softmax(1)),
    |d, t| differentiate(d, t, &[&[4096, 1024]], |x| x[0].amax(-1)),
    |d, t| {
        differentiate(d, t, &[&[4096, 1024], &[1024], &[1024]], |x| x[0].layer_norm(1, Some(&x[1]), Some(&x[2]), 0.0))
    },
    |d, t| zeros(d, t, &[1024, 1024])?.matmul(&zeros(d, t, &[1024, 1024])?).map(drop),
    // Of a tile for each multiprocessor.
    |d, t| zeros(d, t, &[4096, 1024])?.matmul(&zeros(d, t, &[1024, 4096])?.t()?).map(drop),
    // Of no whole words, which matrix units would take.
    |d, t| zeros(d, t, &[1023, 1023])?.matmul(&zeros(d, t, &[1023, 1023])?).map(drop),
    |d, t| zeros(d, t, &[64, 65536])?.matmul(&zeros(d, t, &[65536, 64])?).map(drop),
    |d, t| zeros(d, t, &[1024, 1024])?.matmul(&zeros(d, t, &[1024, 1])?).map(drop),
    |d, t| zeros(d, t, &[128, 1024])?.matmul(&zeros(d, t, &[10, 1024])?.t()?).map(drop),
    |d, t| zeros(d, t, &[10, 128])?.matmul(&zeros(d, t, &[128, 1024])?).map(drop),
    |d, t| zeros(d, t, &[128, 10])?.matmul(&zeros(d, t, &[10, 1024])?).map(drop),
    // Gradients through the activation of a factor, one of which a library masks.
    |d, t| differentiate(d, t, &[&[1024, 1024], &[1024, 1024]], |x| x[0].silu()?.matmul(&x[1])),
    |d, t| differentiate(d, t, &[&[128, 1024], &[1024, 10]], |x| x[0].gelu(Approximate::None)?.matmul(&x[1])),
    |d, t| differentiate(d, t, &[&[4096, 1024], &[1024, 1024]], |x| x[0].relu()?.matmul(&x[1])),
    // An activation of a product, and the gradients of the second factor and of the bias at once.
    |d, t| {
        differentiate(d, t, &[&[1024, 1024], &[1024, 1024], &[1024]], |x| {
            let activation = Activation::Gelu(Approximate::None);
            x[0].gemm_bias(&x[1], Some(&x[2]), GemmBias { activation, ..Default::default() })
        })
    },
    |d, t| differentiate(d, t, &[&[4096, 2048]], |x| x[0].silu_and_mul()),
    |d, t| zeros(d, t, &[1024, 1024])?.gather(0, &zeros(d, DType::I64, &[1024, 1024])?).map(drop),
    |d, t| scatter(d, t, 16),
    |d, t| scatter(d, t, 4096),
    |d, t| scatter(d, t, 16384),
    |d, t| scatter(d, t, 65536),
    // Wide rows, by an index for each.
    |d, t| {
        let (x, index) = (zeros(d, t, &[1024, 1024])?, zeros(d, DType::I64, &[1024])?);
        x.index_add(0, &index, &x, 1)?;
        x.index_put(&[Index::Tensor(index)], &x, Put::Assign).map(drop)
    },
    // Few values for a large table, and f16; lists that are too long to be kept in registers.
    |d, t| {
        let x = zeros(d, t, &[65536, 256])?;
        let add = |rows| x.scatter_add(0, &zeros(d, DType::I64, &[rows, 256])?, &zeros(d, t, &[rows, 256])?).map(drop);
        add(4096)?;
        add(16384)
    },
    |d, t| {
        d.set_deterministic(false);
        scatter(d, t, 4096)
    },
    |d, t| zeros(d, t, &[1 << 20])?.sort(0, Order::Ascending).map(drop),
    |d, t| zeros(d, t, &[1 << 14])?.sort(0, Order::Ascending).map(drop),
    |d, t| zeros(d, t, &[1 << 20])?.cumsum(0).map(drop),
    |d, _| positions(d),
    // Columns: many, of no whole words, and few, which are cut into parts.
    |d, t| zeros(d, t, &[256, 65536])?.cumsum(0).map(drop),
    |d, t| zeros(d, t, &[256, 65537])?.cumsum(0).map(drop),
    |d, t| zeros(d, t, &[65536, 256])?.cumsum(0).map(drop),
    |d, t| differentiate(d, t, &[&[65536, 256]], |x| x[0].prod(0)),
    |d, t| Tensor::rand(1024, 0.0, 1.0, t, d, &Rng::new(0)).map(drop),
    |d, t| differentiate(d, t, &[&[4096, 1024]], |x| x[0].dropout(0.1, &Rng::new(0))),
    // More targets than one group sums up, and classes that are not neighbours.
    |d, t| differentiate(d, t, &[&[16384, 1024]], |x| x[0].cross_entropy(&zeros(x[0].device(), DType::I64, &[16384])?)),
    |d, t| differentiate(d, t, &[&[64, 16, 64]], |x| x[0].cross_entropy(&zeros(x[0].device(), DType::I64, &[64, 64])?)),
    |d, t| {
        differentiate(d, t, &[&[4096, 1024]], |x| {
            x[0].embedding(&zeros(x[0].device(), DType::I64, &[4096])?, EmbeddingOptions::default())
        })
    },
    |d, t| {
        differentiate(d, t, &[&[4096, 1024], &[1024]], |x| {
            x[0].embedding_rmsnorm(&zeros(x[0].device(), DType::I64, &[4096])?, Some(&x[1]), 0.0)
        })
    },
    // What is joined is more than a value.
    |d, t| differentiate(d, t, &[&[4096, 1024]], |x| x[0].logsumexp(-1)),
    |d, t| differentiate(d, t, &[&[4096, 1024]], |x| x[0].prod(-1)),
    |d, t| differentiate(d, t, &[&[4096, 1024]], |x| x[0].var(-1, 1.0)),
    |d, t| differentiate(d, t, &[&[4096, 1024]], |x| x[0].var(0, 1.0)),
    |d, t| {
        differentiate(d, t, &[&[4096, 1024]], |x| {
            x[0].nll_loss(&zeros(x[0].device(), DType::I64, &[4096])?, &CrossEntropy::default())
        })
    },
    |d, t| differentiate(d, t, &[&[4096, 1024], &[4096, 1024]], |x| x[0].mse_loss(&x[1], Reduction::Mean)),
    |d, t| differentiate(d, t, &[&[4096, 1024], &[4096, 1024]], |x| x[0].bce_loss(&x[1], None, Reduction::Mean)),
    |d, t| {
        differentiate(d, t, &[&[4096, 1024], &[4096, 1024]], |x| {
            x[0].contrastive_loss(&x[1], &zeros(x[0].device(), x[0].dtype(), &[4096])?, 1.0, Reduction::Mean)
        })
    },
    |d, t| triplet(d, t, Triplet::default()),
    |d, t| triplet(d, t, Triplet { negative: TripletNegative::Nearest, p: 1.5, ..Triplet::default() }),
    |d, t| joins(d, t, 4096),
    |d, t| joins(d, t, 16384),
    |d, t| turns(d, t, RotaryStyle::Half),
    |d, t| turns(d, t, RotaryStyle::Interleaved),
    |d, t| zeros(d, t, &[64, 50257])?.sample_logits(&Sampling::default(), &Rng::new(0)).map(drop),
    // Rows that no group keeps in its registers, and that are not whole words.
    |d, t| differentiate(d, t, &[&[64, 50257]], |x| x[0].softmax(-1)),
    |d, t| differentiate(d, t, &[&[64, 8191]], |x| x[0].prod(-1)),
    |d, t| differentiate(d, t, &[&[64, 50257]], |x| x[0].layer_norm(1, None, None, 0.0)),
    |d, t| {
        differentiate(d, t, &[&[64, 65536], &[65536], &[65536]], |x| x[0].layer_norm(1, Some(&x[1]), Some(&x[2]), 0.0))
    },
    |d, t| differentiate(d, t, &[&[64, 50257]], |x| x[0].cross_entropy(&zeros(x[0].device(), DType::I64, &[64])?)),
    |d, t| {
        differentiate(d, t, &[&[64, 64, 112, 112]], |x| {
            x[0].max_pool2d(MaxPool { stride: [2, 2], padding: [1, 1], ..MaxPool::new([3, 3]) })
        })
    },
    // Without a gradient, for which positions are found.
    |d, t| zeros(d, t, &[64, 64, 112, 112])?.max_pool2d(MaxPool::new([2, 2])).map(drop),
    |d, t| differentiate(d, t, &[&[64, 64, 112, 112]], |x| x[0].avg_pool2d(AvgPool::new([2, 2]))),
    // Windows that the kernel finds.
    |d, t| differentiate(d, t, &[&[64, 64, 112, 112]], |x| x[0].adaptive_max_pool2d([13, 13])),
    |d, t| differentiate(d, t, &[&[64, 64, 112, 112]], |x| x[0].adaptive_avg_pool2d([13, 13])),
    // Large windows, that several threads read.
    |d, t| zeros(d, t, &[64, 64, 112, 112])?.max_pool2d(MaxPool::new([16, 16])).map(drop),
    |d, t| zeros(d, t, &[64, 64, 112, 112])?.avg_pool2d(AvgPool::new([16, 16])).map(drop),
    // Large windows that are made of columns.
    |d, t| differentiate(d, t, &[&[64, 64, 112, 112]], |x| x[0].adaptive_max_pool2d([3, 3])),
    |d, t| differentiate(d, t, &[&[64, 64, 112, 112]], |x| x[0].adaptive_avg_pool2d([3, 1])),
    |d, t| differentiate(d, t, &[&[64, 256, 3136], &[256], &[256]], batch_norm),
    // Channels whose elements are not neighbours, and running statistics.
    |d, t| differentiate(d, t, &[&[4096, 256], &[256], &[256]], batch_norm),
    |d, t| {
        differentiate(d, t, &[&[64, 256, 3136], &[256], &[256]], |x| {
            let running = Running { mean: &x[2].detach(), var: &x[1].detach(), batches: None, momentum: Some(0.1) };
            x[0].batch_norm(Some(&x[1]), Some(&x[2]), Statistics::Running(running), 0.0)
        })
    },
    |d, t| {
        differentiate(d, t, &[&[64, 256, 3136], &[256], &[256]], |x| x[0].group_norm(32, Some(&x[1]), Some(&x[2]), 0.0))
    },
    // All that a group has stays in registers.
    |d, t| {
        differentiate(d, t, &[&[64, 256, 784], &[256], &[256]], |x| {
            x[0].instance_norm(Some(&x[1]), Some(&x[2]), Statistics::Batch, 0.0)
        })
    },
    // Running statistics, in which all batches weigh the same.
    |d, t| {
        let (mean, var, batches) = (zeros(d, t, &[256])?, zeros(d, t, &[256])?, zeros(d, DType::I64, &[])?);
        let running = Running { mean: &mean, var: &var, batches: Some(&batches), momentum: None };
        zeros(d, t, &[64, 256, 784])?.instance_norm(None, None, Statistics::Update(running), 0.0).map(drop)
    },
    |d, t| total(Total::Norm, &[&zeros(d, t, &[1024, 1024])?]).map(drop),
    |d, t| {
        let [scale, found] = [zeros(d, DType::F32, &[])?, zeros(d, DType::F32, &[])?];
        unscale_(&[&zeros(d, t, &[1024, 1024])?], &scale, &found)
    },
    |d, t| {
        let (p, g, scale) = (zeros(d, t, &[1024, 1024])?, zeros(d, t, &[1024, 1024])?, zeros(d, t.acc(), &[])?);
        let set = Update { targets: Vec::new(), inputs: vec![&p, &g], numbers: Vec::new() };
        update_each_norms_(Pointwise::LarsNorms, &[set], &[&scale], &[1.0]).map(drop)
    },
    |d, t| {
        let (x, scale) = (zeros(d, t, &[1024, 1024])?, zeros(d, t.acc(), &[])?);
        let set = Update { targets: vec![&x], inputs: Vec::new(), numbers: Vec::new() };
        update_each_(Pointwise::ScaleInPlace, &[set], &[&scale], &[])
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    static DIALECT: Dialect = Dialect { name: "null", files: &[("prelude.h", "")], mma: &[] };

    #[test]
    fn every_kernel_has_a_source() {
        let entries = entries(&DIALECT).unwrap();
        assert!(entries.iter().any(|entry| (&*entry.name, entry.file) == ("softmax_rows", "softmax.c")));
        for entry in entries {
            let mut sources =
                [DType::F32, DType::F16, DType::I64].into_iter().map(|dtype| entry.source(&DIALECT, dtype));
            let source = sources.find_map(Result::ok);
            let source = source.unwrap_or_else(|| panic!("{} has no source; launch it in LAUNCHES", entry.name));
            let name = if entry.kernel.is_some() { GENERATED } else { &entry.name };
            assert!(source.contains(&format!("KERNEL({name})")), "{}", entry.name);
        }
    }
}
