//! Printing of tensors: dtype, shape and device, then the elements in brackets, as in PyTorch.

use crate::capture::check_wait;
use crate::{DType, Element, Result, Tensor, bf16, f16, no_grad};
use std::fmt;

/// The format of [`Tensor::display`]; the default is PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct PrintOptions {
    /// Digits after the decimal point of a float: 4.
    pub precision: usize,
    /// The notation of floats.
    pub notation: Notation,
    /// The largest number of elements for which all are printed: 1000.
    pub threshold: usize,
    /// Elements printed at each end of a dimension of a larger tensor: 3.
    pub edge_items: usize,
    /// Characters of a line, after which a row continues on the next: 80.
    pub line_width: usize,
}

/// The notation of floats: with an exponent, as `1.0000e-08`, or without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Notation {
    /// With an exponent if an element is above 1e8, if a non-integer is below 1e-4, or if the largest is more than 1000 times the
    /// smallest.
    #[default]
    Auto,
    /// Without an exponent.
    Fixed,
    /// With an exponent.
    Scientific,
}

impl Default for PrintOptions {
    fn default() -> PrintOptions {
        PrintOptions { precision: 4, notation: Notation::Auto, threshold: 1000, edge_items: 3, line_width: 80 }
    }
}

/// # Printing
impl Tensor {
    /// The tensor, printed with these options. Printing waits for the device, and reads only the printed elements. For a tensor
    /// that cannot be read, it prints the reason.
    ///
    /// ```
    /// # use isograd_core::{PrintOptions, Result, Tensor};
    /// # fn example(x: &Tensor) {
    /// println!("{x} and, with two digits, {x:.2}");
    /// println!("{}", x.display(&PrintOptions { edge_items: 5, ..PrintOptions::default() }));
    /// # }
    /// ```
    pub fn display(&self, options: &PrintOptions) -> impl fmt::Display + use<> {
        Displayed { tensor: self.clone(), options: *options }
    }
}

impl fmt::Display for Tensor {
    /// Prints as [`Tensor::display`] does. A precision (`{:.2}`) sets `precision` of the options.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = PrintOptions::default();
        let options = PrintOptions { precision: f.precision().unwrap_or(default.precision), ..default };
        self.display(&options).fmt(f)
    }
}

impl fmt::Debug for Tensor {
    /// Dtype, shape and device, without the elements: a layer prints its shapes, and nothing waits for the device.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} on {}", self.dtype(), self.shape(), self.device())
    }
}

struct Displayed {
    tensor: Tensor,
    options: PrintOptions,
}

impl fmt::Display for Displayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = &self.tensor;
        write!(f, "{t:?}")?;
        match elements(t, &self.options) {
            Ok(elements) => write!(f, "\n{elements}"),
            Err(error) => write!(f, " (not readable: {})", error.message()),
        }
    }
}

fn elements(t: &Tensor, options: &PrintOptions) -> Result<String> {
    // Before any launch, which a captured step would record.
    check_wait("display")?;
    if t.numel() == 0 {
        return Ok("[]".into());
    }
    let (shown, is_cut) = no_grad(|| ends(t, options))?;
    let texts = texts(&shown, options)?;
    let width = texts.iter().map(String::len).max().unwrap_or(0);
    Ok(Block { dims: shown.dims(), is_cut: &is_cut, width, options }.text(&texts, 0))
}

/// The first and the last elements of each dimension, and a flag for each dimension whose middle is omitted.
fn ends(t: &Tensor, options: &PrintOptions) -> Result<(Tensor, Vec<bool>)> {
    let n = options.edge_items;
    let is_long = t.numel() > options.threshold;
    let is_cut: Vec<bool> = t.dims().iter().map(|&extent| is_long && extent > 2 * n).collect();
    let mut shown = t.detach();
    for (d, &extent) in t.dims().iter().enumerate().filter(|(d, _)| is_cut[*d]) {
        let [first, last] = [0, extent - n].map(|start| shown.narrow(d as isize, start, n));
        shown = Tensor::concat(&[&first?, &last?], d as isize)?;
    }
    Ok((shown, is_cut))
}

/// The text of each element.
fn texts(t: &Tensor, options: &PrintOptions) -> Result<Vec<String>> {
    fn all<T: Element>(t: &Tensor, text: impl Fn(&T) -> String) -> Result<Vec<String>> {
        Ok(t.to_vec::<T>()?.iter().map(text).collect())
    }
    match t.dtype() {
        DType::I64 => all::<i64>(t, i64::to_string),
        DType::I32 => all::<i32>(t, i32::to_string),
        DType::U8 => all::<u8>(t, u8::to_string),
        DType::Bool => all::<bool>(t, bool::to_string),
        _ => {
            let values = floats(t)?;
            let format = NumberFormat::of(&values, options);
            Ok(values.iter().map(|&v| format.text(v, options.precision)).collect())
        }
    }
}

/// The elements of a float tensor, converted on the host.
fn floats(t: &Tensor) -> Result<Vec<f64>> {
    Ok(match t.dtype() {
        DType::F32 => t.to_vec::<f32>()?.into_iter().map(f64::from).collect(),
        DType::F16 => t.to_vec::<f16>()?.into_iter().map(f64::from).collect(),
        DType::BF16 => t.to_vec::<bf16>()?.into_iter().map(f64::from).collect(),
        _ => t.to_vec::<f64>()?,
    })
}

