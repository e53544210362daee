//! Normalisation of rows, and of rows of a table by index.

use crate::driver::Address;
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::operands::{addresses, optional, place, variant};
use crate::launch::rows::{Kept, columns, rows};
use crate::memory::status::Check;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate, in_any_order, zeros};
use crate::ops::indexing::index::check;
use crate::program::source::{Variant, word};
use isograd_core::ops::indexing::embedding::{EmbeddingNorm, EmbeddingNormBackward};
use isograd_core::ops::normalization::norm::{RowNorm, RowNormBackward, Wanted};
use isograd_core::ops::{Activation, Approximate};
use isograd_core::{Call, DType, Operand, Result};

/// Threads of a multiprocessor whose sums of columns find room in its registers.
const RESIDENT: usize = 512;
/// The longest sum without a tree.
const TERMS: usize = 4096;

pub const FAMILY: Family = Family {
    launchers: &[
        Launcher::of::<RowNorm>(),
        Launcher::of::<EmbeddingNorm>(),
        Launcher::of::<RowNormBackward>(),
        Launcher::of::<EmbeddingNormBackward>(),
    ],
    examples: EXAMPLES,
};

impl FusedLaunch for RowNorm {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        norm(gpu, call, self, None)
    }
}

impl FusedLaunch for EmbeddingNorm {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        norm(gpu, call, &self.0, call.inputs.last())
    }
}

impl FusedLaunch for RowNormBackward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        norm_backward(gpu, call, self, None)
    }
}

impl FusedLaunch for EmbeddingNormBackward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        norm_backward(gpu, call, &self.0, call.inputs.last())
    }
}

/// The program of a norm, whose parameters have the dtype `p`.
fn norm_variant(norm: &RowNorm, x: &Operand<'_>, p: DType) -> Variant {
    let flags = [("CENTERED", norm.is_centred), ("WEIGHT", norm.has_weight), ("BIAS", norm.has_bias)];
    variant("normalization/norm.c", x).define("P", p).flags(flags)
}

/// Adds the words in which parameters are read, if rows and addresses allow these.
fn with_pieces(variant: Variant, x: DType, p: DType, extent: usize, addresses: &[Address]) -> Variant {
    let vector = 16 / x.size();
    let bytes = (vector * p.size()).min(16);
    let is_aligned = extent.is_multiple_of(vector) && addresses.iter().all(|a| a.is_multiple_of(bytes as u64));
    let is_read_so = is_aligned && has_words(&variant, x);
    variant.optional("PIECE", is_read_so.then(|| word(bytes)))
}

/// Adds the dtype of x and y, and of their gradients, if it is not that of the rows that are normalised.
fn with_low(variant: Variant, low: DType, rows: DType) -> Variant {
    if low == rows {
        return variant;
    }
    let vector = if has_words(&variant, rows) { 16 / rows.size() } else { 1 };
    variant.define("LOW", low).define("LOW_WORD", word(vector * low.size()))
}

/// True if rows of a dtype are read in words, not element by element.
fn has_words(variant: &Variant, rows: DType) -> bool {
    variant.defines.contains(&("VECTOR", (16 / rows.size()).into()))
}

/// The place of elements of a smaller dtype among words of the rows' dtype.
fn in_rows(address: Address, low: DType, rows: DType) -> Address {
    address * (rows.size() / low.size()) as Address
}

/// Adds an index that names rows of `x`, which is written before the number of rows.
fn indexed(
    variant: Variant,
    arguments: Arguments,
    index: Option<&Operand<'_>>,
    x: &Operand<'_>,
) -> Result<(Variant, Arguments)> {
    let Some(index) = index else { return Ok((variant, arguments)) };
    Ok((variant.define("INDEX", index.dtype), arguments.pointer(place(index)?).int(x.layout.shape()[0])))
}

