//! Matrix products by the vendor's library: which ones it gets, and in what form.
//!
//! Our matrices are row-major, so the library is asked for the transposed product, `y^T = b^T a^T`: it reads the same memory
//! as column-major matrices. A function that the library lacks, or computes less exactly than we must, is left to the kernel of
//! `wgmma.c`, which is as fast, or applied to the library's sums by `gemm_sum`, as to the sums of our other kernels.

use crate::driver::Address;
use crate::driver::blas::{Epilogue, Factor, Library, MatmulProblem, Matrices, Product};
use crate::launch::device::Gpu;
use crate::launch::operands::start_of;
use crate::ops::matrix::matmul::{Extents, Side, tiles};
use crate::ops::{elementwise::pointwise, matrix::matmul};
use crate::vendor::note;
use crate::vendor::padded::Padded;
use isograd_core::fused::Fused;
use isograd_core::ops::Transpose;
use isograd_core::ops::matrix::gemm_bias::{GemmActivation, MatmulSum, Summed};
use isograd_core::ops::matrix::matmul::MatmulPointwise;
use isograd_core::pointwise::Pointwise;
use isograd_core::{Call, DType, Kernel, Precision, Result};
use std::sync::atomic::Ordering;

/// Another pass over the results costs more than the library gains where each is the sum of fewer products.
const LEAST_K: usize = 128;
/// Nor than it gains where sums are no longer than this and each multiprocessor has no more than one of our tiles.
const LEAST_K_OF_ALL: usize = 1024;
/// Multiplications without whole words that take longer than a kernel for the sums.
const LEAST_MULTIPLIED: usize = 1 << 28;
/// Sums from this length on are cut into parts where there are few results.
const LEAST_K_IN_PARTS: usize = 1 << 14;
/// The largest number of rows, columns and matrices that libraries count.
const MOST: usize = i32::MAX as usize;
/// Bits at multiples of which rows of a mask begin.
const MASK_STEP: usize = 128;
/// Bytes at multiples of which libraries want vectors and second outputs.
const ALIGNMENT: u64 = 16;

/// Has the library compute a call's product; false if it is left to us.
pub fn try_run(gpu: &Gpu, call: &Call<'_>) -> Result<bool> {
    let Some(library) = library(gpu) else { return Ok(false) };
    match call.kernel {
        Kernel::Matmul => try_product(gpu, library, call),
        Kernel::Fused(fused) => match (fused.downcast_ref::<MatmulPointwise>(), fused.downcast_ref::<MatmulSum>()) {
            (Some(of), _) => try_with_pointwise(gpu, library, of, call),
            (_, Some(of)) => try_with_sums(gpu, library, of, call),
            _ if fused.downcast_ref::<GemmActivation>().is_some() => try_product(gpu, library, call),
            _ => Ok(false),
        },
        _ => Ok(false),
    }
}

fn try_product(gpu: &Gpu, library: &dyn Library, call: &Call<'_>) -> Result<bool> {
    let product = matmul::Product::new(call)?;
    Ok(product.is_for_libraries(gpu) && run(gpu, library, &product, call)?)
}

fn try_with_pointwise(gpu: &Gpu, library: &dyn Library, fused: &MatmulPointwise, call: &Call<'_>) -> Result<bool> {
    let product = matmul::Product::new(call)?;
    Ok(product.is_for_libraries(gpu) && run_with_pointwise(gpu, library, &product, fused, call)?)
}

/// Has the library compute a product and the sums of a factor at once, or the product before our sums.
fn try_with_sums(gpu: &Gpu, library: &dyn Library, fused: &MatmulSum, call: &Call<'_>) -> Result<bool> {
    let multiply = matmul::product_of_sums(call);
    let product = matmul::Product::new(&multiply)?;
    if !product.is_for_libraries(gpu) {
        return Ok(false);
    }
    if run_with_sums(gpu, library, &product, fused.0, start_of(fused.outputs(call).sums)?)? {
        return Ok(true);
    }
    if !run(gpu, library, &product, &multiply)? {
        return Ok(false);
    }
    matmul::sum_factor(gpu, call, fused)?;
    Ok(true)
}

/// Has the library compute a product of matrices, neither of which is a vector; false if it is left to us.
fn run(gpu: &Gpu, library: &dyn Library, product: &matmul::Product, call: &Call<'_>) -> Result<bool> {
    let precision = gpu.precision();
    let Some(sums) = sums(product, precision) else { return Ok(false) };
    if let Some(whole) = whole(product, product.activation, sums, precision)
        && multiply(gpu, library, whole)?
    {
        return Ok(true);
    }
    let has_rest = product.beta != 0.0 || product.activation.is_some();
    if !has_rest || !is_worth_a_pass(gpu, product, &sums) {
        return Ok(false);
    }
    // The same bits, whether it is rounded before or after.
    if let Some(relu @ Pointwise::Relu) = product.activation
        && let Some(whole) = whole(product, None, sums, precision)
        && multiply(gpu, library, whole)?
    {
        let again = Call { kernel: Kernel::Pointwise(relu), inputs: &call.outputs[..1], floats: &[], ..*call };
        pointwise::run(gpu, &again)?;
        return Ok(true);
    }
    let acc = product.dtype.acc();
    // Sums of the results' own dtype lie where these will.
    let scratch = if acc == product.dtype { None } else { Some(gpu.scratch(product.numel() * acc.size())?) };
    let d = scratch.as_ref().map_or(product.y, |scratch| scratch.address);
    let sums = Product { problem: MatmulProblem { output: acc, ..sums.problem }, c: d, d, ..sums };
    if !multiply(gpu, library, sums)? {
        return Ok(false);
    }
    product.sum(gpu, 1, d)?;
    Ok(true)
}

