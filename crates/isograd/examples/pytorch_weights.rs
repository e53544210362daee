//! A network with the weights of one of PyTorch's, by their names: `torch.save` wrote them to `pytorch/mlp.pt`, as `pytorch/generate.py`
//! says. `cargo run --example pytorch_weights -- --device opencl:0`.

mod print;

use clap::Parser;
use isograd::nn::load;
use isograd::prelude::*;
use print::print;
use std::path::Path;

#[derive(Parser)]
struct Options {
    /// The device, as `isograd devices` lists it [default: the best]
    #[arg(long)]
    device: Option<String>,
}

/// The fields have PyTorch's names: `first.weight`, `first.bias`, `last.weight`, `last.bias`.
#[derive(Module)]
struct Mlp {
    first: Linear,
    last: Linear,
}

impl Forward for Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.last.forward(&self.first.forward(x)?.relu()?)
    }
}

/// The largest difference of the network's outputs from PyTorch's, for an input that the file has too.
pub fn difference(device: &Device, file: &Path) -> Result<f64> {
    let mut tensors = load(file, device)?.tensors;
    let [x, y] = ["example.x", "example.y"].map(|name| tensors.remove(name));
    let missing = |name| Error::value("example", format!("the file has no {name}"));
    let (x, y) = (x.ok_or_else(|| missing("example.x"))?, y.ok_or_else(|| missing("example.y"))?);

    let init = Init::new(device);
    let model = Mlp { first: Linear::new(3, 5, &init)?, last: Linear::new(5, 2, &init)? };
    // An error names every tensor that is missing, left over, or of another shape.
    model.load_state_dict(&tensors)?;
    no_grad(|| model.forward(&x)?.sub(&y)?.abs()?.amax(..)?.item())
}

fn main() -> Result<()> {
    let device = Options::parse().device.map_or_else(Device::best, |name| name.parse())?;
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/pytorch/mlp.pt"));
    print(&format!("{device}: the outputs differ from PyTorch's by {:.1e} at most", difference(&device, file)?));
    Ok(())
}
