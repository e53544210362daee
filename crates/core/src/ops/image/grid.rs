//! Images and volumes sampled at the points of a grid.

use crate::check::{check_float, check_same, describe};
use crate::ops::{in_acc, in_acc_of, named};
use crate::tape::is_recording;
use crate::{DType, Error, Result, Shape, Tensor, autocast, no_grad};

/// The value between the elements of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GridMode {
    /// On the lines between the nearest two elements along each dimension.
    #[default]
    Linear,
    /// That of the nearest element; halves are rounded to even positions.
    Nearest,
    /// The cubic convolution of four elements along each of two dimensions, Keys 1981 with `a = -0.75`.
    Cubic,
}

/// The value outside of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GridPadding {
    /// 0.
    #[default]
    Zeros,
    /// That of the nearest element.
    Border,
    /// The image mirrored at its edges.
    Reflection,
}

/// The points of an image that have the coordinates -1 and 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GridEnds {
    /// The outer edges of the first and last elements.
    #[default]
    Edges,
    /// Their centers: PyTorch's `align_corners`.
    Centers,
}

/// The options of [`Tensor::grid_sample`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GridSample {
    /// The value between elements.
    pub mode: GridMode,
    /// The value outside of the image.
    pub padding: GridPadding,
    /// The points with the coordinates -1 and 1.
    pub ends: GridEnds,
}

/// The elements that points read along a dimension.
struct Tap {
    /// Their positions (i64, `[N, P]`), inside of the image.
    at: Tensor,
    /// Their weights `[N, P]`; `None` if these are 1.
    weight: Option<Tensor>,
}

/// # Sampling at a grid
impl Tensor {
    /// The values of images `[N, C, H, W]` at points `[N, h, w, 2]`, whose coordinates (x along W, then y along H) are -1 to 1:
    /// `[N, C, h, w]`; or of volumes `[N, C, D, H, W]` at points `[N, d, h, w, 3]`: `[N, C, d, h, w]`. Points that are not finite are
    /// outside of the image. Gradients of both; that of a point is 0 for the nearest element, and where a point is moved to the edge.
    /// Float dtypes. Jaderberg et al. 2015, arXiv 1506.02025.
    ///
    /// Errors: `Dtype`; `Shape` for other shapes, or images without elements; `Attr` for cubic values of volumes.
    pub fn grid_sample(&self, grid: &Tensor, options: &GridSample) -> Result<Tensor> {
        let op = "grid_sample";
        if let Some(([x, grid], _)) = autocast::wide([self, grid], None)? {
            return x.grid_sample(&grid, options);
        }
        check_float(op, self)?;
        check_same(op, &[self, grid])?;
        let n = self.rank().saturating_sub(2);
        let fits = (n == 2 || n == 3)
            && grid.rank() == n + 2
            && grid.dims()[n + 1] == n
            && grid.dims()[0] == self.dims()[0]
            && self.dims()[1..].iter().all(|&extent| extent > 0);
        if !fits {
            let expected = "[N, C, H, W] and [N, h, w, 2], or [N, C, D, H, W] and [N, d, h, w, 3]";
            return Err(Error::shape(op, format!("got {}, expected {expected}", describe(&[self, grid]))));
        }
        if options.mode == GridMode::Cubic && n == 3 {
            return Err(Error::attr(op, "cubic values are for images, not for volumes"));
        }
        let to = Shape::from([&self.dims()[..2], &grid.dims()[1..=n]].concat());
        if to.numel() == 0 {
            return named(op, &[self, grid], || self.sum(..)?.add(&grid.sum(..)?)?.mul_scalar(0.0)?.broadcast_to(&to));
        }
        named(op, &[self, grid], || in_acc_of(op, [self, grid], |[x, grid]| options.sample(x, grid)?.reshape(&to)))
    }

    /// The points at which images are sampled for affine maps `theta: [N, 2, 3]`, and `size` `[h, w]`: `[N, h, w, 2]`; or for
    /// `[N, 3, 4]` and `[d, h, w]`: `[N, d, h, w, 3]`. The last column of a map is its translation. `ends` are as for
    /// [`grid_sample`](Tensor::grid_sample). Float dtypes. Errors: `Dtype`, `Shape`.
    pub fn affine_grid(&self, size: &[usize], ends: GridEnds) -> Result<Tensor> {
        let op = "affine_grid";
        check_float(op, self)?;
        let n = size.len();
        if !(2..=3).contains(&n) || self.rank() != 3 || self.dims()[1..] != [n, n + 1] {
            let message = format!("got {} and the size {size:?}", describe(&[self]));
            return Err(Error::shape(
                op,
                format!("{message}, expected [N, 2, 3] and two extents, or [N, 3, 4] and three"),
            ));
        }
        named(op, &[self], || in_acc(self, |theta| theta.affine_grid_of(size, ends)))
    }