/// Whether what our own kernels do at the end of a product may take another pass, if the library multiplies.
fn is_worth_a_pass(gpu: &Gpu, product: &matmul::Product, sums: &Product) -> bool {
    // That kernel is as fast as the library's, and needs none.
    if product.fits_wgmma(gpu.driver().limits()) {
        return false;
    }
    let Extents { batches, m, n, k } = product.e;
    let tiles = batches * m.div_ceil(tiles::SMALL.m) * n.div_ceil(tiles::SMALL.n);
    let is_fast = sums.problem.precision == Precision::Tf32;
    let is_small = k <= LEAST_K_OF_ALL && tiles <= gpu.driver().limits().units && !is_fast;
    k >= LEAST_K && !is_small
}

/// Has the library compute a product, and this row of it and c; false if it is left to us.
fn run_with_pointwise(
    gpu: &Gpu,
    library: &dyn Library,
    product: &matmul::Product,
    fused: &MatmulPointwise,
    call: &Call<'_>,
) -> Result<bool> {
    let (precision, row) = (gpu.precision(), fused.0);
    let Some(sums) = sums(product, precision).filter(|sums| is_worth_a_pass(gpu, product, sums)) else {
        return Ok(false);
    };
    let (address, [_, step, column]) = product.c;
    let is_matrix = product.e.batches == 1 && column == 1;
    match row {
        // Masked elements, which may be NaN, become zeros, as in libraries.
        Pointwise::ReluBackward if is_matrix => {
            let leading = product.e.n.next_multiple_of(MASK_STEP);
            let mask = gpu.scratch(product.e.m * leading / 8)?;
            let problem = MatmulProblem { epilogue: Epilogue::Masked, aux: Some(leading), ..sums.problem };
            let whole = Product { problem, aux: mask.address, ..sums };
            if library.has(&whole)? {
                product.mask(gpu, row, leading, mask.address)?;
                return multiply(gpu, library, whole);
            }
        }
        // Libraries approximate it.
        Pointwise::GeluTanhBackward
            if is_matrix && is_reduced(product, precision) && step % 8 == 0 && address % ALIGNMENT == 0 =>
        {
            let problem = MatmulProblem { epilogue: Epilogue::GeluTanhGradient, aux: Some(step), ..sums.problem };
            if multiply(gpu, library, Product { problem, aux: address, ..sums })? {
                return Ok(true);
            }
        }
        _ => {}
    }
    if !multiply(gpu, library, sums)? {
        return Ok(false);
    }
    let inputs = [*fused.outputs(call).y, *fused.inputs(call).beside];
    pointwise::run(gpu, &Call { kernel: Kernel::Pointwise(row), inputs: &inputs, ..*call })?;
    Ok(true)
}

/// Whether functions may be less exact than a rounding to 16 bits.
fn is_reduced(product: &matmul::Product, precision: Precision) -> bool {
    product.dtype.size() == 2 && precision == Precision::Reduced
}

/// Whether the library's kernels that also sum a factor are as fast as others: not for large 16-bit matrices without whole words, nor for long
/// sums of few results, which other kernels cut into parts.
fn sums_are_fast(gpu: &Gpu, library: &dyn Library, Extents { m, n, k, .. }: Extents, dtype: DType) -> bool {
    let unit = (library.pitch() / dtype.size()).max(1);
    let is_large = dtype.size() == 2 && m.saturating_mul(n).saturating_mul(k) >= LEAST_MULTIPLIED;
    let has_words = !is_large || [m, n, k].iter().all(|extent| extent.is_multiple_of(unit));
    let tiles = m.div_ceil(tiles::LARGE.m) * n.div_ceil(tiles::LARGE.n);
    has_words && (k < LEAST_K_IN_PARTS || 4 * tiles >= gpu.driver().limits().units)
}

/// Has the library compute a product without anything else, and the sums of a factor along K; false if it is left to us.
fn run_with_sums(
    gpu: &Gpu,
    library: &dyn Library,
    product: &matmul::Product,
    summed: Summed,
    sums_at: Address,
) -> Result<bool> {
    if !sums_at.is_multiple_of(ALIGNMENT) || !sums_are_fast(gpu, library, product.e, product.dtype) {
        return Ok(false);
    }
    let Some(sums) = sums(product, gpu.precision()) else { return Ok(false) };
    // The library multiplies the transposed matrices.
    let summed = match summed {
        Summed::Rows => Factor::B,
        Summed::Columns => Factor::A,
    };
    multiply(
        gpu,
        library,
        Product { problem: MatmulProblem { summed: Some(summed), ..sums.problem }, sums: sums_at, ..sums },
    )
}