/// `index` names the rows of x, if there is one.
fn norm(gpu: &Gpu, call: &Call<'_>, norm: &RowNorm, index: Option<&Operand<'_>>) -> Result<()> {
    let (count, extent) = (norm.rows, norm.length);
    let (inputs, outputs) = (addresses(call.inputs)?, addresses(call.outputs)?);
    let x = &call.inputs[0];
    let first = 1 + norm.has_residual as usize;
    // The rows that are normalised: x, or its sum with the residual.
    let normalised = &call.outputs[if norm.has_residual { 3 } else { 0 }];
    let dtype = normalised.dtype;
    let parameters = &call.inputs[first..call.inputs.len() - index.is_some() as usize];
    let p = parameters.first().map_or(x.dtype, |p| p.dtype);
    let [weight, bias] = optional(&inputs[first..], [norm.has_weight, norm.has_bias], inputs[0]);
    let arguments = Arguments::new().pointers([inputs[0], weight, bias, outputs[0], outputs[1], outputs[2]]);
    let (variant, mut arguments) = indexed(norm_variant(norm, normalised, p), arguments, index, x)?;
    let mut moved = [inputs[0], outputs[0]].map(|address| in_rows(address, x.dtype, dtype)).to_vec();
    if norm.has_residual {
        moved.extend([inputs[1], outputs[3]]);
        arguments = arguments.pointers([inputs[1], outputs[3]]);
    }
    let variant = variant.flag("RESIDUAL", norm.has_residual);
    let variant = match norm.activation.row() {
        Some(row) => variant.define("ACTIVATION", row.name()).flag("NEAR", x.dtype.size() == 2).calling(row),
        None => variant,
    };
    let arguments = arguments.numbers([count, extent, 1, 1]).float(norm.eps, dtype.acc());
    let kept = Kept { is_whole: index.is_some(), ..Kept::normalised(dtype, extent) };
    let (variant, geometry) = rows(gpu, variant, dtype, count, extent, &moved, kept);
    let variant = with_low(with_pieces(variant, dtype, p, extent, &[weight, bias]), x.dtype, dtype);
    let Some(index) = index else {
        return gpu.launch(variant, "norm", geometry, &arguments.pointer(inputs[0]));
    };
    let extent = x.layout.shape()[0];
    let slot = gpu.status(call.op, Check::Index(extent))?;
    gpu.launch(variant, "norm", geometry, &arguments.pointer(slot.address))?;
    check(gpu, call.op, slot, (index, 1), extent)
}

/// The operands of a normalisation's gradient.
pub struct NormGradient {
    /// dy, x, mean and rstd.
    pub read: [Address; 4],
    pub weight: Address,
    pub dx: Address,
    /// The gradients of weight and bias.
    pub parameters: [Address; 2],
    /// The dtype of weight and bias.
    pub p: DType,
}

impl NormGradient {
    /// Of a normalisation with a weight or a bias, or without.
    pub fn new(call: &Call<'_>, [has_weight, has_bias]: [bool; 2], wanted: Wanted) -> Result<NormGradient> {
        let (inputs, outputs) = (addresses(call.inputs)?, addresses(call.outputs)?);
        let parameters = [has_weight, has_bias].map(|is_present| wanted.parameters && is_present);
        let [dx, dweight, dbias] = optional(&outputs, [wanted.dx, parameters[0], parameters[1]], inputs[0]);
        let p = match (has_weight, call.outputs.last()) {
            (true, _) => call.inputs[4].dtype,
            (false, Some(last)) if wanted.parameters => last.dtype,
            _ => call.inputs[1].dtype,
        };
        Ok(NormGradient {
            read: [0, 1, 2, 3].map(|i| inputs[i]),
            weight: inputs[if has_weight { 4 } else { 0 }],
            dx,
            parameters: [dweight, dbias],
            p,
        })
    }
}

/// As many groups as run together go through all rows, and each leaves its sums of the parameters' gradients.
fn norm_backward(gpu: &Gpu, call: &Call<'_>, of: &RowNormBackward, index: Option<&Operand<'_>>) -> Result<()> {
    let RowNormBackward { norm, wanted, is_added, is_mixed } = of;
    let (count, extent) = (norm.rows, norm.length);
    // A table has other rows than dy.
    let (g, x) = (&call.inputs[0], &call.inputs[index.is_none() as usize]);
    let (low_dx, outputs) = call.outputs.split_at((*is_mixed && wanted.dx) as usize);
    let found = NormGradient::new(&Call { outputs, ..*call }, [norm.has_weight, norm.has_bias], *wanted)?;
    let NormGradient { read: [dy, from, mean, rstd], weight, dx, parameters, p } = found;
    let low_dx = low_dx.first().map(place).transpose()?;
    let variant = norm_variant(norm, x, p);
    let flags = [("DX", wanted.dx), ("PARAMETERS", wanted.parameters), ("BACKWARD", true)];
    let further = call.inputs.get(4 + norm.has_weight as usize).filter(|_| index.is_none()).map(place).transpose()?;
    let program = match norm.activation.slope() {
        Some((row, reads_result)) => variant
            .clone()
            .define("SLOPE", row.name())
            .flags([("OF_RESULT", reads_result), ("NEAR", x.dtype.size() == 2)])
            .calling(row),
        None => variant.clone().flag("ADDED", *is_added),
    };
    let program = program.flags(flags);
    let added = further.filter(|_| *is_added).unwrap_or(from);
    let low = [dy, low_dx.unwrap_or(dy)].map(|address| in_rows(address, g.dtype, x.dtype));
    let moved = [low[0], low[1], from, if wanted.dx { dx } else { from }, added];
    let (program, mut geometry) = rows(gpu, program, x.dtype, count, extent, &moved, Kept::COLUMNS);
    let together = (RESIDENT / geometry.threads).max(1);
    // They run together if each has its share of the registers.
    let has_share = program.defines.iter().any(|(name, _)| *name == "AT_ONCE");
    let program = program.optional("AT_ONCE", (!has_share).then_some(together));
    let resident = gpu.driver().limits().units * together;
    geometry.groups[0] = geometry.groups[0].min(resident.max(count.div_ceil(TERMS)));
    let parts = geometry.groups[0];
    let bytes = if wanted.parameters { parts * extent * x.dtype.acc().size() } else { 0 };
    let (weights, biases) = (gpu.scratch(bytes)?, gpu.scratch(bytes)?);
    let sums = [weights.address, biases.address];
    let arguments = Arguments::new().pointers([dy, from, mean, rstd, weight, dx, sums[0], sums[1]]);
    let (program, mut arguments) = indexed(program, arguments, index, &call.inputs[1])?;
    let reads_bias = norm.activation != Activation::Identity;
    if reads_bias || *is_added {
        arguments = arguments.pointer(further.unwrap_or(weight));
    }
    if *is_mixed {
        arguments = arguments.pointer(low_dx.unwrap_or(dy));
    }
    let arguments = arguments.numbers([count, extent]);
    let bias = further.filter(|_| reads_bias).unwrap_or(weight);
    let program = with_low(with_pieces(program, x.dtype, p, extent, &[weight, bias]), g.dtype, x.dtype);
    gpu.launch(program, "norm_backward", geometry, &arguments)?;
    if !wanted.parameters {
        return Ok(());
    }
    join_parts(gpu, variant, sums, parameters, parts, extent, norm.has_bias)
}