    /// [`affine_grid`](Tensor::affine_grid) of checked operands, in the accumulation dtype.
    fn affine_grid_of(&self, size: &[usize], ends: GridEnds) -> Result<Tensor> {
        let (n, shape) = (size.len(), Shape::from(size.to_vec()));
        shape.check("affine_grid")?;
        let along = |d: usize| {
            let extent = size[d];
            let end = match ends {
                GridEnds::Edges => 1.0 - 1.0 / extent.max(1) as f64,
                GridEnds::Centers => 1.0,
            };
            let (first, last) = if extent == 1 { (0.0, 0.0) } else { (-end, end) };
            let mut dims = vec![1; n];
            dims[d] = extent;
            Tensor::linspace(first, last, extent, self.dtype(), self.device())?.reshape(dims)?.broadcast_to(&shape)
        };
        // Coordinates begin with the last dimension.
        let mut parts = (0..n).rev().map(along).collect::<Result<Vec<_>>>()?;
        parts.push(Tensor::ones(&shape, self.dtype(), self.device())?);
        let points = Tensor::stack(&parts.iter().collect::<Vec<_>>(), -1)?.reshape((shape.numel(), n + 1))?;
        let maps = self.contiguous()?.t()?;
        let grid = points.unsqueeze(0)?.broadcast_to((self.dims()[0], shape.numel(), n + 1))?.matmul(&maps)?;
        grid.reshape(Shape::from([&[self.dims()[0]], size, &[n]].concat()))
    }
}

impl GridSample {
    /// `[N, C, P]` for images `[N, C, ..]` and points `[N, .., n]`.
    fn sample(self, x: &Tensor, grid: &Tensor) -> Result<Tensor> {
        let n = x.rank() - 2;
        let (batch, channels, extents) = (x.dims()[0], x.dims()[1], x.dims()[2..].to_vec());
        let points = grid.numel() / n / batch;
        let grid = grid.reshape((batch, points, n))?;
        let taps = |d: usize| self.taps(&grid.select(2, (n - 1 - d) as isize)?, extents[d]);
        let taps = (0..n).map(taps).collect::<Result<Vec<Vec<Tap>>>>()?;
        sum_of_taps(&x.reshape((batch, channels, extents.iter().product::<usize>()))?, &taps, &extents)
    }

    /// The elements that coordinates `[N, P]` read along a dimension.
    fn taps(self, coordinate: &Tensor, extent: usize) -> Result<Vec<Tap>> {
        // Positions of elements are those of their centers.
        let half = extent as f64 / 2.0;
        let place = match self.ends {
            GridEnds::Centers => coordinate.add_scalar(1.0)?.mul_scalar((extent as f64 - 1.0) / 2.0)?,
            GridEnds::Edges => coordinate.add_scalar(1.0)?.mul_scalar(half)?.sub_scalar(0.5)?,
        };
        self.taps_at(&place, extent)
    }

    /// The elements that places `[N, P]` read along a dimension; those of elements are their indices.
    fn taps_at(self, place: &Tensor, extent: usize) -> Result<Vec<Tap>> {
        let place = place.isfinite()?.where_scalar(place, OUTSIDE)?;
        match self.mode {
            GridMode::Nearest => {
                let nearest = no_grad(|| self.inside(&place.detach(), extent)?.round())?;
                // The gradient of a point is 0.
                let weight = is_recording(&[&place]).then(|| place.mul_scalar(0.0)?.add_scalar(1.0)).transpose()?;
                Ok(vec![self.tap(&nearest, weight, extent)?])
            }
            GridMode::Linear => {
                let place = self.inside(&place, extent)?;
                let first = no_grad(|| place.detach().floor())?;
                let t = place.sub(&first)?;
                let second = no_grad(|| first.add_scalar(1.0))?;
                Ok(vec![self.tap(&first, Some(t.rsub_scalar(1.0)?), extent)?, self.tap(&second, Some(t), extent)?])
            }
            GridMode::Cubic => {
                let first = no_grad(|| place.detach().floor())?;
                let t = place.sub(&first)?;
                let each = |(k, weight): (usize, Tensor)| {
                    let place = no_grad(|| self.inside(&first.add_scalar(k as f64 - 1.0)?, extent))?;
                    self.tap(&no_grad(|| place.round())?, Some(weight), extent)
                };
                cubic_of(&t)?.into_iter().enumerate().map(each).collect()
            }
        }
    }

