//! A model of characters: from each three characters the next, by an embedding and linear layers, with a target at each place of a
//! sequence. `cargo run --example characters -- --device opencl:0`; `--data FILE` reads a text of your own, in ASCII.

mod print;

use clap::Parser;
use isograd::data::{Dataset, Loader, TokenType, Tokens};
use isograd::prelude::*;
use isograd::train::{Goal, Trainer};
use print::print;
use std::path::PathBuf;

#[derive(Parser)]
struct Options {
    /// The device, as `isograd devices` lists it [default: the best]
    #[arg(long)]
    device: Option<String>,
    /// A text in ASCII [default: names of numbers]
    #[arg(long)]
    data: Option<PathBuf>,
}

const TEXT: &str = "one two three four five six seven eight nine ten; nine eight seven six five four three two one; ";
/// Tokens of a window.
const LENGTH: usize = 32;

#[derive(Module)]
struct Characters {
    embedding: Embedding,
    hidden: Linear,
    output: Linear,
}

impl Forward for Characters {
    /// Logits `[B, T - 2, 128]` of the character after each three of `[B, T]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let e = self.embedding.forward(x)?;
        let [a, b, c] = [0, 1, 2].map(|i| e.narrow(1, i, x.dims()[1] - 2));
        let context = Tensor::concat(&[&a?, &b?, &c?], -1)?;
        self.output.forward(&self.hidden.forward(&context)?.relu()?)
    }
}

/// The targets of the logits, `[B, T - 2]`.
fn targets(y: &Tensor) -> Result<Tensor> {
    y.narrow(1, 2, y.dims()[1] - 2)
}

/// The mean loss over all places of all sequences.
fn loss(logits: &Tensor, (_, y): &(Tensor, Tensor)) -> Result<Tensor> {
    logits.flatten(0, 1)?.cross_entropy(&targets(y)?.flatten(0, 1)?)
}

/// The share of characters that are guessed.
pub fn train(device: &Device, text: &Tokens, epochs: u64) -> Result<f64> {
    let [train, test] = text.windows(LENGTH, LENGTH / 4)?.random_split([0.9, 0.1], 1)?;
    let init = Init::new(device).seed(42);
    let model = Characters {
        embedding: Embedding::new(128, 16, &init)?,
        hidden: Linear::new(3 * 16, 64, &init)?,
        output: Linear::new(64, 128, &init)?,
    };
    let train = Loader::new(train, 16)?.shuffle(42).workers(2)?.to(device);
    let mut trainer = Trainer::new(&model, AdamW::new(&model).lr(1e-2), train, |model, (x, _)| model.forward(x), loss)
        .validate(Loader::new(test, 16)?.to(device))
        .metric("accuracy", Goal::Highest, |logits, (_, y)| logits.argmax(-1)?.eq(&targets(y)?))
        .epochs(epochs);
    trainer.run()?;
    Ok(trainer.evaluate()?.metrics["accuracy"])
}

fn main() -> Result<()> {
    let options = Options::parse();
    let device = options.device.map_or_else(Device::best, |name| name.parse())?;
    let own = |path| Tokens::open(path, TokenType::U8);
    let text = options.data.map_or_else(|| Ok(Tokens::from_bytes(TEXT.repeat(20))), own)?;
    print(&format!("{device}: {:.1} % of the characters are guessed", 100.0 * train(&device, &text, 10)?));
    Ok(())
}
