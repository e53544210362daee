//! Convolutions over meshes and the gradients of their weights: products of matrices whose factors are read by `mesh.h`.

use crate::driver::Address;
use crate::launch::device::Gpu;
use crate::launch::operands::place;
use crate::launch::words::divider;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate, zeros};
use crate::ops::matmul::{self, Extents, Loaded, Loading, MMA_WORD, Side, WIDEST};
use isograd_core::ops::Neighbors;
use isograd_core::ops::mesh::{MeshForward, MeshWeight, Neighborhoods};
use isograd_core::{Call, DType, Operand, Result};

pub(super) const FAMILY: Family =
    Family { launchers: &[Launcher::of::<MeshForward>(), Launcher::of::<MeshWeight>()], examples: EXAMPLES };

impl FusedLaunch for MeshForward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let Neighborhoods { batch, rows, slots, channels, outputs } = self.0;
        let e = Extents { batches: 1, m: batch * rows, n: outputs, k: slots * channels };
        let (x, table, w) = (place(&call.inputs[0])?, place(&call.inputs[1])?, place(&call.inputs[2])?);
        let sides = |side: Reader| [side.along_k(x, e.m, e.k), side.along_k(w, e.n, e.k)];
        let strides = |bias: &Operand<'_>| [0, 0, bias.layout.strides()[0]];
        let bias = call.inputs.get(3).map(|bias| Ok((place(bias)?, strides(bias)))).transpose()?;
        multiply(gpu, call, Product { is_forward: true, extents: &self.0, e, table, bias }, sides)
    }
}

impl FusedLaunch for MeshWeight {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let Neighborhoods { batch, rows, slots, channels, outputs } = self.0;
        let e = Extents { batches: 1, m: outputs, n: slots * channels, k: batch * rows };
        let (g, x, table) = (place(&call.inputs[0])?, place(&call.inputs[1])?, place(&call.inputs[2])?);
        let sides = |side: Reader| [side.along_rows(g, e.m, e.k), side.along_rows(x, e.n, e.k)];
        multiply(gpu, call, Product { is_forward: false, extents: &self.0, e, table, bias: None }, sides)
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

fn multiply(gpu: &Gpu, call: &Call<'_>, product: Product<'_>, sides: impl Fn(Reader) -> [Side; 2]) -> Result<()> {
    let Product { is_forward, extents, e, table, bias: c } = product;
    let Neighborhoods { batch, rows, slots, channels, outputs } = *extents;
    let (y, limits) = (&call.outputs[0], gpu.driver().limits());
    let (dtype, word) = (y.dtype, WIDEST / y.dtype.size());
    let has_words = [channels, outputs].iter().all(|n| n.is_multiple_of(word));
    let [a, b] = sides(Reader { dtype, has_words });
    let is_for_units = limits.has_mma && !gpu.driver().dialect().mma.is_empty() && dtype.size() == 2;
    let has_words = has_words && is_for_units && a.has_words(MMA_WORD) && b.has_words(MMA_WORD);
    let sizes = [batch * rows * channels, batch * rows * outputs, rows * slots, outputs * slots * channels];
    let is_wide = sizes.into_iter().chain([e.m, e.n, e.k]).any(|extent| extent > i32::MAX as usize);
    let own = [rows, slots, channels, outputs];
    let loading = Loading {
        file: "mesh.h",
        flags: [("MESH_FORWARD", is_forward), ("MESH_WEIGHT", !is_forward), ("BATCHED", batch > 1)],
        table: Some(table),
        ints: own.into_iter().chain([rows, channels].map(divider)).collect(),
    };
    matmul::run_loaded(gpu, Loaded { e, dtype, a, b, c, y: place(y)?, is_wide, has_words, loading })
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
    // Several samples, and features that are no whole words.
    |d, t| {
        differentiate(d, t, &[&[4, 512, 3], &[20, 27]], |x| {
            x[0].spiral_conv(&Neighbors::new(&zeros(x[0].device(), DType::I64, &[512, 9])?)?, &x[1], None)
        })
    },
];
