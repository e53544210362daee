//! Adapters on a frozen GPT-2: a model that has learnt one text learns another by two narrow matrices beside each projection of its attention,
//! which a hook adds to the result. Without the hook it is the old model. Hu et al. 2021, arXiv 2106.09685.
//! `cargo run --example adapters -- --device opencl:0`.

mod options;
mod print;

use isograd::data::{Characters, Loader, Tokenizer, Tokens};
use isograd::models::{Gpt2, Gpt2Options};
use isograd::prelude::*;
use print::print;
use std::collections::BTreeMap;
use std::sync::Arc;

const FIRST: &str = "one two three four five six seven eight nine ten; ";
const SECOND: &str = "ten nine eight seven six five four three two one; ";
const CONTEXT: usize = 16;
const WIDTH: usize = 32;
/// The columns of a, and the rows of b.
const RANK: usize = 4;

/// a and b of `x a b`, which is 0 at first.
#[derive(Module)]
struct Adapter(Tensor, Tensor);

type Windows = Loader<(Tensor, Tensor)>;

fn windows(text: &str, steps: usize, device: &Device) -> Result<Windows> {
    let tokens = Tokens::from_ids(&Characters::of(FIRST).encode(&text.repeat(10))?)?;
    Ok(Loader::new(tokens.drawn_windows(CONTEXT, 8 * steps)?, 8)?.shuffle(42).to(device))
}

fn loss(model: &Gpt2, (x, y): &(Tensor, Tensor)) -> Result<Tensor> {
    model.forward(x)?.flatten(0, 1)?.cross_entropy(&y.flatten(0, 1)?)
}

fn learn(model: &Gpt2, mut optimizer: AdamW, text: &Windows) -> Result<()> {
    text.epoch(0).try_for_each(|batch| {
        loss(model, &batch?)?.backward()?;
        optimizer.step()
    })
}

/// The losses of the second text without and with adapters, and that of the first text when the adapters are taken away, beside the one before.
pub fn train(device: &Device, steps: usize) -> Result<([f64; 2], [f64; 2])> {
    let init = Init::new(device).seed(42);
    let vocab = Characters::of(FIRST).vocabulary();
    let options = Gpt2Options { vocab, context: CONTEXT, layers: 1, heads: 4, width: WIDTH, dropout: 0.0 };
    let model = Gpt2::new(&options, &init)?;
    learn(&model, AdamW::new(&model).lr(1e-2), &windows(FIRST, steps, device)?)?;
    let tested = |text: &str| {
        let add = |sum, batch: Result<_>| Ok(sum + no_grad(|| loss(&model, &batch?))?.item::<f64>()? / 4.0);
        windows(text, 4, device)?.epoch(1).try_fold(0.0, add)
    };
    let (first, without) = (tested(FIRST)?, tested(SECOND)?);

    model.freeze();
    let names = model.named_modules().into_iter().map(|(name, _)| name).filter(|name| name.ends_with("c_attn"));
    let adapter = |name| Ok((name, Adapter(init.normal((WIDTH, RANK), 0.0, 0.1)?, init.zeros((RANK, 3 * WIDTH))?)));
    let adapters: Arc<BTreeMap<String, Adapter>> = Arc::new(names.map(adapter).collect::<Result<_>>()?);
    let added = adapters.clone();
    let hook = ForwardHook::register(&model, "*.c_attn", move |call| {
        let Adapter(a, b) = &added[call.name];
        call.output().add(&call.inputs[0].matmul(a)?.matmul(b)?).map(Some)
    })?;
    learn(&model, AdamW::new(&adapters).lr(1e-2), &windows(SECOND, 2 * steps, device)?)?;
    let with = tested(SECOND)?;
    drop(hook);
    Ok(([without, with], [first, tested(FIRST)?]))
}

fn main() -> Result<()> {
    let device = options::device()?;
    let ([without, with], [before, after]) = train(&device, 80)?;
    print(&format!("{device}: loss {without:.3} without adapters, {with:.3} with them; of the first text {before:.3}"));
    assert_eq!(before, after, "the model has changed");
    Ok(())
}
