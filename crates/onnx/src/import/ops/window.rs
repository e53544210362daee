//! The windows of convolutions and poolings: their attributes, of one to three dimensions.

use crate::import::call::{Call, misshapen, sizes, unsupported, wrong};
use isograd_core::Result;

/// The windows over the last dimensions of a tensor.
#[derive(Clone, Debug)]
pub struct Windows {
    pub kernel: Vec<usize>,
    pub stride: Vec<usize>,
    pub dilation: Vec<usize>,
    pub low: Vec<usize>,
    pub high: Vec<usize>,
}

/// An array of a list, whose length is known.
pub fn array<const N: usize>(list: &[usize]) -> [usize; N] {
    std::array::from_fn(|d| list[d])
}

/// Calls a function of a constant number of dimensions, from 1 to 3.
macro_rules! of_rank {
    ($rank:expr, $f:ident($($arguments:expr),*)) => {
        match $rank {
            1 => $f::<1>($($arguments),*),
            2 => $f::<2>($($arguments),*),
            3 => $f::<3>($($arguments),*),
            rank => crate::import::call::misshapen(format!("{rank} dimensions of windows, expected 1 to 3")),
        }
    };
}
pub(super) use of_rank;

impl Windows {
    /// The attributes `kernel_shape`, `strides`, `dilations`, `pads` and `auto_pad` for an input with these last extents.
    pub fn of(c: &Call<'_>, extents: &[usize], kernel: Option<Vec<usize>>) -> Result<Windows> {
        let rank = extents.len();
        let list = |name: &str, default: usize| match c.list(name)? {
            Some(list) if list.len() == rank => sizes(&list),
            Some(list) => misshapen(format!("{name} is {list:?} for {rank} dimensions")),
            None => Ok(vec![default; rank]),
        };
        let kernel = match (kernel, c.list("kernel_shape")?) {
            (Some(kernel), None) => kernel,
            (None, None) => return wrong("the attribute kernel_shape is missing"),
            (known, Some(list)) => {
                let list = sizes(&list)?;
                if known.as_ref().is_some_and(|known| *known != list) {
                    return misshapen(format!("kernel_shape is {list:?}, the weight has {known:?}"));
                }
                list
            }
        };
        let (stride, dilation) = (list("strides", 1)?, list("dilations", 1)?);
        if kernel.len() != rank || stride.contains(&0) || kernel.contains(&0) {
            return misshapen(format!("a kernel of {kernel:?} and strides of {stride:?} for {rank} dimensions"));
        }
        let mut windows = Windows { kernel, stride, dilation, low: vec![0; rank], high: vec![0; rank] };
        match c.text("auto_pad", "NOTSET")? {
            "NOTSET" | "" => {
                if let Some(pads) = c.list("pads")? {
                    if pads.len() != 2 * rank {
                        return misshapen(format!("pads is {pads:?} for {rank} dimensions"));
                    }
                    (windows.low, windows.high) = (sizes(&pads[..rank])?, sizes(&pads[rank..])?);
                }
            }
            "VALID" => {}
            side @ ("SAME_UPPER" | "SAME_LOWER") => windows.keep(extents, side == "SAME_UPPER"),
            other => return unsupported(format!("auto_pad {other:?}")),
        }
        Ok(windows)
    }

    pub fn rank(&self) -> usize {
        self.kernel.len()
    }

    /// The elements from the first to the last of a window.
    pub fn span(&self, d: usize) -> usize {
        self.dilation[d].saturating_mul(self.kernel[d] - 1).saturating_add(1)
    }

    /// Pads so that there is a window for each stride of the input.
    fn keep(&mut self, extents: &[usize], is_upper: bool) {
        for (d, &extent) in extents.iter().enumerate() {
            let outputs = extent.div_ceil(self.stride[d]);
            let reach = outputs.saturating_sub(1).saturating_mul(self.stride[d]).saturating_add(self.span(d));
            let total = reach.saturating_sub(extent);
            let (less, more) = (total / 2, total - total / 2);
            (self.low[d], self.high[d]) = if is_upper { (less, more) } else { (more, less) };
        }
    }

    /// The pads as the ends of the last dimensions.
    pub fn ends(&self) -> Vec<[isize; 2]> {
        self.low.iter().zip(&self.high).map(|(&low, &high)| [low as isize, high as isize]).collect()
    }
}
