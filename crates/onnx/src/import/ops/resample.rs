//! The weights of a dimension that is resized: from places of results to places of elements.

/// The place of a result among the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coordinates {
    HalfPixel,
    HalfPixelSymmetric,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
    TfHalfPixel,
    CropAndResize,
}

/// The element that is nearest to a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nearest {
    PreferFloor,
    PreferCeil,
    Floor,
    Ceil,
}

/// The elements of which a result consists.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Filter {
    Nearest(Nearest),
    Linear,
    /// With the coefficient a. Keys 1981.
    Cubic(f64),
}

/// The options of a dimension.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    pub filter: Filter,
    pub coordinates: Coordinates,
    /// The filter is as wide as results are apart.
    pub antialias: bool,
    /// Elements outside of the input are left out; otherwise they are copies of the edge.
    pub excludes_outside: bool,
    /// The result of places outside of the input.
    pub extrapolated: Option<f64>,
}

impl Axis {
    /// The place of result `i`.
    fn place(&self, i: usize, from: usize, to: usize, factor: f64, [start, end]: [f64; 2]) -> f64 {
        let (i, from, width) = (i as f64, from as f64, factor * from as f64);
        let half = (i + 0.5) / factor - 0.5;
        match self.coordinates {
            Coordinates::HalfPixel => half,
            Coordinates::PytorchHalfPixel => {
                if to > 1 {
                    half
                } else {
                    -0.5
                }
            }
            Coordinates::HalfPixelSymmetric => from / 2.0 * (1.0 - to as f64 / width) + half,
            Coordinates::AlignCorners => {
                if width == 1.0 {
                    0.0
                } else {
                    i * (from - 1.0) / (width - 1.0)
                }
            }
            Coordinates::Asymmetric => i / factor,
            Coordinates::TfHalfPixel => (i + 0.5) / factor,
            Coordinates::CropAndResize if to > 1 => {
                start * (from - 1.0) + i * (end - start) * (from - 1.0) / (to as f64 - 1.0)
            }
            Coordinates::CropAndResize => 0.5 * (start + end) * (from - 1.0),
        }
    }

    fn is_outside(&self, place: f64, from: usize) -> bool {
        self.extrapolated.is_some() && !(0.0..=from as f64 - 1.0).contains(&place)
    }

    /// For each result the place of an element, and whether it is outside.
    pub fn places(&self, from: usize, to: usize, factor: f64, region: [f64; 2]) -> (Vec<i64>, Vec<bool>) {
        let last = from.max(1) as i64 - 1;
        let of = |i: usize| {
            let place = self.place(i, from, to, factor, region);
            let nearest = match self.filter {
                Filter::Nearest(Nearest::PreferFloor) => (place - 0.5).ceil(),
                Filter::Nearest(Nearest::Ceil) => place.ceil(),
                Filter::Nearest(Nearest::PreferCeil) => (place + 0.5).floor(),
                _ => place.floor(),
            };
            ((nearest as i64).clamp(0, last), self.is_outside(place, from))
        };
        (0..to).map(of).unzip()
    }

    /// The matrix `[to, from]` of weights, and which results are outside.
    pub fn matrix(&self, from: usize, to: usize, factor: f64, region: [f64; 2]) -> (Vec<f64>, Vec<bool>) {
        let mut weights = vec![0.0; to.saturating_mul(from)];
        let mut outside = vec![false; to];
        for i in 0..to {
            let place = self.place(i, from, to, factor, region);
            outside[i] = self.is_outside(place, from);
            let row = &mut weights[i * from..(i + 1) * from];
            let taps = self.taps(place, factor);
            let is_inside = |at: i64| (0..from as i64).contains(&at);
            let used = taps.iter().filter(|(at, _)| !self.excludes_outside || is_inside(*at));
            let sum: f64 = used.clone().map(|(_, weight)| weight).sum();
            let divisor = if self.excludes_outside || self.antialias { sum } else { 1.0 };
            for (at, weight) in used {
                row[(*at).clamp(0, from as i64 - 1) as usize] += weight / divisor;
            }
        }
        (weights, outside)
    }

    /// The places of elements and their weights.
    fn taps(&self, place: f64, factor: f64) -> Vec<(i64, f64)> {
        let (reach, kernel): (f64, &dyn Fn(f64) -> f64) = match self.filter {
            Filter::Cubic(a) => (2.0, &move |v| cubic(v, a)),
            _ => (1.0, &|v: f64| (1.0 - v.abs()).max(0.0)),
        };
        let scale = if self.antialias { factor.min(1.0) } else { 1.0 };
        let (floor, ratio) = (place.floor(), place - place.floor());
        let start = (-reach / scale).floor() as i64 + 1;
        (start..2 - start).map(|k| (floor as i64 + k, kernel((k as f64 - ratio) * scale))).collect()
    }
}

/// The cubic convolution of Keys 1981.
fn cubic(v: f64, a: f64) -> f64 {
    let v = v.abs();
    match v {
        v if v < 1.0 => ((a + 2.0) * v - (a + 3.0)) * v * v + 1.0,
        v if v < 2.0 => ((a * v - 5.0 * a) * v + 8.0 * a) * v - 4.0 * a,
        _ => 0.0,
    }
}
