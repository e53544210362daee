//! Transfer: a network that has learnt to tell even digits from odd ones learns to name them. At first only a new last layer learns; then
//! the rest too, at a tenth of the rate. `cargo run --example freezing -- --device opencl:0`.

mod print;

use clap::Parser;
use isograd::data::{Dataset, Labelled, Loader, digits};
use isograd::prelude::*;
use isograd::train::{Goal, Trainer};
use print::print;

#[derive(Parser)]
struct Options {
    /// The device, as `isograd devices` lists it [default: the best]
    #[arg(long)]
    device: Option<String>,
}

#[derive(Module)]
struct Net {
    body: Sequential,
    head: Linear,
}

impl Forward for Net {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.head.forward(&self.body.forward(x)?)
    }
}

/// Trains with labels modulo `modulus`; returns the accuracy on samples that were not learnt.
fn learn(net: &Net, optimizer: impl Optimizer, modulus: i64, device: &Device, epochs: u64) -> Result<f64> {
    let (train, test) = digits()?.split_every(5)?;
    let labelled = |set: Labelled| set.map(move |(x, label), _| Ok((x, label % modulus)));
    let mut trainer = Trainer::new(
        net,
        optimizer,
        Loader::new(labelled(train), 64)?.shuffle(7).to(device),
        |net, (x, _)| net.forward(x),
        |scores, (_, y)| scores.cross_entropy(y),
    )
    .validate(Loader::new(labelled(test), 512)?.to(device))
    .metric("accuracy", Goal::Highest, |scores, (_, y)| scores.argmax(-1)?.eq(y))
    .epochs(epochs);
    trainer.run()?;
    Ok(trainer.evaluate()?.metrics["accuracy"])
}

/// The accuracies with the body frozen, and after all of it has learnt; and whether the frozen body stayed as it was.
pub fn train(device: &Device, epochs: u64) -> Result<(f64, f64, bool)> {
    let init = Init::new(device).seed(42);
    let body =
        Sequential::new().push(Linear::new(64, 64, &init)?).push(Relu).push(Linear::new(64, 32, &init)?).push(Relu);
    let mut net = Net { body, head: Linear::new(32, 2, &init)? };
    learn(&net, Adam::new(&net).lr(3e-3), 2, device, epochs)?;

    net.head = Linear::new(32, 10, &init)?;
    net.body.freeze();
    let weights = || net.body.parameters().iter().map(Tensor::to_bytes).collect::<Result<Vec<_>>>();
    let before = weights()?;
    let first = learn(&net, Adam::new(&net).lr(3e-3), 10, device, epochs)?;
    let is_same = weights()? == before;

    net.body.unfreeze();
    let optimizer = Adam::new(&net).lr(3e-3).group_where(|name, _| name.starts_with("body."), |group| group.lr(3e-4));
    Ok((first, learn(&net, optimizer, 10, device, epochs)?, is_same))
}

fn main() -> Result<()> {
    let device = Options::parse().device.map_or_else(Device::best, |name| name.parse())?;
    let (frozen, whole, is_same) = train(&device, 10)?;
    assert!(is_same, "a frozen layer has changed");
    print(&format!("{device}: accuracy {frozen:.3} with a frozen body, {whole:.3} when all of it learns"));
    Ok(())
}
