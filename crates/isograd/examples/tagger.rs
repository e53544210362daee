//! Tags the characters of sequences of different lengths: which brackets have a partner. An LSTM reads each sequence from both ends;
//! padding has no influence. `cargo run --release --example tagger -- --device opencl:0`.

mod options;
mod print;

use isograd::data::{Context, Dataset, Loader, Padded};
use isograd::nn::loss::CrossEntropy;
use isograd::prelude::*;
use isograd::train::metrics::Confusion;
use isograd::train::{Goal, Trainer};
use print::print;

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

/// The mean F1 of the three tags in the first and in the last epoch.
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
    let add = |f1: &mut Confusion, scores: &Tensor, (_, tags): &(Padded, Padded)| {
        f1.update(&scores.argmax(-1)?.reshape(tags.values.shape())?, &tags.values)
    };
    let begin = || Ok(Confusion::new(4, device)?.ignore(0));
    let mut trainer = Trainer::new(&model, AdamW::new(&model).lr(1e-2), loader, predict, loss)
        .validate(Loader::new(Brackets(256), 64)?.to(device))
        .measure("f1", Goal::Highest, begin, add, |f1| Ok(f1.counts()?.macro_f1()))
        .epochs(epochs);
    trainer.run()?;
    Ok((trainer.history()[0].metrics["f1"], trainer.history()[epochs as usize - 1].metrics["f1"]))
}

fn main() -> Result<()> {
    let device = options::device()?;
    let (first, last) = train(&device, 12)?;
    print(&format!("{device}: F1 {first:.3} after the first epoch, {last:.3} after the last"));
    Ok(())
}