/// The notation of all floats of a tensor.
#[derive(Clone, Copy, PartialEq)]
enum NumberFormat {
    /// `3.`
    Integer,
    /// `3.1416`
    Fixed,
    /// `3.1416e+00`
    Scientific,
}

impl NumberFormat {
    /// PyTorch's choice, from the finite values other than 0.
    fn of(values: &[f64], options: &PrintOptions) -> NumberFormat {
        let sizes = values.iter().map(|v| v.abs()).filter(|v| v.is_finite() && *v != 0.0);
        let (low, high) = sizes.clone().fold((f64::INFINITY, 0f64), |(low, high), v| (low.min(v), high.max(v)));
        let is_whole = sizes.clone().all(|v| v.fract() == 0.0);
        let is_wide = high / low > 1000.0 || high > 1e8 || (!is_whole && low < 1e-4);
        match options.notation {
            Notation::Scientific => NumberFormat::Scientific,
            Notation::Auto if is_wide => NumberFormat::Scientific,
            _ if is_whole => NumberFormat::Integer,
            _ => NumberFormat::Fixed,
        }
    }

    fn text(self, v: f64, precision: usize) -> String {
        match self {
            _ if v.is_nan() => "nan".into(),
            _ if v.is_infinite() => v.to_string(),
            NumberFormat::Integer => format!("{v:.0}."),
            NumberFormat::Fixed => format!("{v:.precision$}"),
            NumberFormat::Scientific => with_sign(&format!("{v:.precision$e}")),
        }
    }
}

/// `1.5e-8` as `1.5e-08`: the exponent gets at least two digits, and a sign.
fn with_sign(text: &str) -> String {
    let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (sign, size) = exponent.strip_prefix('-').map_or(('+', exponent), |size| ('-', size));
    format!("{digits}e{sign}{size:0>2}")
}

/// The elements of a tensor in brackets.
struct Block<'a> {
    /// The number of printed elements of each dimension.
    dims: &'a [usize],
    /// True for each dimension whose middle is omitted.
    is_cut: &'a [bool],
    /// Characters of an element.
    width: usize,
    options: &'a PrintOptions,
}

impl Block<'_> {
    /// The text of the dimensions from `d` on.
    fn text(&self, texts: &[String], d: usize) -> String {
        let Some(&extent) = self.dims.get(d) else { return texts.concat() };
        let inner = texts.len() / extent.max(1);
        let part = |i: usize| match self.dims.len() - d {
            1 => format!("{:>width$}", texts[i], width = self.width),
            _ => self.text(&texts[i * inner..][..inner], d + 1),
        };
        let mut parts: Vec<String> = (0..extent).map(part).collect();
        if self.is_cut[d] {
            // PyTorch puts two spaces before the dots in a row of elements.
            let dots = if self.dims.len() - d == 1 && extent > 0 { " ..." } else { "..." };
            parts.insert(extent / 2, dots.into());
        }
        let indent = " ".repeat(d + 1);
        match self.dims.len() - d {
            1 => {
                let count = (self.options.line_width.saturating_sub(d) / (self.width + 2)).max(1);
                let lines: Vec<String> = parts.chunks(count).map(|line| line.join(", ")).collect();
                format!("[{}]", lines.join(&format!(",\n{indent}")))
            }
            rank => format!("[{}]", parts.join(&format!(",{}{indent}", "\n".repeat(rank - 1)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forms(values: &[f64], precision: usize, notation: Notation) -> Vec<String> {
        let options = PrintOptions { precision, notation, ..PrintOptions::default() };
        let format = NumberFormat::of(values, &options);
        values.iter().map(|&v| format.text(v, precision)).collect()
    }

    #[test]
    fn notation_is_that_of_pytorch() {
        let auto = |values: &[f64]| forms(values, 4, Notation::Auto);
        assert_eq!(auto(&[1e8, 1e5]), ["100000000.", "100000."]);
        assert_eq!(auto(&[1e8 + 1.0, 1e5]), ["1.0000e+08", "1.0000e+05"]);
        assert_eq!(auto(&[1.0, 1001.0]), ["1.0000e+00", "1.0010e+03"]);
        assert_eq!(auto(&[1e-4, 0.05]), ["0.0001", "0.0500"]);
        assert_eq!(auto(&[0.9e-4]), ["9.0000e-05"]);
        assert_eq!(auto(&[0.0, -0.0, f64::NAN]), ["0.", "-0.", "nan"]);
        assert_eq!(auto(&[1e300, 1e-300]), ["1.0000e+300", "1.0000e-300"]);
        assert_eq!(forms(&[1e-8, 0.5], 2, Notation::Fixed), ["0.00", "0.50"]);
        assert_eq!(forms(&[3.0], 1, Notation::Scientific), ["3.0e+00"]);
        assert_eq!(forms(&[0.1], 17, Notation::Auto), ["0.10000000000000001"]);
    }

    #[test]
    fn rows_wider_than_a_line_go_on_in_the_next() {
        let texts: Vec<String> = (0..6).map(|i| i.to_string()).collect();
        let options = PrintOptions { line_width: 7, ..PrintOptions::default() };
        let block = |dims| Block { dims, is_cut: &[false, false], width: 1, options: &options }.text(&texts, 0);
        assert_eq!(block(&[6]), "[0, 1,\n 2, 3,\n 4, 5]");
        assert_eq!(block(&[2, 3]), "[[0, 1,\n  2],\n [3, 4,\n  5]]");
    }
}
