//! A small GPT on characters with a loop of its own: blocks of attention, a rate that rises and falls, and a text that the model continues.
//! `cargo run --example gpt -- --device opencl:0`.

mod options;
mod print;

use isograd::data::{Characters, Loader, Tokenizer, Tokens};
use isograd::nn::schedule::Cosine;
use isograd::prelude::*;
use print::print;

const TEXT: &str = "one two three four five six seven eight nine ten; nine eight seven six five four three two one; ";
/// The characters that the model sees at once, and the width of its layers.
const CONTEXT: usize = 16;
const WIDTH: usize = 32;

/// A norm, attention, and a hidden layer.
#[derive(Module)]
struct Block(LayerNorm, CausalSelfAttention, Sequential);

#[derive(Module)]
struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    output: Sequential,
}

impl Gpt {
    fn new(vocabulary: usize, init: &Init) -> Result<Gpt> {
        let normed = || Ok(Sequential::new().push(LayerNorm::new(WIDTH, init)?));
        let block = |_| {
            let attention = CausalSelfAttention::new(WIDTH, &SelfAttentionOptions::new(4), init)?;
            let hidden = normed()?.push(Linear::new(WIDTH, 4 * WIDTH, init)?).push(Relu);
            Ok(Block(LayerNorm::new(WIDTH, init)?, attention, hidden.push(Linear::new(4 * WIDTH, WIDTH, init)?)))
        };
        let blocks = (0..2).map(block).collect::<Result<_>>()?;
        let output = normed()?.push(Linear::new(WIDTH, vocabulary, init)?);
        let [tokens, positions] = [vocabulary, CONTEXT].map(|rows| Embedding::new(rows, WIDTH, init));
        Ok(Gpt { tokens: tokens?, positions: positions?, blocks, output })
    }

    /// Logits `[B, T, V]` of the character after each of `[B, T]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let positions = self.positions.forward(&Tensor::arange(x.dims()[1], x.device())?)?;
        let add = |x: Tensor, Block(norm, attention, hidden): &Block| {
            let x = x.add(&attention.forward(&norm.forward(&x)?)?)?;
            x.add(&hidden.forward(&x)?)
        };
        self.output.forward(&self.blocks.iter().try_fold(self.tokens.forward(x)?.add(&positions)?, add)?)
    }
}

/// The last loss, and how `one two ` goes on, by the most likely character each time.
pub fn train(device: &Device, steps: usize) -> Result<(f64, String)> {
    let characters = Characters::of(TEXT);
    let windows = Tokens::from_ids(&characters.encode(&TEXT.repeat(4))?)?.drawn_windows(CONTEXT, 8 * steps)?;
    let model = Gpt::new(characters.vocabulary(), &Init::new(device).seed(42))?;
    let rates = Cosine { lr: 1e-2, min: 1e-4, steps: steps as u64 }.after_warm_up(steps as u64 / 10);
    let (mut optimizer, mut last) = (AdamW::new(&model).clip_norm(1.0).scheduled(rates)?, f64::NAN);
    for batch in Loader::new(windows, 8)?.shuffle(42).to(device).epoch(0) {
        let (x, y): (Tensor, Tensor) = batch?;
        let loss = model.forward(&x)?.flatten(0, 1)?.cross_entropy(&y.flatten(0, 1)?)?;
        loss.backward()?;
        optimizer.step()?;
        last = loss.item()?;
    }
    let mut written = characters.encode("one two ")?;
    for _ in 0..30 {
        let window = &written[written.len().saturating_sub(CONTEXT)..];
        let logits = no_grad(|| model.forward(&Tensor::from_slice(window, (1, window.len()), device)?))?;
        written.push(logits.i((0, -1))?.argmax(0)?.item()?);
    }
    Ok((last, characters.decode(&written)?))
}

fn main() -> Result<()> {
    train(&options::device()?, 300).map(|(loss, written)| print(&format!("loss {loss:.3}: {written}")))
}
