//! Predicts the next image of a film in which a digit moves and bounces, by a ConvLSTM. The films are made of the digits inside the
//! library, new ones in each epoch. `cargo run --release --example moving_digits -- --device opencl:0`.

mod print;

use clap::Parser;
use isograd::data::{Context, Dataset, HostTensor, Labelled, Loader, digits};
use isograd::prelude::*;
use isograd::train::Trainer;
use print::print;

#[derive(Parser)]
struct Options {
    /// The device, as `isograd devices` lists it [default: the best]
    #[arg(long)]
    device: Option<String>,
}

/// Rows and columns of an image, and images of a film. Digits have 8 x 8 pixels.
const SIZE: usize = 14;
const LENGTH: usize = 7;

/// Films of these digits, and their number.
struct Films(Labelled, usize);

impl Dataset for Films {
    type Item = HostTensor;

    fn len(&self) -> usize {
        self.1
    }

    fn get(&self, _: usize, context: &Context) -> Result<HostTensor> {
        let digit = &self.0.features()[64 * context.below(self.0.len())..][..64];
        let room = SIZE - 8;
        // A place on the way to the other side and back, for each axis, and the step to the next.
        let start = [0; 2].map(|_| (context.below(2 * room), 1 + context.below(2)));
        let mut film = vec![0.0; LENGTH * SIZE * SIZE];
        for (t, image) in film.chunks_mut(SIZE * SIZE).enumerate() {
            let [top, left] = start.map(|(at, step)| (at + t * step) % (2 * room)).map(|at| at.min(2 * room - at));
            for (row, pixels) in digit.chunks(8).enumerate() {
                image[(top + row) * SIZE + left..][..8].copy_from_slice(pixels);
            }
        }
        HostTensor::new(&film, [LENGTH, 1, SIZE, SIZE])
    }
}

#[derive(Module)]
struct Next {
    lstm: ConvLstm,
    image: Conv2d,
}

/// All images of films `[B, T, 1, H, W]` but the last (from 0) or the first (from 1), as `[T - 1, B, 1, H, W]`.
fn images(films: &Tensor, first: usize) -> Result<Tensor> {
    films.narrow(1, first, LENGTH - 1)?.transpose(0, 1)
}

/// The mean square error of a pixel: of the image before as a guess, and of the model in the last epoch.
pub fn train(device: &Device, films: usize, epochs: u64) -> Result<(f64, f64)> {
    let init = Init::new(device).seed(42);
    let image = Conv2d::new(16, 1, [1, 1], &init)?;
    let model = Next { lstm: ConvLstm::new(1, 16, [5, 5], &init)?, image };
    let loader = Loader::new(Films(digits()?, films), 16)?.seed(42).workers(2)?.to(device);
    let error = |guess: &Tensor, films: &Tensor| guess.mse_loss(&images(films, 1)?.flatten(0, 1)?, Default::default());
    let batch = loader.epoch(0).next().expect("a batch")?;
    let still = error(&images(&batch, 0)?.flatten(0, 1)?, &batch)?.item::<f64>()?;
    let predict = |model: &Next, x: &Tensor| model.image.forward(&model.lstm.forward(&images(x, 0)?)?.flatten(0, 1)?);
    let mut trainer = Trainer::new(&model, AdamW::new(&model).lr(1e-2), loader, predict, error).epochs(epochs);
    trainer.run()?;
    Ok((still, trainer.history()[epochs as usize - 1].train_loss))
}

fn main() -> Result<()> {
    let device = Options::parse().device.map_or_else(Device::best, |name| name.parse())?;
    let (still, last) = train(&device, 512, 10)?;
    print(&format!("{device}: error {last:.4}; of the image before as a guess {still:.4}"));
    Ok(())
}
