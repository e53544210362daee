//! Tags the characters of sequences of different lengths: which brackets have a partner. An LSTM reads each sequence from both ends;
//! padding has no influence. `cargo run --release --example tagger -- --device opencl:0`.

mod print;

use clap::Parser;
use isograd::data::{Context, Dataset, Loader, Padded};
use isograd::nn::loss::CrossEntropy;
use isograd::prelude::*;
use isograd::train::Trainer;
use print::print;

#[derive(Parser)]
struct Options {
    /// The device, as `isograd devices` lists it [default: the best]
    #[arg(long)]
    device: Option<String>,
}

/// So many sequences of 4 to 20 characters, which are new in each epoch.
struct Brackets(usize);

impl Dataset for Brackets {
    /// Characters in ASCII, and the tag of each: 1 for a letter, 2 for a bracket alone, 3 for one with a partner. In a batch, shorter
    /// sequences end in 0, which is no tag.
    type Item = (Vec<i64>, Vec<i64>);

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, _: usize, context: &Context) -> Result<Self::Item> {
        let text: Vec<u8> = (0..4 + context.below(17)).map(|_| b"a()"[context.below(3)]).collect();
        let mut tags: Vec<i64> = text.iter().map(|&c| if c == b'a' { 1 } else { 2 }).collect();
        let mut open = Vec::new();
        for (i, c) in text.iter().enumerate() {
            match c {
                b'(' => open.push(i),
                b')' => open.pop().into_iter().for_each(|partner| [tags[partner], tags[i]] = [3; 2]),
                _ => {}
            }
        }
        Ok((text.into_iter().map(i64::from).collect(), tags))
    }
}

#[derive(Module)]
struct Tagger {
    embedding: Embedding,
    lstm: Lstm,
    output: Linear,
}

/// The mean loss of a tag in the first and in the last epoch.
pub fn train(device: &Device, epochs: u64) -> Result<(f64, f64)> {
    let init = Init::new(device).seed(42);
    let both = RecurrentOptions { bidirectional: true, batch_first: true, ..Default::default() };
    let (embedding, output) = (Embedding::new(128, 8, &init)?, Linear::new(2 * 32, 4, &init)?);
    let model = Tagger { embedding, lstm: Lstm::with_options(8, 32, &both, &init)?, output };
    let loader = Loader::new(Brackets(1024), 32)?.seed(42).workers(2)?.to(device);
    let predict = |model: &Tagger, (characters, _): &(Padded, Padded)| {
        let x = model.embedding.forward(&characters.values)?;
        model.output.forward(&model.lstm.run(&x, Some(&characters.lengths), None)?.0)
    };
    let loss = |scores: &Tensor, (_, tags): &(Padded, Padded)| {
        let without_padding = CrossEntropy { ignore_index: Some(0), ..Default::default() };
        scores.flatten(0, 1)?.cross_entropy_with(&tags.values.flatten(0, 1)?, &without_padding)
    };
    let mut trainer = Trainer::new(&model, AdamW::new(&model).lr(1e-2), loader, predict, loss).epochs(epochs);
    trainer.run()?;
    Ok((trainer.history()[0].train_loss, trainer.history()[epochs as usize - 1].train_loss))
}

fn main() -> Result<()> {
    let device = Options::parse().device.map_or_else(Device::best, |name| name.parse())?;
    let (first, last) = train(&device, 12)?;
    print(&format!("{device}: loss {first:.4} in the first epoch, {last:.4} in the last"));
    Ok(())
}
