//! Factorises a matrix of ratings, of which a fifth is known: a row of numbers for each user and each item, whose product and
//! biases are the rating. `cargo run --example matrix_factorisation -- --device opencl:0`; without a device, on the best.
//!
//! The ratings come from factors that are drawn, with noise of deviation 0.1, so that it is known how well they can be told.

mod print;

use clap::Parser;
use isograd::ops::loss::Reduction;
use isograd::prelude::*;
use print::print;

const USERS: usize = 400;
const ITEMS: usize = 300;
/// Numbers of a row, as many as the drawn factors have.
const RANK: usize = 4;
const NOISE: f64 = 0.1;

#[derive(Parser)]
struct Options {
    /// The device, as `isograd devices` lists it [default: the best]
    #[arg(long)]
    device: Option<String>,
    /// How many steps, each with all known ratings
    #[arg(long, default_value_t = 400)]
    steps: usize,
}

/// Ratings `[N]` of users by items.
struct Ratings {
    users: Tensor,
    items: Tensor,
    values: Tensor,
}

impl Ratings {
    /// `count` ratings of the model that a seed draws.
    fn draw(count: usize, rng: &Rng, factors: &[Tensor; 2], device: &Device) -> Result<Ratings> {
        let pick = |n: usize| Tensor::rand(count, 0.0, n as f64, DType::F32, device, rng)?.cast(DType::I64);
        let (users, items) = (pick(USERS)?, pick(ITEMS)?);
        let rows = factors[0].index_select(0, &users)?.mul(&factors[1].index_select(0, &items)?)?;
        let noise = Tensor::randn(count, 0.0, NOISE, DType::F32, device, rng)?;
        Ok(Ratings { values: rows.sum(1)?.add(&noise)?, users, items })
    }
}

#[derive(Module)]
struct Model {
    users: Embedding,
    items: Embedding,
    user_bias: Embedding,
    item_bias: Embedding,
}

impl Model {
    fn new(init: &Init) -> Result<Model> {
        let model = Model {
            users: Embedding::new(USERS, RANK, init)?,
            items: Embedding::new(ITEMS, RANK, init)?,
            user_bias: Embedding::new(USERS, 1, init)?,
            item_bias: Embedding::new(ITEMS, 1, init)?,
        };
        // Small numbers first, so that no rating is far off.
        let factor = Tensor::scalar(0.1f32, init.device())?;
        no_grad(|| model.parameters().iter().try_for_each(|p| p.detach().mul_(&factor)))?;
        Ok(model)
    }

    fn forward(&self, ratings: &Ratings) -> Result<Tensor> {
        let rows = self.users.forward(&ratings.users)?.mul(&self.items.forward(&ratings.items)?)?;
        let biases = self.user_bias.forward(&ratings.users)?.add(&self.item_bias.forward(&ratings.items)?)?;
        rows.sum(1)?.add(&biases.squeeze(1)?)
    }

    /// The root of the mean squared error.
    fn error(&self, ratings: &Ratings) -> Result<f64> {
        no_grad(|| self.forward(ratings)?.mse_loss(&ratings.values, Reduction::Mean)?.sqrt()?.item::<f64>())
    }
}

/// The errors of ratings that were not seen, before and after so many steps.
pub fn train(device: &Device, steps: usize) -> Result<[f64; 2]> {
    let rng = Rng::new(7);
    let draw = |n: usize| Tensor::randn((n, RANK), 0.0, 0.7, DType::F32, device, &rng);
    let factors = [draw(USERS)?, draw(ITEMS)?];
    let [seen, unseen] = [USERS * ITEMS / 5, 4000].map(|count| Ratings::draw(count, &rng, &factors, device));
    let (seen, unseen) = (seen?, unseen?);
    let model = Model::new(&Init::new(device).seed(1))?;
    let mut optimizer = Adam::new(&model).lr(0.02);
    let before = model.error(&unseen)?;
    for _ in 0..steps {
        let loss = model.forward(&seen)?.mse_loss(&seen.values, Reduction::Mean)?;
        loss.backward()?;
        optimizer.step()?;
    }
    Ok([before, model.error(&unseen)?])
}

fn main() -> Result<()> {
    let options = Options::parse();
    let device = options.device.map_or_else(Device::best, |name| name.parse())?;
    let [before, after] = train(&device, options.steps)?;
    let steps = options.steps;
    print(&format!("{device}: RMSE {before:.3} before, {after:.3} after {steps} steps; of the noise {NOISE}"));
    assert!(after < 1.5 * NOISE, "the RMSE is {after}");
    Ok(())
}
