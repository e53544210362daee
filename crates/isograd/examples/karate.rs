//! Tells which members of a karate club left it with whom, from the clubs of four of them and from who met whom.
//! `cargo run --example karate -- --device opencl:0 --network gat`

mod print;

use clap::{Parser, ValueEnum};
use isograd::data::karate_club;
use isograd::prelude::*;
use print::print;

#[derive(Parser)]
struct Options {
    /// The device, as `isograd devices` lists it [default: the best]
    #[arg(long)]
    device: Option<String>,
    /// The layers
    #[arg(long, value_enum, default_value_t = Network::Gcn)]
    network: Network,
}

/// Two layers of the same kind.
#[derive(Clone, Copy, ValueEnum)]
pub enum Network {
    /// Graph convolutions.
    Gcn,
    /// Attention to neighbours.
    Gat,
}

enum Layers {
    Gcn([GcnConv; 2]),
    Gat([GatConv; 2]),
}

impl Module for Layers {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        match self {
            Layers::Gcn(layers) => visitor.part("layers", layers),
            Layers::Gat(layers) => visitor.part("layers", layers),
        }
    }
}

impl Layers {
    fn new(network: Network, members: usize, init: &Init) -> Result<Layers> {
        Ok(match network {
            Network::Gcn => {
                let layer = |input, output| GcnConv::new(input, output, init);
                Layers::Gcn([layer(members, 16)?, layer(16, 2)?])
            }
            Network::Gat => {
                let layer = |input, output, heads| {
                    GatConv::with_options(input, output, &GatOptions { heads, ..GatOptions::default() }, init)
                };
                Layers::Gat([layer(members, 8, 8)?, layer(64, 2, 1)?])
            }
        })
    }

    fn forward(&self, x: &Tensor, graph: &Graph) -> Result<Tensor> {
        match self {
            Layers::Gcn([first, second]) => second.forward(&first.forward(x, graph, None)?.tanh()?, graph, None),
            Layers::Gat([first, second]) => second.forward(&first.forward(x, graph, None)?.elu(1.0)?, graph, None),
        }
    }
}

/// The number of members whose club is wrong after so many steps.
pub fn train(device: &Device, network: Network, steps: usize) -> Result<usize> {
    let club = karate_club();
    let members = club.clubs.len();
    // Each meeting is an edge in both directions.
    let ends = |from: usize| club.edges.iter().map(move |edge| edge[from]);
    let tensor = |nodes: Vec<i64>| Tensor::from_slice(&nodes, nodes.len(), device);
    let (src, dst) = (tensor(ends(0).chain(ends(1)).collect())?, tensor(ends(1).chain(ends(0)).collect())?);
    let graph = Graph::from_edges(&src, &dst, members)?;
    // Members have no features but who they are.
    let x = Tensor::eye(members, DType::F32, device)?;
    let clubs = tensor(club.clubs.to_vec())?;
    let known = tensor(vec![0, 3, 31, 33])?;
    let targets = clubs.index_select(0, &known)?;

    let init = Init::new(device).seed(4);
    let model = Layers::new(network, members, &init)?;
    let rates = match network {
        Network::Gcn => [0.02, 5e-3],
        Network::Gat => [0.005, 5e-4],
    };
    let mut optimizer = Adam::new(&model).lr(rates[0]).weight_decay(rates[1]);
    for _ in 0..steps {
        model.zero_grad();
        model.forward(&x, &graph)?.index_select(0, &known)?.cross_entropy(&targets)?.backward()?;
        optimizer.step()?;
    }
    let guess = no_grad(|| model.forward(&x, &graph)?.argmax(1))?;
    Ok(guess.ne(&clubs)?.sum(..)?.item::<f64>()? as usize)
}

fn main() -> Result<()> {
    let options = Options::parse();
    let device = options.device.map_or_else(Device::best, |name| name.parse())?;
    let wrong = train(&device, options.network, 60)?;
    print(&format!("{device}: {wrong} of 34 members are in the wrong club"));
    Ok(())
}
