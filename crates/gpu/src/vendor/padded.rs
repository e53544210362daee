//! Products of 16-bit matrices whose columns have no whole words, on copies that zeros extend. A library's fast kernels need whole words.

use crate::driver::Address;
use crate::driver::blas::{Library, Matrices, Product};
use crate::launch::device::Gpu;
use crate::launch::pitch::{Pitched, copy};
use crate::memory::pool::Buffer;
use isograd_core::Result;
use isograd_core::ops::Transpose;
use smallvec::SmallVec;

/// The fewest multiplications for each element that is copied. An H200 makes some 110 products of 10^12 numbers each second from matrices
/// without whole words, 700 from others, and copies 10^12 elements: a copy pays from some 70 on.
const LEAST_USES: usize = 128;
/// Bytes of an element.
const SIZE: usize = 2;

/// A product on copies.
pub(super) struct Padded {
    product: Product,
    /// Copies of the factors and of the bias.
    read: SmallVec<[Copied; 3]>,
    /// The copy of the result, which is copied back.
    written: Option<Copied>,
}

impl Padded {
    /// None for a product whose matrices have whole words, or whose copies would cost more than they gain.
    pub fn of(gpu: &Gpu, library: &dyn Library, product: &Product) -> Result<Option<Padded>> {
        let (problem, unit) = (&product.problem, library.pitch() / SIZE);
        let is_plain = problem.batches == 1 && product.beta == 0.0 && problem.aux.is_none() && problem.summed.is_none();
        if unit <= 1 || !is_plain || problem.dtype.size() != SIZE || problem.output.size() != SIZE {
            return Ok(None);
        }
        let ((a, of_a), (b, of_b), d) = (problem.a, problem.b, problem.d);
        let k = if of_a == Transpose::Yes { a.rows } else { a.columns };
        // An extent is rounded where it is that of a column.
        let rounded = |extent: usize, is_rows| if is_rows { extent.next_multiple_of(unit) } else { extent };
        let m = d.rows.next_multiple_of(unit);
        let inner = rounded(k, of_a == Transpose::Yes || of_b == Transpose::No);
        let n = rounded(d.columns, of_b == Transpose::Yes);
        let turned = |[rows, columns]: [usize; 2], transpose| match transpose {
            Transpose::Yes => [columns, rows],
            Transpose::No => [rows, columns],
        };
        let bias = Matrices { columns: 1, leading: d.rows, ..d };
        let moves = [
            Move::of(product.a, a, turned([m, inner], of_a), unit),
            Move::of(product.b, b, turned([inner, n], of_b), unit),
            Move::of(product.d, d, [m, n], unit),
            if problem.has_bias { Move::of(product.bias, bias, [m, 1], unit) } else { None },
        ];
        let elements: usize = moves.iter().flatten().map(|of| of.there.leading * of.there.columns).sum();
        if elements == 0 || elements.saturating_mul(LEAST_USES) > d.rows * d.columns * k {
            return Ok(None);
        }
        let mut product = *product;
        let (mut read, mut written) = (SmallVec::new(), None);
        for (i, of) in moves.into_iter().enumerate() {
            let Some(of) = of else { continue };
            let place = gpu.scratch(of.there.leading * of.there.columns * SIZE)?;
            let Product { problem, a, b, c, d, bias, .. } = &mut product;
            match i {
                0 => (*a, problem.a.0) = (place.address, of.there),
                1 => (*b, problem.b.0) = (place.address, of.there),
                2 => (*d, *c, problem.d, problem.c) = (place.address, place.address, of.there, of.there),
                _ => *bias = place.address,
            }
            let copied = Copied { of, place };
            if i == 2 { written = Some(copied) } else { read.push(copied) }
        }
        // A result that stays where it is has the rounded extents already.
        Ok(library.has(&product)?.then_some(Padded { product, read, written }))
    }

    /// Calls `multiply` with the product on copies. False if `multiply` returns false.
    pub fn run(self, gpu: &Gpu, multiply: impl FnOnce(Product) -> Result<bool>) -> Result<bool> {
        for Copied { of, place } in &self.read {
            copy(gpu, SIZE, [of.address, place.address], [of.here, of.there].map(pitched))?;
        }
        if !multiply(self.product)? {
            return Ok(false);
        }
        if let Some(Copied { of, place }) = &self.written {
            let from = Matrices { rows: of.here.rows, columns: of.here.columns, ..of.there };
            copy(gpu, SIZE, [place.address, of.address], [from, of.here].map(pitched))?;
        }
        Ok(true)
    }
}

/// The columns of a matrix, as rows.
fn pitched(matrices: Matrices) -> Pitched {
    Pitched { rows: matrices.columns, columns: matrices.rows, pitch: matrices.leading }
}

/// A matrix, and its copy.
struct Copied {
    of: Move,
    place: Buffer,
}

/// A matrix as it lies, and as it lies in its copy.
struct Move {
    address: Address,
    here: Matrices,
    there: Matrices,
}

impl Move {
    /// None for a matrix of these extents already, whose columns begin at words.
    fn of(address: Address, here: Matrices, [rows, columns]: [usize; 2], unit: usize) -> Option<Move> {
        let has_words = here.columns == 1 || here.leading.is_multiple_of(unit);
        let is_aligned = address.is_multiple_of((unit * SIZE) as Address);
        let stays = [here.rows, here.columns] == [rows, columns] && has_words && is_aligned;
        let there = Matrices { rows, columns, leading: rows.next_multiple_of(unit), batch: 0 };
        (!stays).then_some(Move { address, here, there })
    }
}