/// Joins parts `[parts, extent]` of the gradients of a weight and a bias.
pub fn join_parts(
    gpu: &Gpu,
    variant: Variant,
    sums: [Address; 2],
    [dweight, dbias]: [Address; 2],
    parts: usize,
    extent: usize,
    has_bias: bool,
) -> Result<()> {
    let (variant, geometry) = columns(gpu, variant, extent, if has_bias { 2 } else { 1 });
    let arguments = Arguments::new().pointers([sums[0], sums[1], dweight, dbias]).numbers([parts, extent]);
    gpu.launch(variant, "norm_join", geometry, &arguments)
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[
    |d, t| {
        differentiate(d, t, &[&[4096, 1024], &[1024], &[1024]], |x| x[0].layer_norm(1, Some(&x[1]), Some(&x[2]), 0.0))
    },
    |d, t| {
        in_any_order(d, || {
            differentiate(d, t, &[&[4096, 1024], &[1024]], |x| {
                x[0].embedding_rmsnorm(&zeros(x[0].device(), DType::I64, &[4096])?, Some(&x[1]), 0.0)
            })
        })
    },
    |d, t| differentiate(d, t, &[&[64, 50257]], |x| x[0].layer_norm(1, None, None, 0.0)),
    |d, t| {
        differentiate(d, t, &[&[4096, 1024], &[1024], &[1024]], |x| {
            x[0].layer_norm_activation(1, Some(&x[1]), Some(&x[2]), 0.0, Activation::Gelu(Approximate::None))
        })
    },
    |d, t| {
        differentiate(d, t, &[&[64, 65536], &[65536], &[65536]], |x| {
            x[0].layer_norm_activation(1, Some(&x[1]), Some(&x[2]), 0.0, Activation::Relu)
        })
    },
    |d, t| {
        differentiate(d, t, &[&[4096, 1024], &[4096, 1024], &[1024], &[1024]], |x| {
            let (y, s) = x[0].residual_layer_norm(&x[1], 1, Some(&x[2]), Some(&x[3]), 0.0)?;
            y.add(&s)
        })
    },
    |d, t| {
        // The sum in f32.
        differentiate(d, t, &[&[4096, 1024], &[4096, 1024], &[1024], &[1024]], |x| {
            let [residual, weight, bias] = [1, 2, 3].map(|i| x[i].cast(x[i].dtype().acc()));
            let (y, s) = x[0].residual_layer_norm(&residual?, 1, Some(&weight?), Some(&bias?), 0.0)?;
            y.add(&s.cast(y.dtype())?)
        })
    },
    |d, t| {
        differentiate(d, t, &[&[64, 50257], &[64, 50257]], |x| {
            let (y, s) = x[0].residual_layer_norm(&x[1], 1, None, None, 0.0)?;
            y.add(&s)
        })
    },
    |d, t| {
        differentiate(d, t, &[&[64, 65536], &[65536], &[65536]], |x| x[0].layer_norm(1, Some(&x[1]), Some(&x[2]), 0.0))
    },
];
