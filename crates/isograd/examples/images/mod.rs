//! What the examples on images share: data, a convolution made of tensor ops, and the loop that trains.

#[path = "../print/mod.rs"]
mod print;

use clap::Parser;
use isograd::data::{Dataset, Loader, digits, mnist};
use isograd::prelude::*;
use print::print;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Parser)]
pub struct Options {
    /// The device, as `isograd devices` lists it [default: the best]
    #[arg(long)]
    pub device: Option<String>,
    /// A folder with MNIST's IDX files [default: the digits of 8x8 pixels that isograd has]
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// How often all images are seen
    #[arg(long, default_value_t = 10)]
    pub epochs: u64,
}

/// Rows and columns of what a layer gets.
pub type Size = [usize; 2];

/// `x [N, C, H, W]` to `[N, O, H / stride, W / stride]`: windows of 3x3 elements, zeros around the image, no bias. Each window's
/// elements become a column, and all columns are multiplied with the weight at once.
#[derive(Module)]
pub struct Conv3x3 {
    /// `[O, 9 C]`.
    weight: Tensor,
    /// Where the elements of all windows lie in an image with a zero behind it: `[9 * outputs]`.
    #[module(skip)]
    windows: Tensor,
    /// Rows and columns of the result.
    #[module(skip)]
    pub output: Size,
}

impl Conv3x3 {
    /// Kaiming's normal rule for relu.
    pub fn new(channels: [usize; 2], size: Size, stride: usize, init: &Init) -> Result<Conv3x3> {
        let [input, output] = channels;
        let deviation = (2.0 / (9.0 * input as f64)).sqrt();
        let weight = init.normal((output, 9 * input), 0.0, deviation)?;
        let [rows, columns] = size;
        let shape = [rows.div_ceil(stride), columns.div_ceil(stride)];
        let mut windows = Vec::new();
        for k in 0..9 {
            for p in 0..shape[0] * shape[1] {
                // One more than the element's place, since there is a border of one.
                let (r, c) = (p / shape[1] * stride + k / 3, p % shape[1] * stride + k % 3);
                let is_inside = (1..=rows).contains(&r) && (1..=columns).contains(&c);
                let place = if is_inside { (r - 1) * columns + c - 1 } else { rows * columns };
                windows.push(place as i64);
            }
        }
        let windows = Tensor::from_vec(windows, 9 * shape[0] * shape[1], init.device())?;
        Ok(Conv3x3 { weight, windows, output: shape })
    }
}

impl Forward for Conv3x3 {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (n, c, [rows, columns]) = (x.dims()[0], x.dims()[1], self.output);
        let images = x.reshape([n * c, x.dims()[2] * x.dims()[3]])?;
        let zeros = Tensor::zeros([n * c, 1], x.dtype(), x.device())?;
        let windows = Tensor::concat(&[&images, &zeros], 1)?.index_select(1, &self.windows)?;
        let y = self.weight.matmul(&windows.reshape([n, 9 * c, rows * columns])?)?;
        y.reshape([n, self.weight.dims()[0], rows, columns])
    }
}

fn datasets(options: &Options) -> Result<(Dataset, Dataset, Size)> {
    match &options.data {
        Some(folder) => mnist(folder).map(|(train, test)| (train, test, [28, 28])),
        None => digits()?.split_every(5).map(|(train, test)| (train, test, [8, 8])),
    }
}

/// Trains what `make` returns for images of a size, and returns the share of test images that it recognises.
pub fn train<M: Layer>(options: &Options, make: impl Fn(Size, &Init) -> Result<M>) -> Result<f64> {
    let device = options.device.as_deref().map_or_else(Device::best, str::parse)?;
    let (train, test, size) = datasets(options)?;
    let shape = [1, size[0], size[1]];
    let loader = |set: Dataset| Ok::<_, Error>(Loader::new(Arc::new(set.with_sample_shape(shape)?), 64)?.to(&device));
    let (count, train, test) = (test.len(), loader(train)?.shuffle(42), loader(test)?);
    let model = make(size, &Init::new(&device).seed(42))?;
    let mut optimizer = AdamW::new(&model).lr(3e-3);
    print(&format!("{} parameters on {device}", model.num_parameters()));
    let mut accuracy = 0.0;
    for epoch in 0..options.epochs {
        model.train();
        let mut losses = Vec::new();
        for batch in train.epoch(epoch) {
            let (x, y) = batch?;
            let loss = model.forward(&x)?.cross_entropy(&y)?;
            loss.backward()?;
            optimizer.step()?;
            losses.push(loss.detach());
        }
        model.eval();
        let mut right = 0.0;
        for batch in test.epoch(0) {
            let (x, y) = batch?;
            let found = no_grad(|| model.forward(&x))?.argmax(-1)?;
            right += found.eq(&y)?.cast(DType::F32)?.sum(..)?.item()?;
        }
        accuracy = right / count as f64;
        let losses = losses.iter().map(Tensor::item).collect::<Result<Vec<_>>>()?;
        let loss = losses.iter().sum::<f64>() / losses.len() as f64;
        print(&format!("epoch {}: loss {loss:.4}, test accuracy {accuracy:.4}", epoch + 1));
    }
    Ok(accuracy)
}
