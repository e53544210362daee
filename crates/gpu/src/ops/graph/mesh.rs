//! Convolutions over meshes and their gradients: products of matrices whose factors are read by `mesh.h`.

use crate::driver::Address;
use crate::launch::device::Gpu;
use crate::launch::integers::Integers;
use crate::launch::operands::start_of;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate, zeros};
use crate::ops::matrix::matmul::{self, Extents, Loaded, Loading, MMA_WORD, Side, WIDEST};
use isograd_core::fused::Fused;
use isograd_core::ops::Neighbors;
use isograd_core::ops::graph::mesh::{
    MeshForward, MeshInput, MeshInputInputs, MeshInputs, MeshWeight, MeshWeightInputs, Neighborhoods,
};
use isograd_core::{Call, DType, Operand, Result, Tensor};

pub(crate) const FAMILY: Family = Family {
    launchers: &[Launcher::of::<MeshForward>(), Launcher::of::<MeshInput>(), Launcher::of::<MeshWeight>()],
    examples: EXAMPLES,
};

impl FusedLaunch for MeshForward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let MeshInputs { x, table, w, bias } = self.inputs(call);
        let bias = bias.map(|bias| Ok((start_of(bias)?, [0, 0, bias.layout.strides()[0]]))).transpose()?;
        multiply_neighbors(gpu, &self.0, [x, table, w], bias, None, self.outputs(call).y)
    }
}

impl FusedLaunch for MeshInput {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let MeshInputInputs { g, table, w, sums } = self.inputs(call);
        multiply_neighbors(gpu, &self.turned(), [g, table, w], None, sums, self.outputs(call).y)
    }
}

/// The product of neighbours in rows and of a weight.
fn multiply_neighbors(
    gpu: &Gpu,
    extents: &Neighborhoods,
    [x, table, w]: [&Operand<'_>; 3],
    bias: Option<(Address, [usize; 3])>,
    joined: Option<&Operand<'_>>,
    y: &Operand<'_>,
) -> Result<()> {
    let Neighborhoods { batch, rows, slots, channels, outputs } = *extents;
    let e = Extents { batches: 1, m: batch * rows, n: outputs, k: slots * channels };
    let (x, table, w) = (start_of(x)?, start_of(table)?, start_of(w)?);
    let sides = |side: Reader| [side.along_k(x, e.m, e.k), side.along_k(w, e.n, e.k)];
    multiply(gpu, Product { is_forward: true, extents, e, table, bias, joined, y }, sides)
}

impl FusedLaunch for MeshWeight {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let Neighborhoods { batch, rows, slots, channels, outputs } = self.0;
        let e = Extents { batches: 1, m: outputs, n: slots * channels, k: batch * rows };
        let MeshWeightInputs { g, x, table } = self.inputs(call);
        let (g, x, table, y) = (start_of(g)?, start_of(x)?, start_of(table)?, self.outputs(call).y);
        let sides = |side: Reader| [side.along_rows(g, e.m, e.k), side.along_rows(x, e.n, e.k)];
        multiply(gpu, Product { is_forward: false, extents: &self.0, e, table, bias: None, joined: None, y }, sides)
    }
}

/// A product of one of the maps, without its factors.
struct Product<'a> {
    is_forward: bool,
    extents: &'a Neighborhoods,
    e: Extents,
    table: Address,
    /// The bias and its strides.
    bias: Option<(Address, [usize; 3])>,
    /// Rows behind those of x.
    joined: Option<&'a Operand<'a>>,
    y: &'a Operand<'a>,
}

/// How factors are read: in words of adjacent channels or outputs, or one by one.
#[derive(Clone, Copy)]
struct Reader {
    dtype: DType,
    has_words: bool,
}

impl Reader {
    fn along_k(self, address: Address, rows: usize, k: usize) -> Side {
        match self.has_words {
            true => Side::contiguous(address, self.dtype, rows, k),
            false => Side::scattered(address, self.dtype, [rows, k], true),
        }
    }

    fn along_rows(self, address: Address, rows: usize, k: usize) -> Side {
        match self.has_words {
            true => Side::turned(address, self.dtype, rows, k),
            false => Side::scattered(address, self.dtype, [rows, k], false),
        }
    }
}

fn multiply(gpu: &Gpu, product: Product<'_>, sides: impl Fn(Reader) -> [Side; 2]) -> Result<()> {
    let Product { is_forward, extents, e, table, bias: c, joined, y } = product;
    let Neighborhoods { batch, rows, slots, channels, outputs } = *extents;
    let limits = gpu.driver().limits();
    let (dtype, word) = (y.dtype, WIDEST / y.dtype.size());
    let has_words = [channels, outputs].iter().all(|n| n.is_multiple_of(word));
    let [a, b] = sides(Reader { dtype, has_words });
    let is_for_units = limits.has_mma && !gpu.driver().dialect().mma.is_empty() && dtype.size() == 2;
    let joined_place = joined.map(start_of).transpose()?;
    let has_words = has_words && is_for_units && a.has_words(MMA_WORD) && b.has_words(MMA_WORD);
    let has_words = has_words && joined_place.is_none_or(|joined| joined.is_multiple_of(WIDEST as u64));
    let of_x = batch * rows * channels + joined.map_or(0, |joined| joined.layout.shape().numel());
    let sizes = [of_x, batch * rows * outputs, rows * slots, outputs * slots * channels];
    let is_wide = sizes.into_iter().chain([e.m, e.n, e.k]).any(|extent| extent > i32::MAX as usize);
    let integers = Integers::new().divisors([("N_ROWS", rows), ("N_CHANNELS", channels)]).positions([
        ("N_SLOTS", slots),
        ("N_OUTPUTS", outputs),
        ("N_SAMPLES", batch),
    ]);
    let loading = Loading {
        file: "graph/mesh.h",
        flags: vec![
            ("MESH_FORWARD", is_forward),
            ("MESH_WEIGHT", !is_forward),
            ("BATCHED", batch > 1),
            ("JOINED", joined.is_some()),
        ],
        pointers: vec![table, joined_place.unwrap_or(a.address)],
        integers,
    };
    matmul::run_loaded(gpu, Loaded { e, dtype, a, b, c, y: start_of(y)?, is_wide, has_words, loading })
}

const EXAMPLES: &[Example] = &[
    |d, t| {
        differentiate(d, t, &[&[1024, 16], &[32, 80], &[32]], |x| {
            x[0].mesh_conv(&Neighbors::new(&zeros(x[0].device(), DType::I64, &[1024, 4])?)?, &x[1], Some(&x[2]))
        })
    },
    // For large tiles of matrix units.
    |d, t| {
        differentiate(d, t, &[&[4096, 64], &[64, 320]], |x| {
            x[0].mesh_conv(&Neighbors::new(&zeros(x[0].device(), DType::I64, &[4096, 4])?)?, &x[1], None)
        })
    },
    // Rows that have a row as the same neighbour, and others that have not.
    |d, t| {
        differentiate(d, t, &[&[4096, 64], &[64, 128]], |x| {
            let table = Tensor::arange(4096, x[0].device())?.unsqueeze(1)?;
            x[0].mesh_conv(&Neighbors::new(&table)?, &x[1], None)
        })
    },
    // Several samples, and features that are no whole words.
    |d, t| {
        differentiate(d, t, &[&[4, 512, 3], &[20, 27]], |x| {
            x[0].spiral_conv(&Neighbors::new(&zeros(x[0].device(), DType::I64, &[512, 9])?)?, &x[1], None)
        })
    },
];