/// `y = a b`, if the factors lie as a library reads them.
fn sums(product: &matmul::Product, precision: Precision) -> Option<Product> {
    let Extents { batches, m, n, k } = product.e;
    if [batches, m, n, k].into_iter().any(|extent| extent > MOST) {
        return None;
    }
    let d = Matrices { rows: n, columns: m, leading: n, batch: if batches > 1 { m * n } else { 0 } };
    let [b, a] = [factor(&product.b, Transpose::No)?, factor(&product.a, Transpose::Yes)?];
    let problem = MatmulProblem {
        dtype: product.dtype,
        output: product.dtype,
        precision: match (product.dtype, precision) {
            (DType::F32, Precision::Tf32 | Precision::Reduced) => Precision::Tf32,
            _ => Precision::Exact,
        },
        batches,
        a: b,
        b: a,
        c: d,
        d,
        has_bias: false,
        epilogue: Epilogue::Identity,
        aux: None,
        summed: None,
    };
    let (a, b, y) = (product.b.address, product.a.address, product.y);
    Some(Product { problem, alpha: 1.0, beta: 0.0, a, b, c: y, d: y, bias: 0, aux: 0, sums: 0, workspace: 0 })
}

/// All of a product and this activation in one call of the library, if it can apply all of it.
fn whole(
    product: &matmul::Product,
    activation: Option<Pointwise>,
    sums: Product,
    precision: Precision,
) -> Option<Product> {
    let mut whole = Product { alpha: product.alpha, ..sums };
    let Extents { batches, m, n, .. } = product.e;
    match activation {
        None => {}
        // Libraries approximate it: on an H100, 2.1 units roundoff. Their relu makes 0 of NaN.
        Some(Pointwise::GeluTanh) if is_reduced(product, precision) => {
            whole.problem.epilogue = Epilogue::GeluTanh;
        }
        Some(_) => return None,
    }
    if let Some(z) = product.z {
        if n % 8 != 0 || z % ALIGNMENT != 0 {
            return None;
        }
        (whole.aux, whole.problem.aux) = (z, Some(n));
    }
    if product.beta == 0.0 {
        return Some(whole);
    }
    let (address, [batch, row, column]) = product.c;
    let is_bias = row == 0 && column == 1 && batches == 1 && product.beta == 1.0 && address % ALIGNMENT == 0;
    if is_bias {
        (whole.bias, whole.problem.has_bias) = (address, true);
        return Some(whole);
    }
    let batch = if batches > 1 { batch } else { 0 };
    (whole.c, whole.beta) = (address, product.beta);
    whole.problem.c = matrices([n, m], [column, row], batch).filter(|_| activation.is_none())?;
    Some(whole)
}

/// How the rows `[rows, k]` of a factor are read as `[rows, k]`, or transposed, as `[k, rows]`.
fn factor(side: &Side, transpose: Transpose) -> Option<(Matrices, Transpose)> {
    let [batch, row, k] = side.strides;
    let batch = if side.is_batched { batch } else { 0 };
    let (rows, turned) =
        (matrices([side.rows, side.k], [row, k], batch), matrices([side.k, side.rows], [k, row], batch));
    let [read, other] = match transpose {
        Transpose::No => [rows, turned],
        Transpose::Yes => [turned, rows],
    };
    read.map(|m| (m, Transpose::No)).or(other.map(|m| (m, Transpose::Yes)))
}

/// Matrices of these extents and strides, if the elements of a column are neighbours and columns do not overlap.
fn matrices([rows, columns]: [usize; 2], [row, column]: [usize; 2], batch: usize) -> Option<Matrices> {
    let leading = if columns == 1 { rows } else { column };
    let fits = (rows == 1 || row == 1) && leading >= rows;
    fits.then_some(Matrices { rows, columns, leading, batch })
}

/// The library, if products are to be left to it.
fn library(gpu: &Gpu) -> Option<&dyn Library> {
    let is_off = gpu.is_blas_off.load(Ordering::Relaxed);
    gpu.driver().blas().filter(|_| !is_off)
}

/// Has the library compute a product; false if it has no kernel for it.
fn multiply(gpu: &Gpu, library: &dyn Library, product: Product) -> Result<bool> {
    match Padded::of(gpu, library, &product)? {
        Some(padded) => padded.run(gpu, |product| enqueue(gpu, library, product)),
        None => enqueue(gpu, library, product),
    }
}

/// Enqueues a product as it is; false if the library has no kernel for it.
fn enqueue(gpu: &Gpu, library: &dyn Library, mut product: Product) -> Result<bool> {
    let bytes = library.workspace();
    if bytes > 0 {
        let mut workspace = gpu.workspace.lock();
        if workspace.is_none() {
            *workspace = Some(gpu.scratch(bytes)?);
        }
        product.workspace = workspace.as_ref().map_or(0, |buffer| buffer.address);
    }
    let is_done = library.multiply(&product)?;
    if is_done {
        note(gpu, &product.problem);
    }
    Ok(is_done)
}