    /// Positions that the padding moves into the image; others stay.
    fn inside(self, place: &Tensor, extent: usize) -> Result<Tensor> {
        let last = extent as f64 - 1.0;
        let clipped = |place: &Tensor| place.clamp(Some(0.0.into()), Some(last.into()));
        match self.padding {
            GridPadding::Zeros => Ok(place.clone()),
            GridPadding::Border => clipped(place),
            GridPadding::Reflection => {
                let (low, span) = match self.ends {
                    GridEnds::Edges => (-0.5, extent as f64),
                    GridEnds::Centers => (0.0, last),
                };
                if span == 0.0 {
                    return place.mul_scalar(0.0);
                }
                let distance = place.sub_scalar(low)?.abs()?;
                let (flips, is_even) = no_grad(|| {
                    let flips = distance.detach().div_scalar(span)?.floor()?;
                    let is_even = flips.mul_scalar(0.5)?.floor()?.mul_scalar(2.0)?.eq(&flips)?;
                    Ok::<_, Error>((flips, is_even))
                })?;
                let over = distance.sub(&flips.mul_scalar(span)?)?;
                clipped(&is_even.where_cond(&over, &over.rsub_scalar(span)?)?.add_scalar(low)?)
            }
        }
    }

    /// The element at whole positions; outside of the image its weight is 0.
    fn tap(self, place: &Tensor, weight: Option<Tensor>, extent: usize) -> Result<Tap> {
        let last = extent as f64 - 1.0;
        let at = no_grad(|| place.detach().clamp(Some(0.0.into()), Some(last.into()))?.cast(DType::I64))?;
        let weight = match self.padding {
            GridPadding::Zeros => {
                let is_inside = place.ge_scalar(0.0)?.logical_and(&place.le_scalar(last)?)?;
                let weight = weight.map_or_else(|| place.detach().ones_like(), Ok)?;
                Some(is_inside.where_scalar(&weight, 0.0)?)
            }
            _ => weight,
        };
        Ok(Tap { at, weight })
    }
}

/// The sums `[N, C, P]` over the elements of rows `[N, C, positions]` that points read, with their weights. There are taps along each
/// dimension of the positions, which has one of the extents.
fn sum_of_taps(rows: &Tensor, taps: &[Vec<Tap>], extents: &[usize]) -> Result<Tensor> {
    let (batch, channels, points) = (rows.dims()[0], rows.dims()[1], taps[0][0].at.dims()[1]);
    let mut sum: Option<Tensor> = None;
    let count: usize = taps.iter().map(Vec::len).product();
    for number in 0..count {
        let (mut rest, mut at, mut weight): (usize, Option<Tensor>, Option<Tensor>) = (number, None, None);
        for (taps, &extent) in taps.iter().zip(extents) {
            let tap = &taps[rest % taps.len()];
            rest /= taps.len();
            at = Some(match at {
                Some(at) => at.mul_scalar(extent as i64)?.add(&tap.at)?,
                None => tap.at.clone(),
            });
            weight = match (weight, &tap.weight) {
                (Some(a), Some(b)) => Some(a.mul(b)?),
                (a, b) => a.or(b.clone()),
            };
        }
        let at = at.ok_or_else(|| Error::shape("grid_sample", "no dimensions"))?;
        let index = at.unsqueeze(1)?.broadcast_to((batch, channels, points))?;
        let values = rows.gather(2, &index)?;
        let term = match weight {
            Some(weight) => values.mul(&weight.unsqueeze(1)?)?,
            None => values,
        };
        sum = Some(match sum {
            Some(sum) => sum.add(&term)?,
            None => term,
        });
    }
    sum.ok_or_else(|| Error::shape("grid_sample", "no elements"))
}

/// The values of rows `[N, C, positions]` at places `[N, P]` along each dimension of the positions, which has one of the extents: linear
/// between elements, and 0 outside. `[N, C, P]`.
pub(in crate::ops) fn linear_samples(rows: &Tensor, places: &[Tensor], extents: &[usize]) -> Result<Tensor> {
    let taps = |(place, &extent)| GridSample::default().taps_at(place, extent);
    let taps = places.iter().zip(extents).map(taps).collect::<Result<Vec<_>>>()?;
    sum_of_taps(rows, &taps, extents)
}

/// A position outside of every image, and outside of the reach of its edge.
const OUTSIDE: f64 = -100.0;

/// The weights of four elements around a position, which is t after the second: the cubic convolution at distances `t + 1`, `t`, `1 - t`
/// and `2 - t`, as polynomials of t, highest power first.
const CUBIC: [[f64; 4]; 4] =
    [[A, -2.0 * A, A, 0.0], [A + 2.0, -A - 3.0, 0.0, 1.0], [-A - 2.0, 2.0 * A + 3.0, -A, 0.0], [-A, A, 0.0, 0.0]];
const A: f64 = -0.75;

fn cubic_of(t: &Tensor) -> Result<Vec<Tensor>> {
    let polynomial =
        |c: [f64; 4]| t.mul_scalar(c[0])?.add_scalar(c[1])?.mul(t)?.add_scalar(c[2])?.mul(t)?.add_scalar(c[3]);
    CUBIC.into_iter().map(polynomial).collect()
}
