//! An index and its target, for the kernels that include `index.h`.

use crate::driver::Geometry;
use crate::launch::device::Gpu;
use crate::launch::grid::in_groups;
use crate::launch::integers::Integers;
use crate::launch::layout::Joint;
use crate::launch::words;
use crate::launch::words::{divider, widest};
use crate::memory::status::Slot;
use crate::program::source::Variant;
use isograd_core::backend::index_error;
use isograd_core::{DType, Layout, Operand, Result};
use smallvec::SmallVec;

pub type Strides = SmallVec<[usize; 8]>;
/// A program, and the extents and strides of its kernel.
pub type Program = (Variant, Integers);
/// The names of [`Indexed::outer`], for [`named`].
pub const OUTER: &[&str] = &["ROW_SPACE", "INDEX_STRIDES", "Y_STRIDES", "SOURCE_STRIDES"];

/// An index and its target: the table of a gather, the result of a scatter.
pub struct Indexed<'a> {
    pub index: &'a Operand<'a>,
    pub dim: usize,
    /// The number of leading dimensions along which the index varies. Their elements are the index's rows.
    pub rank: usize,
    pub rows: usize,
    /// Strides of the target, 0 along the indexed dimension. The stride and extent of that dimension follow.
    pub target: Strides,
    pub along: usize,
    pub extent: usize,
    /// Strides of the source of a scatter.
    pub source: Option<Strides>,
    /// Elements of a word. Extents and strides along the last dimension are counted in words.
    pub vector: usize,
    /// Words of a row.
    pub width: usize,
    /// Threads of a group.
    pub threads: usize,
}

impl<'a> Indexed<'a> {
    pub fn new(
        index: &'a Operand<'a>,
        target: &Layout,
        source: Option<&Layout>,
        dim: usize,
        threads: usize,
    ) -> Indexed<'a> {
        let (dims, steps) = (index.layout.shape().dims(), index.layout.strides());
        let still = (dim + 1..dims.len()).rev().take_while(|&d| steps[d] == 0 || dims[d] == 1).count();
        let rank = dims.len() - still;
        let mut strides = Strides::from_slice(target.strides());
        let along = std::mem::take(&mut strides[dim]);
        Indexed {
            index,
            dim,
            rank,
            rows: dims[..rank].iter().product(),
            target: strides,
            along,
            extent: target.shape()[dim],
            source: source.map(|layout| Strides::from_slice(layout.strides())),
            vector: 1,
            width: dims[rank..].iter().product(),
            threads,
        }
    }

    /// Counts elements in the widest words that divide rows. `starts` are the addresses of the source and the target.
    pub fn in_words(mut self, size: usize, starts: [u64; 2]) -> Indexed<'a> {
        let inner = self.inner();
        if inner.rank() != 1 || inner.strides.iter().any(|s| s[0] != 1) {
            return self;
        }
        let dims = self.index.layout.shape().dims();
        // The steps between rows. A dimension of size 1 has none.
        let of_rows = |s: &Strides| (0..self.rank).filter(|&d| dims[d] != 1).map(|d| s[d]).collect::<Strides>();
        let mut steps: Strides = self.source.iter().chain([&self.target]).flat_map(of_rows).collect();
        steps.extend([self.along, self.width]);
        let vector = widest(16 / size, steps, starts.map(|start| (start, size)));
        self.vector = vector;
        self.width /= vector;
        self.along /= vector;
        for strides in self.source.iter_mut().chain([&mut self.target]) {
            strides[..self.rank].iter_mut().for_each(|s| *s /= vector);
        }
        self
    }

    /// The index's rows, and along them the strides of the index, the target and the source.
    pub fn outer(&self) -> Joint {
        let operands = [self.index.layout.strides(), &self.target[..]].into_iter().chain(self.source.as_deref());
        self.joint(operands.map(|s| &s[..self.rank]))
    }

    pub fn joint<'b>(&self, operands: impl Iterator<Item = &'b [usize]>) -> Joint {
        Joint::of(&self.index.layout.shape().dims()[..self.rank], operands).at_least_one()
    }

    /// The elements of a row, and the strides of the target and the source along them.
    pub fn inner(&self) -> Joint {
        let operands = [&self.target].into_iter().chain(&self.source).map(|s| &s[self.rank..]);
        let mut inner = Joint::of(&self.index.layout.shape().dims()[self.rank..], operands).at_least_one();
        if self.vector > 1 {
            inner.extents[0] = self.width;
        }
        inner
    }

    /// The program of a file for these rows, whose extents and strides have names.
    pub fn variant(&self, file: &'static str, outer: &Joint, names: &[&'static str], is_wide: bool) -> Program {
        let inner = self.inner();
        let integers =
            named(outer, names).and(&named(&inner, &["WORD_SPACE", "Y_WORD_STRIDES", "SOURCE_WORD_STRIDES"]));
        let variant = Variant::new(file)
            .define("THREADS", self.threads)
            .define("I", self.index.dtype)
            .define("ROWS", outer.rank())
            .define("INNER", inner.rank())
            .flag("WIDE", is_wide);
        (variant, integers)
    }

    pub fn each(&self, n: usize) -> Geometry {
        in_groups(n, self.threads)
    }

    /// The width of a row with its divider, and the stride and extent of the indexed dimension.
    pub fn reach(&self) -> [usize; 4] {
        [self.width, divider(self.width), self.along, self.extent]
    }

    /// Ends a call that has looked at the index.
    pub fn check(&self, gpu: &Gpu, op: &'static str, slot: Slot) -> Result<()> {
        check(gpu, op, slot, (self.index, self.rank), self.extent)
    }
}

/// Ends a call that has looked at the first `rank` dimensions of an index into `extent` elements.
pub fn check(
    gpu: &Gpu,
    op: &'static str,
    slot: Slot,
    (index, rank): (&Operand<'_>, usize),
    extent: usize,
) -> Result<()> {
    gpu.checked(slot, |position| {
        let value = gpu.element(index, rank, position)?.as_i64()?;
        Ok(index_error(op, position as i64, value, extent))
    })
}

/// Dimensions as the kernels' `WALK` takes them, by the names of the space and of the strides of each operand.
pub fn named(joint: &Joint, names: &[&'static str]) -> Integers {
    let (extents, dividers) = (joint.extents.iter().copied(), joint.extents.iter().map(|&d| divider(d)));
    let strides = names[1..].iter().zip(&joint.strides);
    let space = Integers::new().list(names[0], extents.chain(dividers));
    strides.fold(space, |all, (name, strides)| all.list(name, strides.iter().copied()))
}

/// The bits of an element that is read by a bad index: NaN, or 0.
pub fn bad(dtype: DType) -> i64 {
    match dtype {
        DType::F64 => f64::NAN.to_bits() as i64,
        DType::F32 => f32::NAN.to_bits() as i64,
        DType::F16 => 0x7e00,
        DType::BF16 => 0x7fc0,
        _ => 0,
    }
}

/// Whether positions in an operand need more than 32 bits.
pub fn is_wide(operands: &[&Operand<'_>]) -> bool {
    operands.iter().any(|o| words::is_wide(o.layout.end().max(o.layout.shape().numel())))
}

/// Adds the words in which counts and positions, of `elements` elements, are read and written.
pub fn with_words(variant: Variant, elements: usize) -> Variant {
    variant
        .in_pieces(["COUNT_WORD", "COUNT_WORDS"], 4 * elements)
        .in_pieces(["FIRST_WORD", "FIRST_WORDS"], 8 * elements)
}
